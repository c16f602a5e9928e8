"""Tests for the output of ``toolsim options``."""

from __future__ import annotations

from pathlib import Path

import pytest
from toolsim.cli.main import main
from toolsim.proxy.options.table import OPTIONS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["options", *words]) == 0
    return capsys.readouterr().out


def test_all_options_are_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option is printed with its value and its complete help. Lines of help are at most 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(capsys)
    words = " ".join(text.split())
    for option in OPTIONS:
        assert f"{option.full_name} = " in text
        assert " ".join(option.help.split()) in words
    assert max(len(line) for line in text.splitlines() if line.startswith("  ")) <= 80
    assert "(default:" not in text


def test_search_word_selects_options(capsys: pytest.CaptureFixture[str]) -> None:
    """A search word selects the options whose names contain it. If no name contains the word, it selects the options
    whose help contains it.
    """
    for word in ("store", "toolsim_STORE"):
        assert [line.split()[0] for line in printed(capsys, word).splitlines() if " = " in line] == ["toolsim_store"]
    assert "toolsim_store = " in printed(capsys, "redis")


def test_current_values(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Current values are read from the command line, the settings file, mitmproxy's configuration and the
    environment.
    """
    (home / ".mitmproxy").mkdir()
    (home / ".mitmproxy" / "config.yaml").write_text("toolsim_max_rounds: 3\n")
    file = home / "toolsim.toml"
    file.write_text('backend = "http://127.0.0.1:9"\ntoolsim_retry = 1\ntoolsim_log = "off"\n')
    monkeypatch.setenv("PROXY_STOP_AFTER_TOOLS", "on")
    line = ("--config", str(file), "--set", "toolsim_retry=2", "--set", "toolsim_cors_origins=*")
    text = printed(capsys, *line)
    for shown in (
        "toolsim_retry = 2  (default: 0)",
        "toolsim_log = off  (default: text)",
        "toolsim_max_rounds = 3  (default: ",
        "toolsim_cors_origins = *  (default: ",
        "toolsim_stop_after_tools = on  (default: auto)",
    ):
        assert shown in text


def test_line_breaks_are_printed_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    r"""A line break in a value is printed as ``\n``, so the value remains on one line."""
    text = printed(capsys, "tool_block_delimiter", "--set", "toolsim_tool_block_delimiter=\n---\n")
    assert text.splitlines()[0] == r"toolsim_tool_block_delimiter = \n---\n  (default: \n)"


def test_keys_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """API keys, and the password in a store's URL, are not printed."""
    values = {"api_key": "s3cret", "upstream_key": "s3cret", "store": "redis://:s3cret@host:6379"}
    given = [word for name, value in values.items() for word in ("--set", f"toolsim_{name}={value}")]
    text = printed(capsys, *given)
    assert "s3cret" not in text
    assert "toolsim_api_key = (set)  (default: empty)" in text
    assert "toolsim_store = redis://host:6379" in text


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("stroe", "toolsim: no option contains 'stroe'; did you mean toolsim_store?\n"),
        ("retry --set toolsim_retry=x", "toolsim: toolsim_retry: got 'x', expected a whole number, 0 or more\n"),
        ("retry --set toolsim_rety=1", "toolsim: toolsim_rety: no such option; did you mean toolsim_retry?\n"),
    ],
)
def test_invalid_words_are_one_line_errors(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", *words.split()]) == 2
    assert capsys.readouterr().err == line
