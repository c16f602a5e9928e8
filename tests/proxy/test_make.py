"""Tests for ``make run`` in this checkout. The commands that it prints can be pasted, and the documentation contains
them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.line import Line
from support.mitmdump import ROOT
from support.ports import free_port
from support.raw_backend import Answer, RawBackend

pytestmark = [
    pytest.mark.skipif(not shutil.which("make"), reason="needs make"),
    # ``make run`` uses this checkout's virtual environment. If there were none, the test would create one.
    pytest.mark.skipif(not (ROOT / ".venv/.addon").exists(), reason="needs an environment made by make"),
]

CURL = re.compile(r"^curl .*?'$(?!\n  )", re.MULTILINE | re.DOTALL)


@contextmanager
def make_run(tmp_path: Path, *variables: str) -> Iterator[tuple[int, str]]:
    """Run ``make run``. Yield the port and the output as soon as mitmdump listens."""
    port = free_port()
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["make", "run", f"PORT={port}", f"OPTIONS=--set confdir={tmp_path} --set toolsim_log=json", *variables],
            cwd=ROOT,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 60
        while "listening at" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield port, log.read_text()
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def test_make_run_prints_working_commands(tmp_path: Path) -> None:
    """The two commands that ``make run`` prints work unchanged. The first returns a call, and the second returns text
    about the output of that call.
    """
    with make_run(tmp_path) as (_, printed):
        store = tmp_path / "state/toolsim/answers.sqlite"
        ask, answer = CURL.findall(printed)
        first = json.loads(subprocess.run(["sh", "-c", ask], capture_output=True, check=True).stdout)
        message, call = first["output"]
        assert message["type"] == "message"
        assert (call["type"], call["name"]) == ("function_call", "get_weather")
        assert json.loads(call["arguments"]) == {"city": "Bonn"}
        second = json.loads(subprocess.run(["sh", "-c", answer], capture_output=True, check=True).stdout)
        assert store.exists()
        assert [item["type"] for item in second["output"]] == ["message"]
        assert "18 degrees, light rain" in second["output"][0]["content"][0]["text"]
        assert f"http://127.0.0.1:{re.findall(r':([0-9]+)/v1', ask)[0]}/v1 as the base URL" in printed


def test_make_run_with_a_backend_url(tmp_path: Path) -> None:
    """The ``BACKEND`` variable of ``make run`` can be a URL with a path. Requests that do not belong to an API are also
    sent to that backend.
    """

    async def behave(answer: Answer) -> None:
        await answer.whole(b"{}", Content_Type="application/json")

    with RawBackend() as backend:
        backend.play(behave)
        with (
            make_run(tmp_path, f"BACKEND={backend.url}/base/v1") as (port, _),
            Line(f"http://127.0.0.1:{port}") as line,
        ):
            line.post("/v1/chat/completions", {"messages": []})
            line.post("/v1/embeddings", {})
            posted = [asked.path for asked in backend.asked if asked.method == "POST"]
            assert posted == ["/base/v1/chat/completions", "/v1/embeddings"]


def refused(*variables: str) -> str:
    """Return the output of a ``make run`` that fails to start."""
    command = ["make", "-s", "run", *variables]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode
    return run.stdout


def test_make_run_explains_an_invalid_option() -> None:
    """If a variable is invalid, ``make run`` prints a single line with a hint, and no commands."""
    assert refused("BACKEND=localhost:11434") == (
        "BACKEND: got 'localhost:11434', expected scripted, codex or a URL; did you mean http://localhost:11434?\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refused(f"PORT={port}") == (
            f"PORT: cannot listen on 127.0.0.1:{port}; is it in use? Try: make run PORT={port + 1}\n"
        )


def test_make_run_names_a_model_of_the_backend(tmp_path: Path) -> None:
    """The commands that ``make run`` prints contain the name of the backend's first model, because some servers reject
    unknown names.
    """
    (tmp_path / "shows.py").write_text("import sys\nprint('started', *sys.argv[1:])\n")

    async def models(answer: Answer) -> None:
        found = {"object": "list", "data": [{"id": "org/text-1:4b", "object": "model"}, {"id": "second"}]}
        await answer.whole(json.dumps(found).encode(), Content_Type="application/json")

    async def nothing(answer: Answer) -> None:
        await answer.whole(b"There is no such page.", status=404)

    with RawBackend() as backend:
        backend.play(nothing)
        backend.play(models, path="/v1/models")
        for path, model in ("/v1", "org/text-1:4b"), ("", "org/text-1:4b"), ("/v2", "any"):
            variables = [f"PORT={free_port()}", f"MITM=python {tmp_path / 'shows.py'}", f"BACKEND={backend.url}{path}"]
            run = subprocess.run(
                ["make", "-s", "run", *variables], cwd=ROOT, capture_output=True, text=True, check=True
            )
            assert re.findall(r'"model": "(.*)"', run.stdout) == [model, model]
            assert f" --mode reverse:{backend.url} --set toolsim_upstream={backend.url}{path} " in run.stdout


def test_backends_page_has_the_printed_commands() -> None:
    """The documentation page about backends contains exactly the commands that ``make run`` prints."""
    page = (ROOT / "addon" / "docs" / "backends.md").read_text()
    recipe = (ROOT / "Makefile").read_text()
    for name in ("ASK", "ANSWER"):
        command = recipe.split(f"define {name}\n")[1].split("\nendef")[0].replace("$(PORT)", "8080")
        assert command in page
