"""Statements around calls in a fenced code block."""

from __future__ import annotations

import pytest
from support.each import each
from toolsim.response.opening import Statement


@each(
    ("text", "rest", "is_open"),
    [
        ("f(1)", "f(1)", False),
        ("print(f(1))", "f(1))", True),
        ("print (  f(1))", "f(1))", True),
        ("x = f(1)", "f(1)", False),
        ("x=f(1)", "f(1)", False),
        ("default_api.f(1)", "f(1)", False),
        ("print(default_api.f(1))", "f(1))", True),
        ("x = default_api.f(1)", "f(1)", False),
        ("import x", "import x", False),
        ("printed(f(1))", "printed(f(1))", False),
        ("x == f(1)", "= f(1)", False),
        ("{}", "{}", False),
    ],
)
def test_what_stands_before_a_call(text: str, rest: str, is_open: bool) -> None:
    """A print and an assignment are skipped, at any cut; anything else is left to the parser of calls."""
    whole = Statement()
    end = whole.before(text, 0, final=False)
    assert end is not None
    assert (text[end:], whole.is_open) == (rest, is_open)
    for cut in range(1, len(text)):
        assert Statement().before(text[:cut], 0, final=False) in (None, end)


def test_what_stands_behind_a_call() -> None:
    """A parenthesis closes a print that is open, and no other."""
    statement = Statement()
    assert statement.behind(")", 0) == 0
    assert statement.before("print(f)", 0, final=True) == 6
    assert statement.behind(" )", 1) == 2
    assert not statement.is_open


@pytest.mark.parametrize("text", ["x", "print", "print(", "x =", "default", "x = default_api."])
def test_the_end_of_the_text(text: str) -> None:
    """A statement without a call is left where it begins, within the text."""
    assert Statement().before(text, 0, final=False) is None
    end = Statement().before(text, 0, final=True)
    assert end is not None
    assert end < len(text)
