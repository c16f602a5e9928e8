"""Tests for the one-line errors that are printed for incorrect command lines and missing packages."""

from __future__ import annotations

import sys
import tomllib

import pytest
from support.mitmdump import ROOT
from toolsim.command_line import REQUIREMENTS, Parser, UsageError, key_of, missing, nearest


def parser() -> Parser:
    made = Parser(prog="tool")
    commands = made.add_subparsers(metavar="command", required=True, parser_class=Parser)
    serve = commands.add_parser("serve")
    serve.add_argument("url", metavar="URL")
    serve.add_argument("--port", type=int)
    commands.add_parser("record")
    return made


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "tool: command is missing; tool --help shows the usage"),
        ("srve", "tool: no such command: srve; did you mean serve?"),
        ("xyz", "tool: no such command: xyz; expected one of serve, record"),
        ("serve", "tool serve: URL is missing; tool serve --help shows the usage"),
        ("serve u --prot=80", "tool serve: no such argument: --prot=80; did you mean --port?"),
        ("serve u --port x", "tool serve: --port: invalid int value: 'x'"),
        ("serve u --po 1", "tool serve: no such argument: --po; did you mean --port?"),
        ("serve u v", "tool serve: no such argument: v"),
    ],
)
def test_invalid_argument_is_reported_in_one_line(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error for an incorrect command line quotes the invalid argument and, if possible, suggests the closest match.
    The exit code indicates incorrect usage.
    """
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(words.split())
    assert capsys.readouterr().err == f"{line}\n"


def test_closest_word_is_suggested() -> None:
    """The closest word is suggested, regardless of case. If no word is similar, there is no suggestion."""
    assert nearest("SERV", ["serve", "record"]) == "; did you mean serve?"
    assert nearest("xyz", ["serve", "record"]) == ""


def test_invalid_key_is_rejected_without_printing_it() -> None:
    """Whitespace around an API key is removed. If the key contains invalid characters, the error does not show the
    key.
    """
    assert key_of("") == ""
    assert key_of("KEY", {"KEY": " k\n"}) == "k"
    with pytest.raises(UsageError, match="the environment variable KEY is not set"):
        key_of("KEY", {"KEY": " "})
    for key in ("k\nsecret", "k€secret"):
        with pytest.raises(UsageError, match=r"^--key-env: KEY contains characters that are invalid in a key$"):
            key_of("KEY", {"KEY": key})


def test_missing_packages_and_interpreter_are_named() -> None:
    """If packages are missing, the error names the Python interpreter and one missing package. The install command also
    includes other packages that are probably missing.
    """
    line, python = missing(ModuleNotFoundError(name="jsonschema.exceptions")), sys.executable
    assert line.startswith(
        f"toolsim requires the package jsonschema, which is not installed for {python}: {python} -m pip"
    )
    assert all(f"'{requirement}'" in line for requirement in REQUIREMENTS)
    assert "'openai>=3,<4' 'rich" in missing(ModuleNotFoundError(name="openai"))
    assert missing(ModuleNotFoundError(name="other")).endswith("-m pip install other")


def test_requirements_match_pyproject() -> None:
    """``REQUIREMENTS`` equals the dependencies in pyproject.toml. They are duplicated because the addon cannot read
    that file.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(REQUIREMENTS) == sorted(line for line in project["dependencies"] if not line.startswith("mitmproxy"))
