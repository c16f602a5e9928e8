"""Tests of toolsim without the features that Windows lacks: Unix modules, signals, process groups and signal handlers.

Windows is simulated (``support/windows/sitecustomize.py``): each command runs in a process without these features.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.command import environment, started

ROOT = Path(__file__).parents[2]
SIMULATION = ROOT / "tests" / "support" / "windows"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="simulates Windows elsewhere")]


def simulated_environment(home: Path) -> dict[str, str]:
    return {**environment(home), "PYTHONPATH": f"{SIMULATION}{os.pathsep}{ROOT / 'addon'}"}


def python(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=simulated_environment(tmp_path),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the base URL of a running ``toolsim demo``, and its log."""
    command = [sys.executable, "-m", "toolsim", "demo", "--port", "0"]
    with started(command, tmp_path, simulated_environment(tmp_path), banner=r"base URL (http://[^\s,]+)") as found:
        yield found


def test_simulation_lacks_modules_missing_on_windows(tmp_path: Path) -> None:
    """The simulation of Windows removes the modules and functions that Windows lacks."""
    program = "import os, signal, fcntl"
    assert "No module named 'fcntl'" in python(tmp_path, "-c", program).stderr
    program = "import os, signal; print(hasattr(os, 'nice'), hasattr(os, 'killpg'), hasattr(signal, 'setitimer'))"
    assert python(tmp_path, "-c", program).stdout == "False False False\n"


def test_large_request_is_rewritten_in_a_worker(served: tuple[str, Path]) -> None:
    """A request of more than 32 KB is rewritten in a worker process, which also serves the next request."""
    url, _ = served
    for _ in range(2):
        messages = [{"role": "system", "content": "x " * 500_000}, {"role": "user", "content": "Weather in Bonn?"}]
        body = {"model": "toolsim-scripted", "messages": messages, "tools": [TOOL]}
        answer = httpx.post(f"{url}/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        call = answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]
        assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Bonn"})


@pytest.mark.ci
def test_recordings_replay(tmp_path: Path) -> None:
    """The recordings in ``flows`` can be replayed with the same result."""
    done = python(tmp_path, "-m", "toolsim", "replay", "flows")
    assert (done.returncode, done.stdout.splitlines()[-1].endswith("none differ")) == (0, True), (
        done.stdout + done.stderr
    )


def test_tuning_session_is_locked(tmp_path: Path) -> None:
    """A tuning session is locked even without ``fcntl``."""
    program = f"""
from pathlib import Path
from toolsim.eval.learn import command
from toolsim.eval.learn.memory import Busy, VerdictFile
about = {{"url": "u", "model": "m"}}
first = VerdictFile(Path({str(tmp_path)!r}), about)
try:
    VerdictFile(Path({str(tmp_path)!r}), about)
except Busy:
    print("busy")
first.close(is_whole=True)
VerdictFile(Path({str(tmp_path)!r}), about).close()
print("free")
"""
    done = python(tmp_path, "-c", program)
    assert done.stdout.split() == ["busy", "free"], done.stderr


def test_slow_worker_is_replaced(tmp_path: Path) -> None:
    """If the system has no CPU limits, the proxy ends a worker that takes too long, and starts a new one."""
    program = """
import asyncio
from toolsim.core.policy import Policy
from toolsim.proxy import worker
from toolsim.proxy.jobs import RequestJob
def job(data):
    return RequestJob(api_name="chat", path="/v1/chat/completions", data=data, limit=10**9, policy=Policy())
one = worker.Worker("one")
slow = b'{"model": "m", "messages": [' + b"[]," * 8_000_000 + b'[]], "tools": [1]}'
async def main():
    # A worker may start slowly.
    for data, worker.MAX_WAIT_SECONDS in (
        (slow, 1), (b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}', 60)
    ):
        done = await one.run(job(data))
        print(done.error and done.error.status, done.error and "too much time" in done.error.message)
asyncio.run(main())
one.stop()
"""
    done = python(tmp_path, "-c", program)
    assert done.stdout.splitlines() == ["413 True", "None None"], done.stderr
