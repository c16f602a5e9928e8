"""Tests for malformed tagged blocks when a strict tool is offered. The answer fails if a malformed block is on its own
lines. Any other malformed block is text.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import plan, rewrite, tool
from support.each import each
from support.growth import LINEAR, growth
from support.library import by_proxy, pieces, streamed
from support.wire import backend_answer
from toolsim.core.policy import ApiName
from toolsim.core.report import Report
from toolsim.parsing import parse
from toolsim.response.rewrite import ResponseRewriter
from toolsim.response.segments import Block
from toolsim.response.sentinel import Sentinel

STRICT: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "f",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    }
]
APIS: tuple[ApiName, ...] = ("responses", "chat", "messages")
BLOCK = "<tool_call>this is not json</tool_call>"
FAILS = [
    BLOCK,
    "<tool_call></tool_call>",
    "<tool_call>\n\n</tool_call>\n",
    f"Let me look.\n{BLOCK}",
    f"Let me look.\n\n  {BLOCK}  \nDone.",
    f"{BLOCK}\n{BLOCK}",
    "<tool_call>\nseveral\nlines\n</tool_call>",
    f'<tool_call>{{"name": "f", "arguments": {{"a": "x"}}}}</tool_call>\n{BLOCK}',
    f"<think>Hm.</think>\n{BLOCK}",
    f"```\n{BLOCK}\n```",
]
TEXT = [
    f"Say {BLOCK}",
    f"Say {BLOCK} now.",
    f"{BLOCK} is not a call.",
    f"`{BLOCK}`",
    f"Write `{BLOCK}` to call.",
    f"> {BLOCK}",
    f"- {BLOCK}\n- another",
    f"<think>\n{BLOCK}\n</think>\nHello.",
    "<tool_call> opens a call, </tool_call> ends it.",
    "<tool_call>\nThis is never closed.",
    "<tool_call>" + "x" * 5000 + "</tool_call>",
    "<use_tool></use_tool>",
    "<use_tool>this is no element</use_tool>",
]


@each("text", FAILS)
def test_malformed_block_on_its_own_lines_fails(text: str) -> None:
    """If a strict tool is offered, a malformed block on its own lines ends the answer with an error, wherever the text
    is split.
    """
    parsed = parse(text, STRICT)
    assert "MALFORMED_JSON" in str(parsed.error)
    assert "this is not json" not in parsed.prose
    assert streamed(list(text), STRICT) == parsed
    assert streamed(pieces(text, text), STRICT) == parsed


@each("text", TEXT)
def test_malformed_block_elsewhere_is_text(text: str) -> None:
    """Even if a strict tool is offered, a malformed block remains text if it is unclosed or too long, or if it is
    within a sentence, a list, a quotation or reasoning.
    """
    parsed = parse(text, STRICT)
    assert (parsed.error, parsed.calls, parsed.prose) == (None, (), text)
    assert streamed(list(text), STRICT) == parsed
    assert streamed(pieces(text, text), STRICT) == parsed


@each("text", [*FAILS, *TEXT])
def test_malformed_block_is_text_without_a_strict_tool(text: str) -> None:
    """Without a strict tool, a malformed block remains text, and the answer does not fail."""
    lax = [{**STRICT[0], "strict": False}]
    parsed = parse(text, lax)
    assert parsed.error is None
    assert "this is not json" in parsed.prose or "this is not json" not in text


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [True, False])
def test_official_clients_receive_the_error(api: ApiName, stream: bool) -> None:
    """For a malformed block, a client receives an error with status 422 in its API's format or, in a stream, its API's
    failure event.
    """
    for text in FAILS:
        seen = by_proxy(api, STRICT, list(text), stream=stream)
        assert seen.error == ("invalid_request_error" if api == "messages" else "invalid_tool_call")
    for text in TEXT:
        seen = by_proxy(api, STRICT, list(text), stream=stream)
        assert (seen.error, seen.items) == (None, [["text", text]])


def test_malformed_block_in_reasoning_does_not_fail() -> None:
    """If the backend sends reasoning in a separate field, a malformed block in the reasoning does not make the answer
    fail.
    """
    the_plan = plan("responses", "chat", False, [tool("f", True, a="string")])
    kind, body = backend_answer("chat", False, ["Hello."])
    assert b'"content"' in body
    thought = body.replace(b'"content"', b'"reasoning_content": "%s", "content"' % BLOCK.encode(), 1)
    rewriter, _ = rewrite(the_plan, kind, thought)
    assert rewriter.status == 200


@pytest.mark.parametrize(("text", "failures", "violations"), [(BLOCK, 0, 1), (f"Say {BLOCK}", 1, 0)])
def test_malformed_block_is_counted_once(text: str, failures: int, violations: int) -> None:
    """A malformed block is counted only once: as a strict failure or, if it remains text, as a parse failure."""
    report = Report()
    the_plan = plan("responses", "chat", True, [tool("f", True, a="string")])
    kind, body = backend_answer("chat", True, list(text))
    rewriter = ResponseRewriter(the_plan, report, content_type=kind)
    for part in (body, b""):
        rewriter.feed(part)
    assert (len(report.parse_failures), len(report.strict_failures)) == (failures, violations)


SCRAPS = ["<tool_call>", "</tool_call>", "x", " ", "\n", "`", '{"name":"f","arguments":{"a":"b"}}', "<think>", "> "]


@given(st.lists(st.sampled_from(SCRAPS), max_size=12).map("".join), st.integers(1, 9))
def test_any_text_at_any_split(text: str, size: int) -> None:
    """The parsed answer does not depend on where the text is split. If there is no call and no error, the prose equals
    the text.
    """
    parsed = parse(text, STRICT)
    assert streamed([text[at : at + size] for at in range(0, len(text), size)], STRICT) == parsed
    assert parsed.error or parsed.calls or parsed.prose == text


def test_malformed_block_is_held_back_within_bounds() -> None:
    """A malformed block is held back until its closing tag or another tag arrives, or until 4,096 characters have
    arrived.
    """
    sentinel = Sentinel(keeps_unread=True)
    assert sentinel.feed("<tool_call>this ") == []
    assert sentinel.feed("is not json") == []
    (block,) = sentinel.feed("</tool_call>")
    assert isinstance(block, Block)
    assert block.is_unread
    assert "".join(map(str, sentinel.feed("<tool_call>no! <tool_call>"))) == "<tool_call>no! "
    sentinel = Sentinel(keeps_unread=True)
    assert sum(len(str(piece)) for piece in sentinel.feed("<tool_call>" + "x" * 5000)) > 5000


def test_time_is_linear() -> None:
    """Unclosed tags and adjacent malformed blocks are parsed in linear time."""

    def read(size: int) -> None:
        for scrap in ("<tool_call>x", "<tool_call>x\n</tool_call>\n", "x<tool_call>" + "y" * 500):
            streamed([scrap] * size, STRICT)
            parse(scrap * size, STRICT)

    assert growth(read, 200) < LINEAR
