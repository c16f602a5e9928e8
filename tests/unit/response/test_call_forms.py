"""Tests for all call forms, with valid, invalid and broken calls. Each text is split at every character, and is tested
as a streamed and as a non-streamed answer.

Many cases resemble tests of vLLM's tool parsers and Dynamo's parity fixtures, but their texts were written for toolsim.
Where toolsim's result differs, the table of deviations on the architecture page states the reason.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import plan, read, rewrite
from support.each import each
from support.effort import places
from support.growth import LINEAR, growth
from support.wire import backend_answer
from toolsim.core.plan import Tool
from toolsim.response import call_forms
from toolsim.response.call_forms import CALL_FORMS, FOREIGN, read_form, row_at
from toolsim.response.segments import Segment
from toolsim.response.sentinel import Sentinel

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
TABLE = json.loads((Path(__file__).parents[2] / "cases" / "call_forms.json").read_text(encoding="utf-8"))
CASES: dict[str, tuple[str, list[Any]]] = {case["case"]: (case["text"], case["items"]) for case in TABLE["cases"]}


def seen(stream: bool, chunks: list[str]) -> list[list[Any]]:
    """Return the items that a real client receives if the answer arrives in the given chunks. The arguments of calls
    are parsed.
    """
    the_plan = plan("responses", "chat", stream, [WRITE, LIST])
    rewriter, frames = rewrite(the_plan, *backend_answer("chat", stream, chunks))
    items = read("responses", stream, frames, rewriter.status).items
    return [[*item[:2], json.loads(item[2])] if item[0] == "call" else item for item in items]


@each("name", CASES)
def test_case(name: str) -> None:
    """For each case, a real client receives the expected items, whether the answer is streamed or not."""
    text, items = CASES[name]
    assert seen(False, [text]) == items
    assert seen(True, list(text)) == items


def pieces(chunks: list[str]) -> list[Segment]:
    """Return the segments (prose and tagged blocks) that the sentinel finds in text that arrives in ``chunks``.
    Adjacent prose is joined.
    """
    sentinel = Sentinel(foreign=True)
    found: list[Segment] = []
    for piece in [piece for chunk in chunks for piece in sentinel.feed(chunk)] + sentinel.finish():
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found


@each("name", CASES)
def test_case_at_every_split(name: str) -> None:
    """If the text of a case is split in two at any character, it yields the same blocks and prose as the
    unsplit text.
    """
    text = CASES[name][0]
    whole = pieces([text])
    for cut in places(1, len(text)):
        assert pieces([text[:cut], text[cut:]]) == whole


@each("text", [case[0] for case in CASES.values()])
def test_partial_opening_is_recognized_or_undecided(text: str) -> None:
    """If only the beginning of a call has arrived, its call form is either still undecided or already recognized
    correctly.
    """
    for opening in (TAG, *FOREIGN):
        body = text.partition(opening)[2]
        whole = row_at(body, 0, opening, behind_tag=True, final=True)
        for cut in places(1, len(body)):
            assert row_at(body[:cut], 0, opening, behind_tag=True, final=False) in (whole, None)


def test_word_followed_by_a_space_is_prose() -> None:
    """A word followed by a space is not the beginning of a call. In call forms that begin with a name, no space can
    follow the name.
    """
    assert row_at("x", 0, TAG, behind_tag=True, final=False) is None
    assert row_at("x", 0, TAG, behind_tag=False, final=False) is False
    assert row_at("x y", 0, TAG, behind_tag=True, final=False) is False
    assert row_at("<div>", 0, TAG, behind_tag=True, final=False) is False


@each("row", sorted({row.name for row in CALL_FORMS if row.name != "JSON"}))
def test_every_row_has_cases(row: str) -> None:
    """Each call form has a row in the module's table and at least six cases, including one with only calls and one with
    only text.
    """
    word = row.lower()[:3]
    cases = [items for name, (_, items) in CASES.items() if name.startswith(word)]
    assert len(cases) >= 6
    assert any(all(item[0] == "call" for item in items) for items in cases)
    assert any(all(item[0] == "text" for item in items) for items in cases)
    assert row in str(call_forms.__doc__)


@each("opening", FOREIGN)
def test_every_tag_has_cases(opening: str) -> None:
    """For each tag of a call form, there is a case in which the tag opens a call, and a case in which it is prose."""
    assert any(opening in text and items[-1][0] == "call" for text, items in CASES.values())
    assert any(opening in text and items[-1][0] == "text" for text, items in CASES.values())


@pytest.mark.parametrize("row", ["glm", "gemma", "use_tool"])
def test_truncated_block_is_not_a_call(row: str) -> None:
    """If the backend reports that the answer was cut off, a block without its closing tag is not a call, because the
    block could have continued.
    """
    text, items = CASES[f"{row}, the end in the place of the closing tag"]
    body = backend_answer("chat", False, [text])
    cut = (body[0], body[1].replace(b'"finish_reason": "stop"', b'"finish_reason": "length"'))
    assert cut != body
    rewriter, frames = rewrite(plan("responses", "chat", False, [WRITE, LIST]), *cut)
    assert read("responses", False, frames, rewriter.status).items == [["text", text]]
    assert items[-1][0] == "call"


def test_unknown_name_in_a_foreign_form_is_text() -> None:
    """In a foreign call form, such as another model's tags, a call with an unknown name is text even if a strict tool
    is offered. A broken call to a strict tool is an error.
    """
    strict = replace(WRITE, strict=True)
    for text, error in (
        ("[TOOL_CALLS]erase{}", None),
        ("<function=erase><parameter=path>a</parameter></function>", None),
        ('[TOOL_CALLS]write{"path": 5}', "invalid_tool_call"),
        ('<tool_call>{"name": "erase", "arguments": {}}</tool_call>', "invalid_tool_call"),
    ):
        the_plan = plan("responses", "chat", False, [strict, LIST])
        rewriter, frames = rewrite(the_plan, *backend_answer("chat", False, [text]))
        assert read("responses", False, frames, rewriter.status).error == error


def test_foreign_tags_are_text_without_untagged_calls() -> None:
    """The option that disables untagged calls also disables the tags of foreign call forms."""
    text = "[TOOL_CALLS]list{} <function=list></function>"
    the_plan = plan("responses", "chat", False, [LIST], policy={"untagged": "off"})
    rewriter, frames = rewrite(the_plan, *backend_answer("chat", False, [text]))
    assert read("responses", False, frames, rewriter.status).items == [["text", text]]


SCRAPS = ["<function=f>", "</function>", "<parameter=k>", "</parameter>", "f", "<arg_key>", "</arg_key>", "<arg_value>",
          "</arg_value>", "<name>", "</name>", "\n", " ", "&amp;", "x", "{", "}", '"k":1', "[", "]", "[ARGS]", "call:f",
          '<|"|>', ":", ",", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", '<invoke name="f">', "(", ")", "k=1",
          '<parameter name="k">', "</invoke>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"]  # fmt: skip


@given(
    st.sampled_from([TAG, *FOREIGN]), st.lists(st.sampled_from(SCRAPS) | st.text(max_size=3), max_size=15).map("".join)
)
def test_any_body_yields_a_call(opening: str, body: str) -> None:
    """Parsing any text after any opening tag returns at least one call and raises no exception. Only the last call can
    be broken.
    """
    calls = read_form(opening, body)
    assert calls
    assert not any(call.broken for call in calls[:-1])
    for row in CALL_FORMS:
        assert row.read(body)


WORDS = [*FOREIGN, *filter(None, FOREIGN.values()), *SCRAPS, TAG, "</tool_call>", "<", "[", "prose "]


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=2), max_size=16).map("".join), st.data())
def test_any_text_at_any_split(text: str, data: st.DataObject) -> None:
    """Text that consists of tags and fragments is split into segments without loss, and in the same way wherever it is
    divided into chunks.
    """
    whole = pieces([text])
    assert "".join(piece if isinstance(piece, str) else piece.raw for piece in whole) == text  # type: ignore[union-attr]
    assert pieces(list(text)) == whole
    cuts = [0, *sorted(data.draw(st.sets(st.integers(0, len(text))))), len(text)]
    assert pieces([text[a:b] for a, b in pairwise(cuts)]) == whole


def test_long_blocks_take_linear_time() -> None:
    """A value or a tagged block that never ends is scanned only a limited number of times."""
    scraps = [
        "<use_tool><name>f</name><k>",
        "<tool_call><function=f><parameter=k></tool_call>",
        "[TOOL_CALLS]f{",
        "<function=f>{",
    ]
    for scrap in scraps:

        def read(size: int, scrap: str = scrap) -> None:
            sentinel = Sentinel(foreign=True)
            for _ in range(size):
                sentinel.feed(scrap)
            sentinel.finish()

        assert growth(read, 2_000) < LINEAR


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("a < b <b> <form> <m> <functions> <tool_calls>", 12),
        ("see [1], [T] and [TOOL] in [text](x)", 5),
        ("<function=name> and <function=f> x", 16),
        ("<tool_call> x <minimax:tool_call> y", 20),
        ("<｜x｜> <|x|> <|tool|>", 6),
    ],
)
def test_prose_is_held_back_as_briefly_as_possible(text: str, most: int) -> None:
    """Even if text is full of brackets and tags, no more characters are held back than are needed to decide whether a
    call begins.
    """
    sentinel = Sentinel(foreign=True)
    given, waits = 0, []
    for fed, char in enumerate(text, 1):
        given += sum(len(str(piece)) for piece in sentinel.feed(char))
        waits.append(fed - given)
    assert max(waits) == most
