from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.response.prose import CodeFence, Cursor, Place, ProseReader


def places(text: str, *, bytewise: bool) -> tuple[str, ProseReader]:
    """Return ``text`` with "|" inserted wherever a call could begin, and the prose reader. At each "|", reading
    continues as if no call had begun.
    """
    prose, at, seen = ProseReader(), Cursor(), ""
    chunks = [*text] if bytewise else [text]
    for number, chunk in enumerate(chunks, 1):
        at.is_final = number == len(chunks)
        at.feed(chunk)
        while not at.is_exhausted:
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
        ("\u3000a\n{b", "\u3000|a\n|{b"),
    ],
)
def test_call_can_begin_at_each_line(text: str, marked: str) -> None:
    """A call can begin at the start of each line, after its indentation."""
    assert places(text, bytewise=False)[0] == marked
    assert places(text, bytewise=True)[0] == marked


@pytest.mark.parametrize(("text", "begun"), [(" \n\t", False), ("a", True)])
def test_whitespace_does_not_begin_an_answer(text: str, begun: bool) -> None:
    """An answer has started when it contains visible text. Whitespace alone does not count."""
    assert places(text, bytewise=False)[1].has_started == begun


@pytest.mark.parametrize("bytewise", [False, True])
def test_call_cannot_begin_in_code(bytewise: bool) -> None:
    """A call cannot begin in a code fence. This is also true after a block in the fence that turned out not to be a
    call.
    """
    prose, at, emitted = ProseReader(), Cursor(), ""
    prose.resume("info", "```")
    for chunk in [*"sql\n{\n"] if bytewise else ["sql\n{\n"]:
        at.feed(chunk)
        while not at.is_exhausted:
            text, may_begin = prose.read(at)
            emitted += text
            assert not may_begin
    prose.resume("line")  # The block turned out not to be a call, so reading continues after it.
    assert repr(prose) == "Prose(state_code)"
    at.feed("\n```\nx")
    seen = []
    while not at.is_exhausted:
        seen.append(prose.read(at))
        if seen[-1][1]:
            prose.resume("line")
    assert seen == [("\n```", False), ("\n", False), ("", True), ("x", False)]
    assert prose.is_in_line
    assert emitted == "sql\n{\n"


def read(text: str, mark: str = "```", place: Place = "info", size: int = 0) -> tuple[int, bool]:
    """Feed text in chunks of ``size`` characters. Return the number of characters in the code fence, and whether it has
    ended.
    """
    fence = CodeFence(mark, place)
    done, rest = 0, ""
    for start in range(0, len(text), size or len(text) or 1):
        rest += text[start : start + (size or len(text))]
        end, over = fence.read(rest, 0, final=start + (size or len(text)) >= len(text))
        done += end
        rest = rest[end:]
        if over:
            return done, True
    return done, False


@each(
    ("text", "inside", "over"),
    [
        ("python\nx = 1\n```\nafter", "python\nx = 1\n```", True),
        ("python\nx = 1\n  ``` \nafter", "python\nx = 1\n  ``` ", True),
        ("\nx\n`````", "\nx\n`````", True),
        ("\nx\n``\n```x\ny ```\n", "\nx\n``\n```x\ny ```\n", False),
        ("\n~~~\n", "\n~~~\n", False),
        ("x``` and so on", "x", True),
        ("x` and so on", "x", True),
        ("", "", False),
    ],
)
@each("size", [0, 1, 2])
def test_fence_ends_at_its_mark(text: str, inside: str, over: bool, size: int) -> None:
    """A code fence ends at the closing backticks or tildes on a separate line. If the opening line contains another
    backtick, the text is inline code rather than a fence.
    """
    assert read(text, size=size) == (len(inside), over)


def test_longer_fence_needs_a_longer_mark() -> None:
    """A code fence is closed only by the character that opened it, repeated at least as many times as in the opening
    line.
    """
    assert read("\n```\n````\n", "````") == (9, True)
    assert read("a`b\n```\n~~~\n", "~~~") == (11, True)
    assert read("```\n", place="start") == (3, True)
    assert read("```\n", place="line") == (4, False)


@given(st.text("`~ x\n\t", max_size=30), st.sampled_from(["```", "~~~"]), st.integers(1, 4))
def test_fence_does_not_depend_on_splits(text: str, mark: str, size: int) -> None:
    """A code fence ends at the same offset, wherever the text is split."""
    assert read(text, mark, size=size) == read(text, mark)
