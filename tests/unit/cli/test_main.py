"""Tests for the ``toolsim`` command: invalid command lines cause a one-line error instead of a traceback."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from toolsim.cli import main as command
from toolsim.cli.main import RENAMED, main
from toolsim.command_line import EXIT_USAGE
from toolsim.plugins import BUILTIN
from toolsim.version import __version__

URL = "http://127.0.0.1:9"

WRONG = [
    ("srve", "toolsim: no such command: srve; did you mean serve?"),
    (
        "start",
        "toolsim: no such command: start; expected one of serve, codex, launch, claude, demo, record, replay, export, "
        "doctor, options, addon-path, tune, eval",
    ),
    ("--verison", "toolsim: no such argument: --verison; did you mean --version?"),
    ("serve", "toolsim serve: URL is missing; toolsim serve --help shows the usage"),
    (
        "serve localhost:11434",
        "toolsim serve: URL: got 'localhost:11434', expected a URL such as http://127.0.0.1:11434/v1; did you mean "
        "http://localhost:11434?",
    ),
    (
        "serve no/such.gguf",
        "toolsim serve: URL: the model file 'no/such.gguf' does not exist",
    ),
    ("serve codex", "toolsim serve: URL: got 'codex', expected a URL; did you mean toolsim codex?"),
    (
        "serve ws://localhost",
        "toolsim serve: URL: got 'ws://localhost', expected a URL such as http://127.0.0.1:11434/v1",
    ),
    (
        "serve http://me:secret@localhost:8000/v1",
        "toolsim serve: URL: got http://localhost:8000/v1 with a user name or password, expected a URL "
        "without them: have clients send a key, or set toolsim_upstream_key",
    ),
    (
        "serve http://localhost:11434/api/",
        "toolsim serve: URL: got 'http://localhost:11434/api/', which is Ollama's native API, expected its "
        "OpenAI-compatible API; did you mean http://localhost:11434/v1?",
    ),
    (
        "serve --set toolsim_models=no.toml",
        "toolsim: toolsim_models: no.toml: cannot be read: No such file or directory",
    ),
    ("serve --set toolsim_model=m", "toolsim serve: URL is missing; toolsim serve --help shows the usage"),
    ("serve --config no.toml", "toolsim: --config: no.toml: No such file or directory"),
    (
        "serve http://localhost:8000/v1/responses",
        "toolsim serve: URL: got 'http://localhost:8000/v1/responses', expected a base URL, without /responses; did "
        "you mean http://localhost:8000/v1?",
    ),
    (f"serve {URL} --model m", "toolsim serve: no such argument: --model"),
    (f"serve {URL} --prot 80", "toolsim serve: no such argument: --prot; did you mean --port?"),
    (f"serve {URL} --port http", "toolsim serve: --port: got 'http', expected a port number from 0 to 65535"),
    (f"serve {URL} --port 70000", "toolsim serve: --port: got '70000', expected a port number from 0 to 65535"),
    (f"serve {URL} --port", "toolsim serve: --port: expected one argument"),
    (f"serve {URL} --set toolsim_log", "toolsim serve: --set: got 'toolsim_log', expected NAME=VALUE"),
    (
        f"serve {URL} --set backend=chat",
        "toolsim serve: --set: backend: no such option; did you mean toolsim_backend?",
    ),
    (
        f"serve {URL} --set toolsim_bakend=chat",
        "toolsim: toolsim_bakend: no such option; did you mean toolsim_backend?",
    ),
    (
        f"serve {URL} --set toolsim_backend=ollama",
        "toolsim: toolsim_backend: got 'ollama', "
        f"expected one of auto, responses, chat, messages, {', '.join(BUILTIN)}",
    ),
    (
        f"serve {URL} --set toolsim_idle_timeout=5m",
        "toolsim: toolsim_idle_timeout: got '5m', expected a whole number, 0 or more",
    ),
    (
        f"serve {URL} --set toolsim_sentinel=think",
        "toolsim: toolsim_sentinel: got 'think', expected a tag name of at most 64 letters, digits, '_', '-' or '.'",
    ),
    (f"serve {URL} --port 0 --set flow_detial=1", "toolsim: flow_detial: no such option; did you mean flow_detail?"),
    (
        f"serve {URL} --port 0 --set flow_detail=x",
        "toolsim: Failed to parse option flow_detail: not an integer: x",
    ),
    (f"serve {URL} --host 192.0.2.1", "toolsim: cannot listen on 192.0.2.1:8080 (Cannot assign requested address)"),
    (
        "codex --host 0.0.0.0",
        "toolsim: toolsim_backend=codex on 0.0.0.0 would share your login with others: set toolsim_api_key.",
    ),
    ("launch", "toolsim launch: program is missing; toolsim launch --help shows the usage"),
    ("launch cluade", "toolsim launch: no such program: cluade; did you mean claude?"),
    (f"launch codex {URL} --prot 80", "toolsim launch codex: no such argument: --prot; did you mean --port?"),
    ("demo -- http://localhost", "toolsim demo: no such argument: http://localhost"),
    ("demo http://localhost", "toolsim demo: no such argument: http://localhost"),
    ("record", "toolsim record: DIR, URL is missing; toolsim record --help shows the usage"),
    (
        "record flows scripte",
        "toolsim record: URL: got 'scripte', expected a URL such as http://127.0.0.1:11434/v1; did you mean "
        "http://scripte?",
    ),
    ("replay", "toolsim replay: paths is missing; toolsim replay --help shows the usage"),
    ("replay flows --updat", "toolsim replay: no such argument: --updat; did you mean --update?"),
    ("replay flows --model m", "toolsim: --model requires --against"),
    ("export", "toolsim export: DIR is missing; toolsim export --help shows the usage"),
    ("doctor", "toolsim doctor: URL is missing; toolsim doctor --help shows the usage"),
    (f"doctor {URL} --key-env NO_SUCH_KEY", "toolsim: --key-env: the environment variable NO_SUCH_KEY is not set"),
    ("eval --modls m", "toolsim eval: no such argument: --modls; did you mean --models?"),
    ("eval compare one", "toolsim eval compare: B is missing; toolsim eval compare --help shows the usage"),
]


@pytest.mark.parametrize(("words", "line"), WRONG, ids=[words or "nothing" for words, _ in WRONG])
def test_invalid_command_line_is_one_line(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid command line causes exit code 2 and a one-line error that states the value and the expected format."""
    if words.startswith("eval"):
        pytest.importorskip("openai", reason="needs the extra [eval]")
    try:
        code = main(words.split())
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"{line}\n")
    assert code == EXIT_USAGE


def test_missing_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """If no command is given, toolsim prints its help to standard error and exits with the code for incorrect usage."""
    assert main([]) == EXIT_USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "serve models with your Codex login" in printed.err


def test_outdated_python_is_reported_in_one_line() -> None:
    """An outdated Python version is reported before toolsim imports any module that this version cannot parse."""
    old = "import runpy, sys; sys.version_info = (3, 11, 7); runpy.run_module('toolsim', run_name='__main__')"
    run = subprocess.run([sys.executable, "-c", old], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert re.fullmatch(r"toolsim requires Python 3\.12 or newer, but this is Python [\d.]+ \(.+\)\n", run.stderr)


def test_addon_path_prints_only_the_path(capsys: pytest.CaptureFixture[str]) -> None:
    """``toolsim addon-path`` prints only a path, so that users can write ``mitmdump -s $(toolsim addon-path)``."""
    assert main(["addon-path"]) == 0
    assert Path(capsys.readouterr().out.removesuffix("\n")).name == "toolsim.py"


def test_port_in_use_is_reported_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    """If a port is in use, the error suggests the next port, together with the argument that selects it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["demo", "--port", str(port)]) == EXIT_USAGE
        printed = f"cannot listen on 127.0.0.1:{port} (Address already in use); use another port: --port {port + 1}\n"
        assert capsys.readouterr().err == f"toolsim: {printed}"
        assert main(["demo", "--port", "0", "--web", "--set", f"web_port={port}"]) == EXIT_USAGE
        assert f"use another port: --set web_port={port + 1}\n" in capsys.readouterr().err


def test_eval_help_needs_no_openai_package() -> None:
    """``toolsim eval --help`` works without the openai package, because it is imported only when a model is queried."""
    code = (
        "import sys; sys.modules['openai'] = None\n"
        "from toolsim.cli.main import main\n"
        "sys.argv = ['toolsim', 'eval', '--help']; main()"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--models" in shown.stdout


def test_missing_package_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a package is missing, the error is one line with the command to install it."""
    monkeypatch.setitem(sys.modules, "toolsim.eval.command", None)
    monkeypatch.delattr("toolsim.eval.command", raising=False)
    assert main(["eval"]) == EXIT_USAGE
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("toolsim requires the package ")
    assert f"{sys.executable} -m pip install" in line


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"toolsim {__version__}\n"


def test_every_command_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    for name in ("serve", "codex", "launch", "claude", "demo", "record", "replay", "doctor", "eval"):
        assert f"    {name} " in shown


def test_claude_prints_its_variables(capsys: pytest.CaptureFixture[str]) -> None:
    """``toolsim claude`` prints the environment variables that connect Claude Code to a running toolsim."""
    assert main(["claude", "--port", "9"]) == 0
    variables = "ANTHROPIC_BASE_URL=http://127.0.0.1:9 ANTHROPIC_AUTH_TOKEN=none ENABLE_TOOL_SEARCH=true"
    assert f"{variables} claude" in capsys.readouterr().out


def test_record_is_serve_with_an_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``record DIR URL`` starts the same server as ``serve URL``, with the additional ``toolsim_capture`` option."""
    started = []
    monkeypatch.setattr("toolsim.cli.serve.run", lambda start: started.append(start) or 0)
    assert main(["record", str(tmp_path), "scripted", "--port", "9", "--set", "toolsim_log=off"]) == 0
    [start] = started
    assert (start.backend, start.port) == ("scripted", 9)
    assert start.settings == ("toolsim_log=off", f"toolsim_capture={tmp_path}")
    assert command.EXIT_INTERRUPTED == 130


@pytest.mark.parametrize(("old", "new"), list(RENAMED.items()))
def test_renamed_command_still_works(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command still works under its old name, and one line on standard error states the new name."""
    for name, line in ((old, f"toolsim {old}: this command is now called {new}\n"), (new, "")):
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        printed = capsys.readouterr()
        assert printed.out.startswith(f"usage: toolsim {new} ")
        assert printed.err == line
