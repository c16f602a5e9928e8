from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.response.faults import Continuation
from toolsim.response.sentinel import Sentinel

CUT = '<tool_call>{"name":"f","arguments":{"a":"Bo'


class Recorder:
    """A parser that returns all text unchanged."""

    in_block, open_size = False, 0

    def feed(self, text: str) -> list[str]:
        return [text]

    def release(self) -> list[str]:
        return []

    def finish(self, *, cut: bool = False) -> list[str]:
        return []


def joined(begun: str, text: str, size: int = 1) -> str:
    """Return the text that the inner parser receives if ``text`` continues the partial call in chunks of ``size``
    characters.
    """
    parser = Continuation(Recorder(), begun)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    found = [piece for part in pieces for piece in parser.feed(part)]
    return "".join([*map(str, found), *map(str, parser.finish())])


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
def test_partial_call_is_continued_or_replaced(begun: str, text: str, read: str) -> None:
    """If the continuation starts a new call, the new call replaces the partial call. Any other text is appended to the
    partial call.
    """
    for size in (1, 3, 100):
        assert joined(begun, text, size) == read


@given(st.text(min_size=1), st.text(), st.integers(1, 9))
def test_all_text_is_parsed_once_at_any_split(begun: str, text: str, size: int) -> None:
    """All text of a continuation is parsed exactly once, either alone or after the partial call, wherever it
    is split.
    """
    whole = joined(begun, text, max(len(text), 1))
    assert joined(begun, text, size) == whole
    assert whole in (text, begun + text)


def test_possible_opening_tag_is_held_back() -> None:
    """Text that might be the beginning of an opening tag is held back until more text shows whether it is.
    ``open_size`` includes the text from the earlier round.
    """
    parser = Continuation(Sentinel(), CUT)
    assert parser.in_block
    assert parser.open_size == len(CUT)
    assert parser.feed("<tool") == []
    assert parser.open_size == len(CUT) + 5
    assert parser.feed("x") == []
    assert (parser.in_block, parser.open_size) == (True, len(CUT) + 6)
    assert parser.finish() == ["<tool_call>", CUT[11:] + "<toolx"]
