"""Tests for the ``toolsim`` command, run as a real process from an installation that follows the README."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import TOOLSIM, environment, log_lines, running, wait_for
from support.line import Line
from support.mitmdump import ADDON, ROOT
from support.raw_backend import Answer, RawBackend, stream_of
from toolsim.command_line import EXIT_PIPE

pytestmark = pytest.mark.slow

CALL = '<tool_call>{"name":"get_weather","arguments":{"city":"Bonn"}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
ASK = {"model": "m", "messages": [{"role": "user", "content": "What is the weather in Bonn?"}], "tools": [TOOL]}


def test_demo(tmp_path: Path) -> None:
    """Each turn in the demo has the intended result, and the log contains only these turns."""
    command = [*TOOLSIM, "demo", "--once", "--port", "0"]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    over, responses = "toolsim-scripted · chat", "toolsim-scripted · responses"
    lines = log_lines(run.stdout)
    assert lines[4] == (
        f"  stored conversations  in {tmp_path}/.local/state/toolsim/answers.sqlite, for 30 days; "
        "to disable storage: --set toolsim_store="
    )
    assert lines[6:-1] == [
        f"✓ {over} stream over responses · 2 calls get_weather, get_weather · ",
        f"✓ {over} stream over responses · no call, 2 tools · ",
        f"✓ {responses} · no call, 2 tools · ",
        f"✓ {over} stream over responses · no tools · ",
        f"✓ {responses} stream · 1 call search_notes · ",
        f"✓ {responses} stream · 1 call get_weather · ",
        f"⚠ {over} over responses · 1 call get_weather · SCHEMA_MISMATCH get_weather: /: lacks city · ",
        f"✓ {over} stream over responses · 1 call get_weather · repaired get_weather · ",
        f"⚠ {over} stream over responses · 1 call get_weather · SCHEMA_MISMATCH get_weather: /city: got number, "
        "expected string · ",
        f"✗ {responses} · SCHEMA_MISMATCH get_weather: /city: got number, expected string · ",
        f"⚠ {over} stream over responses · no call, 2 tools · UNKNOWN_TOOL get_weather_of_another_client · ",
        f"✗ {over} over responses · HTTP 429 Rate limit reached, as requested by the stage direction [429]. · ",
        f"✗ {responses} stream · backend_truncated · ",
        f"✓ {responses} stream · 1 call get_weather · ",
    ]
    assert lines[-1].startswith("played 14 turns. Now try it yourself: base URL http://127.0.0.1:")
    assert run.stderr == ""


@pytest.mark.ci
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words",
    ["demo --port 0", "demo --port 0 --web --set web_open_browser=false --set web_port=0", f"replay {ROOT / 'flows'}"],
)
def test_closed_output(words: str, unbuffered: str, tmp_path: Path) -> None:
    """If the output of a ``toolsim`` command is closed, as by ``head``, the command exits without a traceback. Output
    lines are not buffered.
    """
    process = subprocess.Popen(
        [*TOOLSIM, *words.split()],
        cwd=tmp_path,
        env=environment(tmp_path) | {"PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == EXIT_PIPE


def test_serve(tmp_path: Path) -> None:
    """``toolsim serve`` uses the path in the backend's URL, and its banner names the model that the backend offers."""

    async def behave(answer: Answer) -> None:
        if answer.asked.path.endswith("/models"):
            await answer.whole(b'{"data": [{"id": "llama3"}]}', Content_Type="application/json")
        else:
            await stream_of(CALL)(answer)

    with RawBackend() as backend:
        backend.play(behave)
        with running(tmp_path, "serve", f"{backend.url}/base/v1") as (url, log), Line(url) as line:
            wait_for(log, r"models: llama3\n")
            assert b'"tool_calls"' in line.post("/v1/chat/completions", {**ASK, "stream": True}).body
            assert {asked.path for asked in backend.asked} == {"/base/v1/models", "/base/v1/chat/completions"}
            wait_for(log, "✓ m · chat stream · 1 call get_weather")
            assert line.request("GET", "/toolsim/metrics").status == 200


def test_serve_with_backend_down(tmp_path: Path) -> None:
    """``toolsim serve`` starts even if the backend is down. The banner and each turn then report that the backend is
    down.
    """
    with running(tmp_path, "serve", "http://127.0.0.1:9") as (url, log), Line(url) as line:
        wait_for(log, r"cannot list the backend's models: the connection was refused")
        assert line.post("/v1/chat/completions", ASK).status == 502
        wait_for(log, r"✗ m · chat · HTTP 502 The backend did not answer: .*")


def test_serve_in_a_browser(tmp_path: Path) -> None:
    """With ``--web``, the banner contains mitmweb's address, and mitmweb shows the turns."""
    web = ("--set", "web_port=0", "--set", "web_open_browser=false")
    with running(tmp_path, "demo", "--web", *web) as (_, log):
        wait_for(log, r"turns in a browser +http://127\.0\.0\.1:\d+/\?token=\w+")
        wait_for(log, "✓ toolsim-scripted · chat stream over responses · 2 calls")


def test_missing_codex(tmp_path: Path) -> None:
    """If Codex is missing, ``toolsim codex`` exits with a single line that explains how to install Codex."""
    command = [*TOOLSIM, "codex", "--port", "0", "--set", "toolsim_codex_command=no-such-codex app-server"]
    run = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    [line] = log_lines(run.stdout)
    assert line.startswith("Cannot run `no-such-codex` (No such file or directory): install Codex (npm install -g")


def test_record_and_replay(tmp_path: Path) -> None:
    """A recorded exchange can be replayed with the same result."""
    folder = tmp_path / "flows"
    with running(tmp_path, "record", str(folder), "scripted") as (url, log), Line(url) as line:
        line.post("/v1/chat/completions", ASK)
        wait_for(log, "✓ m · chat over responses")
    replayed = [*TOOLSIM, "replay", str(folder)]
    run = subprocess.run(replayed, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout.splitlines()[-1]) == (0, "1 recorded exchange, none differ"), run.stderr


@pytest.mark.parametrize(
    ("prelude", "line"),
    [
        (
            "import sys; sys.modules['jsonschema'] = None",
            r"toolsim requires the package jsonschema, which is not installed for \S+: "
            r"\S+ -m pip install 'brotli>=1\.2' .*",
        ),
        (
            "import mitmproxy.version; mitmproxy.version.VERSION = '11.1.3'",
            r"toolsim needs mitmproxy>=12\.2\.1,<13, and this is mitmproxy 11\.1\.3 \(.*\)",
        ),
    ],
    ids=["package", "version"],
)
@pytest.mark.parametrize("program", ["mitmdump", "mitmweb"])
def test_unsuitable_mitmproxy_does_not_start(program: str, prelude: str, line: str, tmp_path: Path) -> None:
    """If mitmproxy is too old or lacks a package, toolsim does not start, and one line states what to install."""
    code = f"{prelude}\nfrom mitmproxy.tools.main import {program}\n{program}()"
    command = [sys.executable, "-c", code, "-s", str(ADDON), "--listen-host", "127.0.0.1", "--listen-port", "0"]
    if program == "mitmweb":
        command += ["--no-web-open-browser", "--web-port", "0"]
    run = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert [each for each in log_lines(run.stdout) if re.fullmatch(line, each)], run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr


def test_make_demo_passes_its_options() -> None:
    """``make demo`` passes the given port and options to the demo."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    words = ["make", "-n", "--no-print-directory", "demo", "PORT=9000", "OPTIONS=--once"]
    shown = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == ".venv/bin/toolsim demo --port 9000 --once"
