from __future__ import annotations

import pytest
from toolsimlib.response.tags import behind_fence, held_from, tags


def test_tags() -> None:
    """Each opening tag has its closing one, and a block ends at either of its own two tags."""
    both = tags("tool_call", True)
    assert both.closing == {"<tool_call>": "</tool_call>", "<use_tool>": "</use_tool>"}
    assert both.opening.findall("<tool_call> <tool_calls> <use_tool> </use_tool>") == ["<tool_call>", "<use_tool>"]
    assert both.ends["<use_tool>"].findall("<tool_call></use_tool><use_tool>") == ["</use_tool>", "<use_tool>"]
    assert list(tags("a.b", False).closing) == ["<a.b>"]
    assert tags("a.b", False).opening.search("<axb>") is None
    assert list(tags("use_tool", True).closing) == ["<use_tool>"]


@pytest.mark.parametrize(
    ("text", "at"),
    [("", 0), ("a", 1), ("a<", 1), ("a<t", 1), ("a<x", 3), ("<<t", 1), ("a<tag>", 6), ("a </ta", 6), ("<t <ta", 3)],
)
def test_held_from(text: str, at: int) -> None:
    """What is held back is the longest end of the text that is a proper beginning of a tag."""
    assert held_from(text, 0, ("<tag>", "<two>")) == at


@pytest.mark.parametrize(
    ("text", "final", "end"),
    [
        ("```json\n{", False, 8),
        ("```\n  {", False, 6),
        ("```json", False, None),
        ("`", False, None),
        ("`", True, 0),
        ("`x` {", False, 0),
        ("{", False, 0),
    ],
)
def test_behind_fence(text: str, final: bool, end: int | None) -> None:
    """A fence's opening line is passed when it is whole, waited for while it is not, and nothing else is passed."""
    assert behind_fence(text, 0, final=final) == end
