"""Tests for the settings file, whose values act like command-line arguments but have lower precedence."""

from __future__ import annotations

from pathlib import Path

import pytest
from toolsim.cli.config import with_config_file
from toolsim.cli.main import main, parser
from toolsim.command_line import EXIT_USAGE, UsageError

FULL = """\
backend = "http://127.0.0.1:11434/v1"
host = "::1"
port = 9000
web = true
# Options, ours and mitmproxy's.
toolsim_retry = 1
toolsim_cors_origins = ["app://obsidian.md", "https://example.com"]
ssl_insecure = true
flow_detail = 0
"""


def parsed(tmp_path: Path, text: str, line: str) -> dict[str, object]:
    """Parse the command line ``line`` with a settings file that contains ``text``, and return the arguments."""
    file = tmp_path / "toolsim.toml"
    file.write_text(text)
    words = [word.replace("FILE", str(file)) for word in line.split()]
    args = parser().parse_args(with_config_file(words, parser().parse_args(words), file))
    return {name: value for name, value in vars(args).items() if name not in ("command", "config")}


def test_file_becomes_a_command_line(tmp_path: Path) -> None:
    """Each name in the settings file becomes an argument or an option. Each item of a list becomes a separate
    ``--set``.
    """
    assert parsed(tmp_path, FULL, "serve --config FILE") == {
        "backend": "http://127.0.0.1:11434/v1",
        "host": "::1",
        "port": 9000,
        "web": True,
        "set": [
            "toolsim_retry=1",
            "toolsim_cors_origins=app://obsidian.md",
            "toolsim_cors_origins=https://example.com",
            "ssl_insecure=true",
            "flow_detail=0",
        ],
    }


def test_launch_arguments_are_inserted_after_the_program(tmp_path: Path) -> None:
    """For ``toolsim launch``, the arguments from the settings file are inserted after the program's name."""
    found = parsed(tmp_path, FULL, "launch codex --config FILE --port 1")
    assert (found["agent"], found["backend"], found["port"]) == ("codex", "http://127.0.0.1:11434/v1", 1)


def test_command_line_overrides_the_file(tmp_path: Path) -> None:
    """An option on the command line replaces the value in the settings file, even if the value is a list."""
    line = "serve http://localhost:1/v1 --config=FILE --port 1 --set toolsim_cors_origins=* --set flow_detail=2"
    found = parsed(tmp_path, FULL, line)
    assert (found["backend"], found["host"], found["port"]) == ("http://localhost:1/v1", "::1", 1)
    assert found["set"] == [
        "toolsim_retry=1",
        "ssl_insecure=true",
        "toolsim_cors_origins=*",
        "flow_detail=2",
    ]


def test_one_file_works_for_all_commands(tmp_path: Path) -> None:
    """One settings file works for all commands. ``codex`` ignores the file's backend, and ``record`` prefers the
    backend on the command line.
    """
    assert "backend" not in parsed(tmp_path, FULL, "codex --config FILE")
    assert parsed(tmp_path, FULL, "record flows --config FILE scripted")["backend"] == "scripted"


WRONG = {
    "not TOML": ("port = \n", r"toolsim.toml is not TOML: Invalid value \(at line 1, column 8\)"),
    "a type": ('\nport = "80"', r"toolsim.toml:2: port: got '80', expected a whole number"),
    "true is no number": ("port = true", r"toolsim.toml:1: port: got True, expected a whole number"),
    "an option's type": ("toolsim_retry = 'x'", r"toolsim.toml:1: toolsim_retry: got 'x', expected a whole number"),
    "a choice": (
        "flow_detail = 1\ntoolsim_log = 'loud'",
        r"toolsim.toml:2: toolsim_log: got 'loud', expected one of text, json, off",
    ),
    "a date": ("x = 2026-01-01", r"toolsim.toml:1: x: got datetime.date.*, expected a string, a whole number"),
    "a table": ("\n[toolsim]\nlog = 'off'", r"toolsim.toml:2: toolsim: got a table, expected an option"),
    "a typo": (
        "\ntoolsim_bakend = 'chat'",
        r"toolsim.toml:2: toolsim_bakend: no such option; did you mean toolsim_backend\?",
    ),
    "a typo in an argument": ("prt = 80", r"toolsim.toml:1: prt: no such option; did you mean port\?"),
    "without the prefix": ("retry = 1", r"toolsim.toml:1: retry: no such option; did you mean toolsim_retry\?"),
}


@pytest.mark.parametrize(("text", "line"), WRONG.values(), ids=WRONG)
def test_mistakes_are_reported_with_their_line(text: str, line: str, tmp_path: Path) -> None:
    """The error for a mistake in the settings file gives the file name, the line, the value and the expected format."""
    with pytest.raises(UsageError, match=line):
        parsed(tmp_path, text, "serve --config FILE")


def test_unknown_option_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown option in the settings file causes the same error as on the command line."""
    file = tmp_path / "toolsim.toml"
    file.write_text("flow_detial = 1\nport = 0\nbackend = 'http://localhost:1'")
    assert main(["serve", "--config", str(file)]) == EXIT_USAGE
    assert capsys.readouterr().err == "toolsim: flow_detial: no such option; did you mean flow_detail?\n"
