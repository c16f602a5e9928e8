"""Tests for the progress output of an evaluation."""

from __future__ import annotations

import sys

import pytest
from toolsim.eval.case import Case, Verdict
from toolsim.eval.measure import Job
from toolsim.eval.progress import Progress, _turn
from toolsim.eval.runtime.turn import Send

from .runs import run


async def play(send: Send) -> Verdict:
    return Verdict.passed()


def shown(capsys: pytest.CaptureFixture[str], verbosity: int, *, quiet: bool = False) -> str:
    wrong = run(ok=False, detail="nothing [bold]was[/bold] called")
    job = Job(wrong.cell, Case("scenarios", "happy_path", play), 0, {})
    with Progress(1, verbosity, quiet=quiet) as progress:
        progress(job, None)
        progress(job, wrong)
    return capsys.readouterr().err


def test_verbosity_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, verbosity 1 prints a line for each run, and verbosity 2 also prints the reason for a failure.
    ``quiet`` suppresses both.
    """
    assert shown(capsys, 0) == ""
    assert "scenarios happy_path · qwen · default · toolsim · chat: WRONG no_call" in shown(capsys, 1)
    assert "nothing [bold]was[/bold] called" in shown(capsys, 2)
    assert shown(capsys, 2, quiet=True) == ""


def test_terminal_shows_a_live_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, the number of runs and the rate are shown in a line that is updated in place. Markup in a model's
    text is escaped.
    """
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    text = shown(capsys, 2)
    assert "1/1" in text
    assert "0 % correct" in text
    assert "[bold]was[/bold]" in text


def test_turn_line_shows_its_result() -> None:
    """The progress line for a turn ends with the calls, the length of the text, or the error. At verbosity 2, it also
    states the sizes of the messages and tools.
    """
    sizes = {"messages": 1200, "tools": 34}
    called = {
        "answer": {"text": "", "calls": [{"name": "f"}, {"name": "g"}]},
        "tools": ["f"],
        "sizes": sizes,
        "ms": 500,
    }
    assert _turn(1, called, with_sizes=False) == "turn 1, 0.5 s: calls f, g"
    assert _turn(1, called, with_sizes=True).endswith("; messages 1,200 characters, 1 tools 34 characters")
    assert (
        _turn(2, {"answer": {"text": "Hello", "calls": []}}, with_sizes=True) == "turn 2, 0.0 s: 5 characters of text"
    )
    assert _turn(3, {"error": {"message": "busy"}}, with_sizes=True) == "turn 3, 0.0 s: busy"
    assert _turn(4, {}, with_sizes=False) == "turn 4, 0.0 s: no answer"


def test_verbose_shows_the_turns_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """At verbosity 1 and above, the turns of each run are shown."""
    assert "turn 1, 0.1 s: calls state_get" in shown(capsys, 1)
    assert "turn 1" not in shown(capsys, 0)
