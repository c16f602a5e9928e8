from __future__ import annotations

import pytest
from toolsimlib.response.cursor import Cursor
from toolsimlib.response.prose import Prose


def places(text: str, *, bytewise: bool) -> tuple[str, Prose]:
    """Return ``text`` with a mark wherever a call may begin, though none does."""
    prose, at, seen = Prose(), Cursor(), ""
    chunks = [*text] if bytewise else [text]
    for number, chunk in enumerate(chunks, 1):
        at.final = number == len(chunks)
        at.feed(chunk)
        while not at.is_spent:
            emitted, may_begin = prose.read(at)
            seen += emitted
            if may_begin:
                seen += "|"
                prose.resume("line")
    return seen, prose


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("a\nb", "|a\n|b"),
        (" \n a\n\n  b c", " \n |a\n|\n  |b c"),
        ("<think>a\nb</think>c\nd", "<think>a\nb</think>|c\n|d"),
        ("\n<think>a</think><think>b\n</think>\nc", "\n<think>a</think><think>b\n</think>\n|c"),
        ("<think>a\nb", "<think>a\nb"),
        ("\u3000<think>a\n{b", "\u3000<think>a\n{b"),
        ("a <think>\nb</think>", "|a <think>\n|b</think>"),
    ],
)
def test_a_call_may_begin_where_a_line_does(text: str, marked: str) -> None:
    """After the indentation of each line outside a thought, which may only be at the start of the answer."""
    assert places(text, bytewise=False)[0] == marked
    assert "<think>" in text or places(text, bytewise=True)[0] == marked  # The sentinel never cuts these tags.


@pytest.mark.parametrize(("text", "begun"), [(" \n\t", False), ("<think>x</think>\n", False), ("a", True)])
def test_a_thought_begins_no_answer(text: str, begun: bool) -> None:
    """Nor does whitespace."""
    assert places(text, bytewise=False)[1].has_begun == begun


@pytest.mark.parametrize("bytewise", [False, True])
def test_nothing_begins_in_code(bytewise: bool) -> None:
    """Between a place in a fence without a call and its closing mark; a block inside changes nothing."""
    prose, at, emitted = Prose(), Cursor(), ""
    prose.resume("info", "```")
    for chunk in [*"sql\n{\n"] if bytewise else ["sql\n{\n"]:
        at.feed(chunk)
        while not at.is_spent:
            text, may_begin = prose.read(at)
            emitted += text
            assert not may_begin
    prose.resume("line")  # After the block.
    assert repr(prose) == "Prose(state_code)"
    at.feed("\n```\nx")
    seen = []
    while not at.is_spent:
        seen.append(prose.read(at))
        if seen[-1][1]:
            prose.resume("line")
    assert seen == [("\n```", False), ("\n", False), ("", True), ("x", False)]
    assert prose.is_in_line
    assert emitted == "sql\n{\n"
