"""The dialects' rows: each one positive, negative, broken, cut at every character, streamed and whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import plan, read, rewrite
from support.wire import backend_answer
from toolsimlib.plan import Tool
from toolsimlib.response import dialects
from toolsimlib.response.dialects import DIALECTS, begins, read_tagged

WRITE = Tool(
    "write",
    "write",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}, "lines": {"type": "integer"}},
        "required": ["path"],
    },
)
LIST = Tool("list", "list", parameters={"type": "object", "properties": {"all": {"type": "boolean"}}})

TAG = "<tool_call>"
TABLE = json.loads((Path(__file__).parents[2] / "cases" / "dialects.json").read_text(encoding="utf-8"))
CASES: dict[str, tuple[str, list[Any]]] = {case["case"]: (case["text"], case["items"]) for case in TABLE["cases"]}


def seen(stream: bool, chunks: list[str]) -> list[list[Any]]:
    """Return what the real client reads of an answer whose text comes in ``chunks``; arguments as values."""
    the_plan = plan("responses", "chat", stream, [WRITE, LIST])
    rewriter, frames = rewrite(the_plan, *backend_answer("chat", stream, chunks))
    items = read("responses", stream, frames, rewriter.status).items
    return [[*item[:2], json.loads(item[2])] if item[0] == "call" else item for item in items]


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    """Each case gives its items, streamed and whole, at once, by the character and cut once anywhere."""
    text, items = CASES[name]
    assert seen(False, [text]) == items
    assert seen(True, list(text)) == items
    for cut in range(1, len(text), 7):
        assert seen(True, [text[:cut], text[cut:]]) == items


@pytest.mark.parametrize("text", [case[0] for case in CASES.values()])
def test_begins_at_any_cut(text: str) -> None:
    """A beginning is recognised as soon as it is whole, and nothing that may still be one is given up before."""
    body = text[text.index(TAG) + len(TAG) :]
    whole = begins(body, 0, behind_tag=True, final=True)
    for cut in range(1, len(body)):
        assert begins(body[:cut], 0, behind_tag=True, final=False) in (whole, None)


def test_only_one_row_begins_like_a_word() -> None:
    """Behind a space a word is prose at once, since the dialect that begins with a name has none there."""
    assert begins("x", 0, behind_tag=True, final=False) is None
    assert begins("x", 0, behind_tag=False, final=False) is False
    assert begins("x y", 0, behind_tag=True, final=False) is False
    assert begins("<div>", 0, behind_tag=True, final=False) is False


@pytest.mark.parametrize("row", [row.name for row in DIALECTS if row.name != "use_tool"])
def test_every_row_has_cases(row: str) -> None:
    """No dialect without its cases; those of use_tool are the judge's."""
    word = row.lower()[:3]
    assert sum(name.startswith(word) for name in CASES) >= 6
    assert row in str(dialects.__doc__)


SCRAPS = ["<function=f>", "</function>", "<parameter=k>", "</parameter>", "f", "<arg_key>", "</arg_key>", "<arg_value>",
          "</arg_value>", "<name>", "</name>", "\n", " ", "&amp;", "x"]  # fmt: skip


@given(st.lists(st.sampled_from(SCRAPS) | st.text(max_size=3), max_size=15).map("".join))
def test_any_body(body: str) -> None:
    """Any body: no exception, at least one call, and only its last may be broken."""
    calls = read_tagged(body)
    assert calls
    assert not any(call.broken for call in calls[:-1])
