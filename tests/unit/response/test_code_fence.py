from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsimlib.response.code_fence import CodeFence, Place


def read(text: str, mark: str = "```", place: Place = "info", size: int = 0) -> tuple[int, bool]:
    """Return where the fence ends, for a text in pieces of ``size`` characters."""
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


@pytest.mark.parametrize(
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
@pytest.mark.parametrize("size", [0, 1, 2])
def test_a_fence_ends_at_its_mark(text: str, inside: str, over: bool, size: int) -> None:
    """A mark alone on its line ends a fence; so does a backtick on the opening line, which then was inline code."""
    assert read(text, size=size) == (len(inside), over)


def test_a_longer_mark_is_needed_for_a_longer_fence() -> None:
    """Only a mark of the same kind, and at least as long as the opening one, closes a fence."""
    assert read("\n```\n````\n", "````") == (9, True)
    assert read("a`b\n```\n~~~\n", "~~~") == (11, True)
    assert read("```\n", place="start") == (3, True)
    assert read("```\n", place="line") == (4, False)


@given(st.text("`~ x\n\t", max_size=30), st.sampled_from(["```", "~~~"]), st.integers(1, 4))
def test_any_cuts(text: str, mark: str, size: int) -> None:
    """Wherever the text is cut, the fence ends at the same place."""
    assert read(text, mark, size=size) == read(text, mark)
