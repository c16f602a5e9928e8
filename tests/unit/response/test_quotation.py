"""Tests for tagged calls that an answer only quotes, in inline code or in Markdown block quotations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from support.growth import LINEAR, growth
from support.turns import CALL, chat, run_events
from toolsim.core.events import CallStarted, Closed, Finished, ReasoningDelta
from toolsim.response.quotation import Quotation
from toolsim.response.segments import Block, Fragment, Segment, joined
from toolsim.response.sentinel import Sentinel

A, B = '<tool_call>{"name":"a"}</tool_call>', '<tool_call>{"name":"b`"}</tool_call>'
TEXT = [
    f"`{A}`",
    f"Write `{A}` to call it.",
    f"Write ``{A}`` to call it, or `x`.",
    f"```{A}```",
    f"`` ` {A} ``",
    f"`{A} and {B}`",
    f"`x` and `{A}`",
    f"> {A}",
    f"  > {A}\nno more",
    f">{A}{B}",
    f"It says:\n> **{A}**",
    "> <function=a>\n> <parameter=x>\n> 1\n> </parameter>\n> </function>",
    '`<|python_tag|>{"name": "a"}`',
]
CALLS = [
    (A, 1),
    (f"`x` {A}", 1),
    (f"5` {A}", 1),
    (f"5` {A}\n`", 1),
    (f"``{A}`", 1),
    (f"`{A}``", 1),
    (f"`\n{A}`", 1),
    (f"```\n{A}\n```", 1),
    (f"```xml\n{A}\n```\n", 1),
    (f"1 > 0 {A}", 1),
    (f"> It says so.\n{A}", 1),
    (f"> It says so.\n\n{A}{B}", 2),
    (f"`x {A} {B}", 2),
    (f"`{A}` {B}", 1),
    (f"`{A}`\n{B}", 1),
    (f"{A}`{B}`", 1),
    (f"`{A}`{A}`", 1),
    (f"` {A}{'x' * 5000}`", 1),
    (f"` {A * 40}`", 40),
]


def parser(*, fragments: bool = False) -> Quotation:
    return Quotation(Sentinel(foreign=True, limit=1000, fragments=fragments))


def pieces_of(text: str, size: int = 0, *, fragments: bool = False) -> list[Segment]:
    quotation = parser(fragments=fragments)
    pieces: list[Segment] = []
    for at in range(0, len(text), size or len(text) or 1):
        pieces += quotation.feed(text[at : at + (size or len(text))])
    pieces += quotation.finish()
    assert not quotation.in_block
    return list(joined(piece for piece in pieces if not isinstance(piece, Fragment)))


@each("text", TEXT)
def test_quoted_call_is_text(text: str) -> None:
    """A quoted call remains text, wherever the text is split."""
    for size in (0, 1, 2, 3, 7):
        assert pieces_of(text, size) == [text]


@each(("text", "calls"), CALLS)
def test_unclosed_marks_and_fences_do_not_quote(text: str, calls: int) -> None:
    """A call does not count as quoted if the backtick before it has no closing backtick. A code fence does not quote a
    call either.
    """
    for size in (0, 1, 2, 3, 7):
        pieces = pieces_of(text, size)
        assert len([piece for piece in pieces if isinstance(piece, Block)]) == calls
        assert "".join(piece if isinstance(piece, str) else piece.raw for piece in pieces) == text


@given(st.lists(st.sampled_from(["`", "``", "```", "\n", ">", " ", "x", A, B, "<tool_call>", "{" * 1200])), st.data())
def test_pieces_equal_the_text(parts: list[str], data: st.DataObject) -> None:
    """Concatenated, the segments equal the text. They are the same wherever the text is split, and whether or not
    fragments of blocks are emitted.
    """
    text = "".join(parts)
    whole = pieces_of(text)
    assert "".join(piece if isinstance(piece, str) else piece.raw for piece in whole) == text
    size = data.draw(st.integers(1, 9))
    assert pieces_of(text, size) == pieces_of(text, size, fragments=True) == whole


def test_possibly_quoted_block_is_not_announced() -> None:
    """No fragments are emitted for a tagged block that might be quoted, because a fragment would announce a call to the
    client.
    """
    for text in TEXT[:-2]:
        quotation = parser(fragments=True)
        assert not [piece for char in text for piece in quotation.feed(char) if isinstance(piece, Fragment)]
    quotation = parser(fragments=True)
    assert [piece for char in A for piece in quotation.feed(char) if isinstance(piece, Fragment)]


def test_time_is_linear() -> None:
    """Every kind of text that can be held back is parsed in linear time."""
    for piece in ("`", "`` ", f"`{A}", f"`{A}\n", f"`{A}{'x' * 100}", ">", f"> {A}\n"):
        assert growth(lambda size, piece=piece: pieces_of(piece * size, 5), 300) < LINEAR  # type: ignore[misc]


def test_quotation_at_the_end_of_reasoning_stays() -> None:
    """A quoted call at the end of the reasoning remains reasoning. If only the call were moved to the text, without the
    backtick before it, it would no longer be quoted.
    """
    for text in (f"The page says:\n> {CALL}", f"It says `{CALL}`"):
        events, report, _ = run_events(chat(), [ReasoningDelta(text), Finished("stop"), Closed()])
        assert [event for event in events if isinstance(event, CallStarted)] == []
        assert report.calls == []
    events, report, _ = run_events(chat(), [ReasoningDelta(f"I add.\n{CALL}"), Finished("stop"), Closed()])
    assert report.calls == ["add"]
