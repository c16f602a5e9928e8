from __future__ import annotations

import pytest
from support.each import each
from toolsim.response.call_forms import CALL_FORMS, FOREIGN
from toolsim.response.tags import MORE, OpenValue, behind_fence, ends, foreign_end, held_from, open_tag, tags


def test_each_tag_has_its_closing_tag() -> None:
    """Each opening tag, including the configured one, has its own closing tag."""
    both = tags("tool_call", True, False)
    assert both.closing == {"<tool_call>": "</tool_call>", "<use_tool>": "</use_tool>"}
    assert both.opening.findall("<tool_call> <tool_calls> <use_tool> </use_tool>") == ["<tool_call>", "<use_tool>"]
    assert both.ours_end == "</tool_call>"
    assert list(tags("a.b", False, False).closing) == ["<a.b>"]
    assert tags("a.b", False, False).opening.search("<axb>") is None
    assert list(tags("use_tool", True, False).closing) == ["<use_tool>"]


def test_foreign_tags_are_added() -> None:
    """The tags of other models' call forms are recognized in addition to toolsim's tags, and are distinguished from
    them.
    """
    every = tags("tool_call", True, True)
    assert every.closing == {**FOREIGN, "<tool_call>": "</tool_call>", "<use_tool>": "</use_tool>"}
    assert every.ours == {"<tool_call>", "<use_tool>"}
    for tag in FOREIGN:
        assert every.opening.findall(f"x{tag}x") == [tag]
        assert {tag[:end] for end in range(1, len(tag))} <= every.beginnings


@pytest.mark.parametrize(
    ("text", "at"),
    [("", 0), ("a", 1), ("a<", 1), ("a<t", 1), ("a<x", 3), ("<<t", 1), ("a<tag>", 6), ("a </ta", 6), ("<t <ta", 3)],
)
def test_partial_tag_is_held_back(text: str, at: int) -> None:
    """The beginning of a tag at the end of a text is held back."""
    beginnings = frozenset(tag[:end] for tag in ("<tag>", "<two>", "[TAG]") for end in range(1, 5))
    assert held_from(text, 0, beginnings) == at
    assert held_from(text.replace("<", "[").upper(), 0, beginnings) == at


def test_ends_of_a_block() -> None:
    """The pattern for the end of a block matches its opening tag, its closing tag, and the opening markers of values,
    such as ``<v=``.
    """
    assert ends("<t>", "</t>", "").findall("<t></t><u></v>") == ["<t>", "</t>"]
    assert [found[0] for found in ends("<t>", "</t>", "<v=").finditer("<t></t><v=a></v>")] == ["<t>", "</t>", "<v="]
    assert ends("[T]", "", "").findall("[T]") == ["[T]"]


@each(
    ("body", "ended", "passed"),
    [
        ("<k>v</k>", True, True),
        ("<k>v", False, True),
        ("<k>v</use_tool>", False, True),
        ("<k>v</use_tool> w</k>", True, True),
        ("<k><use_tool>v</use_tool></k>", True, True),
        ("<k>v</use_tool><use_tool>", False, False),
        ("<k>v<use_tool></use_tool></use_tool><use_tool>", False, False),
        ("<k>v</k><l>w</use_tool></k>", False, True),
        ("<k><![CDATA[</k>", False, True),
        ("<k><![CDATA[</k></use_tool><use_tool>]]></k>", True, True),
    ],
)
def test_value_ends_at_its_mark(body: str, ended: bool, passed: bool) -> None:
    """A parameter's value ends at the parameter's closing tag. This tag is considered missing if the value contains an
    unmatched closing tag of the block and, after it, another opening tag of a block.
    """
    value, at, going = OpenValue(next(row for row in CALL_FORMS if row.name == "use_tool")), 0, True
    while going and (match := ends("<use_tool>", "</use_tool>", value.marks).search(body, at)):
        going = value.passes(match, "<use_tool>")
        at = match.end()
    assert (not value.is_open, going) == (ended, passed)


@pytest.mark.parametrize(
    ("text", "at"), [("", 0), ("a", 1), ("a<b", 1), ("a<b>", 4), ("<a><b c", 3), ("<" + "a" * 400, 401), ("<<", 1)]
)
def test_open_tag_is_recognized(text: str, at: int) -> None:
    """The text after the last "<" might be a tag, unless the tag is already closed or the text is too long."""
    assert open_tag(text, 0) == at


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
def test_opening_fence_line_is_skipped(text: str, final: bool, end: int | None) -> None:
    """Only the opening line of a code fence is skipped, and only when it is complete."""
    assert behind_fence(text, 0, final=final) == end


@each(
    ("text", "end", "at_last"),
    [
        ("</function> b", 11, 11),
        ("</function>", MORE, 11),
        ("</function>\n", MORE, 11),
        ("</function>\n</t>", MORE, 11),
        ("</function>\n</tx", 11, 11),
        ("</function>\n</t", MORE, 11),
        ("</think></t> b", 12, 12),
        ("</think>" + " " * 17 + "</t>", 8, 8),
        ("</th", MORE, 0),
        ("<", MORE, 0),
        ("</thin k>", 0, 0),
        ("</b>", 0, 0),
        ("</t>", MORE, 0),
        ("</t> b", 0, 0),
        ("<tool>", 0, 0),
    ],
)
def test_foreign_closing_tag_ends_a_block(text: str, end: int, at_last: int) -> None:
    """A tagged block also ends at the closing tag of another call form. An incomplete closing tag is held back."""
    closing = "</t>"
    if text == "</function>\n</t>":
        end = at_last = 16
    if text == "</t>":
        end = 0
    assert foreign_end("x" + text, 1, closing, final=False) == (end + 1 if end > 0 else end)
    assert foreign_end("x" + text, 1, closing, final=True) == (at_last + 1 if at_last else 0)
