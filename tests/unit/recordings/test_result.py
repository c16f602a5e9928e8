"""Tests for the output of a replay, which consists of one line for each file, followed by its differences."""

from __future__ import annotations

from pathlib import Path

from toolsim.recordings.compare import Difference
from toolsim.recordings.result import MAX_SHOWN, Result

FILE = Path("a.flow")


def test_result_is_printed() -> None:
    """A result is printed as "same", as a problem, or as its first differences and the number of further
    differences.
    """
    assert (str(Result(FILE)), Result(FILE).same) == ("a.flow: same", True)
    assert str(Result(FILE, note="only so far")) == "a.flow: same (only so far)"
    assert (str(Result(FILE, problem="no such file")), Result(FILE, problem="x").same) == (
        "a.flow: no such file",
        False,
    )
    one = Result(FILE, (Difference("x", 1, 2),))
    assert (str(one), one.same) == ("a.flow: 1 difference\n  x: got 1, expected 2", False)
    many = str(Result(FILE, (Difference("x", 1, 2),) * (MAX_SHOWN + 3))).splitlines()
    assert (many[0], len(many), many[-1]) == (f"a.flow: {MAX_SHOWN + 3} differences", MAX_SHOWN + 2, "  and 3 more")
