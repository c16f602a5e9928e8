"""Tests for the replies that toolsim sends to the model about faulty answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from toolsim.pages.read_prompt import is_error_record
from toolsim.response.retry import CUT_OFF, NO_CALL, Fault, Retry
from toolsim.rounds.round_planner import NOTHING, reply_to, words_of


def retry(reason: str, words: str = "x", name: str | None = None, expected: str = "a call") -> Retry:
    return Retry(Fault(reason, expected, name), words, ())


def test_reply_depends_on_the_fault() -> None:
    """Depending on the fault, toolsim's reply to the model requests a new call, the rest of a call, or the call that is
    missing.
    """
    fault = retry("SCHEMA_MISMATCH", name="f", expected="arguments; /days: got string, expected integer")
    record, instruction = reply_to(fault, called=False).split("\n")
    assert record == (
        '[function_call_error reason=SCHEMA_MISMATCH name=f expected="arguments; /days: got string, expected integer"]'
    )
    assert "again from its beginning" in instruction
    assert "do not repeat" not in instruction
    assert "do not repeat" in reply_to(fault, called=True)
    assert "Go on" in reply_to(retry(CUT_OFF), called=True)
    assert "do not repeat" not in reply_to(retry(CUT_OFF), called=True)
    assert "as one JSON object" in reply_to(retry("ANSWER_MISMATCH"), called=False)
    assert "Call a tool now" in reply_to(retry(NO_CALL), called=False)


def test_empty_answer_is_shown_as_text() -> None:
    """An empty answer is shown to the model as "(no answer)". Otherwise, toolsim's reply would directly follow the
    user's text.
    """
    assert words_of(retry(NO_CALL, " \n")) == NOTHING
    assert words_of(retry(NO_CALL, " well ")) == " well "


@given(st.text(), st.text())
def test_record_stays_on_one_line(name: str, expected: str) -> None:
    """The error record is always a single line, regardless of the tool name and the expectation that it contains."""
    lines = reply_to(retry("UNKNOWN_TOOL", name=name, expected=expected), called=False).splitlines()
    assert len(lines) == 2
    assert is_error_record(lines[0])
