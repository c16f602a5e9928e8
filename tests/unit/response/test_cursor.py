from __future__ import annotations

import re

from toolsim.response.prose import Cursor

DIGITS = re.compile(r"\d*+")


def test_text_is_taken_piece_by_piece() -> None:
    """It is consumed until none is left."""
    at = Cursor()
    assert (at.is_spent, at.char) == (True, "")
    at.feed("abc")
    assert at.take(2) == "ab"
    assert (at.is_spent, at.char) == (False, "c")
    assert at.take(3) == "c"
    assert (at.is_spent, at.char) == (True, "")


def test_what_was_waited_for_stands_before_what_follows() -> None:
    """A waiting reader gets nothing, even if there is text; any new text, even empty, ends the wait."""
    at = Cursor()
    for more in ("b", ""):
        at.feed("xa")
        at.take(1)
        at.wait()
        assert at.is_spent
        at.feed(more)
        assert at.take(len(at.text)) == f"a{more}"


def test_patterns_match_at_the_position_alone() -> None:
    """If a pattern does not match, nothing is consumed."""
    at = Cursor()
    at.feed("12a3")
    assert (at.end_of(DIGITS), at.skip(DIGITS), at.skip(DIGITS)) == (2, "12", "")
    assert at.end_of(re.compile("3")) == at.pos == 2
