from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsimlib.response.begun import Continuation

CUT = '<tool_call>{"name":"f","arguments":{"a":"Bo'


def joined(begun: str, text: str, size: int = 1) -> str:
    """Return the result if the text arrives in pieces."""
    joins = Continuation(begun)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    return "".join([*map(joins.join, pieces), joins.end()])


@pytest.mark.parametrize(
    ("begun", "text", "read"),
    [
        (CUT, 'nn"}}</tool_call>', CUT + 'nn"}}</tool_call>'),
        (CUT, ' nn"}}', CUT + ' nn"}}'),
        (CUT, "", CUT),
        (CUT, "<tool_call>\n{}", "<tool_call>\n{}"),
        (CUT, "\n <tool_call>{}", "\n <tool_call>{}"),
        (CUT, "<tool", CUT + "<tool"),
        (CUT, "<b>", CUT + "<b>"),
        ('{"name":"f","argu', 'ments":{}}', '{"name":"f","arguments":{}}'),
        ('{"name":"f","argu', '{"name":"f","arguments":{}}', '{"name":"f","arguments":{}}'),
    ],
)
def test_a_call_is_continued_or_started_over(begun: str, text: str, read: str) -> None:
    """Text that starts like the call replaces it; anything else continues it, at the exact character."""
    for size in (1, 3, 100):
        assert joined(begun, text, size) == read


@given(st.text(min_size=1), st.text(), st.integers(1, 9))
def test_nothing_is_lost_wherever_it_is_cut(begun: str, text: str, size: int) -> None:
    """All of the text is read, once, with or without the call's beginning before it."""
    whole = joined(begun, text, max(len(text), 1))
    assert joined(begun, text, size) == whole
    assert whole in (text, begun + text)
