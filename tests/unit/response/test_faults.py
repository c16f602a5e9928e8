"""Tests for answers that consist of a broken untagged call. Such an answer is retried, or emitted unchanged."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import plan, tool
from support.each import each
from support.turns import ADD, CALL
from toolsim.core.events import (
    CallStarted,
    ClientEvent,
    Closed,
    Counted,
    Ended,
    Failed,
    Finished,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    TextDelta,
    Usage,
)
from toolsim.core.plan import Plan, Tool
from toolsim.core.report import Report
from toolsim.response.call_keys import ARGUMENTS_KEYS
from toolsim.response.choice import parser_for
from toolsim.response.faults import BrokenCalls
from toolsim.response.judge import Judge
from toolsim.response.retry import CALL_FAULTS, Retry
from toolsim.response.rewrite import answer_for

TALK = json.loads((Path(__file__).parents[2] / "cases" / "talk.json").read_text(encoding="utf-8"))

STATE = tool("state_get", {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]})
FIT = '{"name": "add", "arguments": {"a": 1}}'
SLOTS = (
    '{"name": "state_get", "arguments": {"id": <workspace-id>}}\n{"name": "add", "arguments": {"a": <number>}}',
    "MALFORMED_JSON",
    "state_get",
    "arguments that are one JSON object; <workspace-id> is a placeholder for a value",
)
MISFIT = '{"name": "add", "arguments": {"a": "x"}}'
NEEDS_NUMBER = "/a: got string, expected number"
NEEDS_OBJECT = "arguments that are one JSON object"
BROKEN = [
    SLOTS,
    ("```json\n" + SLOTS[0] + "\n```\n", *SLOTS[1:]),
    ("\n [" + SLOTS[0].replace("\n", ",") + "]", *SLOTS[1:]),
    (MISFIT, "SCHEMA_MISMATCH", "add", NEEDS_NUMBER),
    ("```json\n" + MISFIT + "\n```", "SCHEMA_MISMATCH", "add", NEEDS_NUMBER),
    (FIT + "\n" + MISFIT, "SCHEMA_MISMATCH", "add", NEEDS_NUMBER),
    ('{"name": "add" "parameters": {"a": 1 2}}', "MALFORMED_JSON", "add", NEEDS_OBJECT),
    ('{"name": "add", "arguments": {"a": [1, 2', "MALFORMED_JSON", "add", NEEDS_OBJECT),
]
TEXTS = [
    'No: {"name": "add", "arguments": {"a": <number>}}',
    '{"name": "add", "arguments": {"a": <number>}} is how it is written.',
    '{"name": "add", "arguments": {"a": <number>}}\n\nThat is how it is written.',
    '```json\n{"name": "add", "arguments": {"a": <number>}}\n```\nis how it is written.',
    '```js\n{"name": "add", "arguments": {"a": <number>}}\n```',
    '{"name": "add", "arguments": {"a": ...}}',
    '{"name": "add", "arguments": {…}}',
    '{"name": "sub", "arguments": {"a": <number>}}',
    '{"name": "add", "description": <text>}',
    '{"name": "add"}',
    '{"name": "add", "argu',
    "{",
    '[{"name": "add", "arguments": {"a": 1}}, {"name": "sub", "arguments": {"a": 1}}]',
]


def asking(
    *, retries_allowed: frozenset[str] = CALL_FAULTS, offered: tuple[Tool, ...] = (ADD, STATE), **fields: Any
) -> Plan:
    return plan("responses", "responses", True, list(offered), retries_allowed=retries_allowed, **fields)


def run(
    the_plan: Plan, pieces: list[Any], finish: FinishReason = "stop"
) -> tuple[list[ClientEvent], Retry | None, Report]:
    """Return the events, the retry, if any, and the report. If there is a retry, the events end with the output that is
    sent when the answer is not retried. Adjacent texts are joined, and usage is omitted.
    """
    answer = answer_for(the_plan, report := Report())
    emitted: list[ClientEvent] = []
    for piece in (*pieces, Finished(finish), Counted(Usage(1, 2, 3)), Closed()):
        emitted += answer.feed(TextDelta(piece) if isinstance(piece, str) else piece)
    retry = answer.retry
    if retry is not None:
        assert isinstance(emitted.pop(), Failed)
        emitted += retry.otherwise
    out: list[ClientEvent] = []
    for event in emitted:
        if isinstance(event, TextDelta) and out and isinstance(out[-1], TextDelta):
            out[-1] = TextDelta(out[-1].text + event.text)
        else:
            out.append(Ended(event.reasons) if isinstance(event, Ended) else event)
    return out, retry, report


@pytest.mark.parametrize(("text", "reason", "name", "expected"), BROKEN)
def test_broken_call_is_retried(text: str, reason: str, name: str, expected: str) -> None:
    """A broken call is retried, and its fault describes the exact error. If retries are not allowed, the text is
    emitted unchanged.
    """
    for pieces in ([text], list(text), re.findall(r"\s*\S+\s*", text)):
        emitted, retry, report = run(asking(), pieces)
        assert retry is not None
        assert (retry.fault.reason, retry.fault.name) == (reason, name)
        assert expected in retry.fault.expected
        assert retry.words == text
        assert report.retries == [f"{reason}:{name}"]
        assert report.parse_failures == []
        assert emitted == run(asking(retries_allowed=frozenset()), pieces)[0]


@each("key", ARGUMENTS_KEYS)
@each("head", ['{"name": "add"', '{"tool": "add"', '{"function": {"name": "add"'])
def test_every_key_spelling_is_recognized(head: str, key: str) -> None:
    """A broken call is recognized with any accepted spelling of its keys."""
    text = f'{head}, "{key}": {{"a": "x"}}}}' + ("}" if "function" in head else "")
    for pieces in ([text], list(text)):
        _, retry, _ = run(asking(), pieces)
        assert retry is not None
        assert retry.fault.name == "add"


def test_copied_placeholder_is_named() -> None:
    """If the model copied a placeholder from the manifest and a tagged call therefore cannot be parsed, the fault names
    the placeholder.
    """
    _, retry, _ = run(asking(), ['<tool_call>{"name": "add", "arguments": {"a": <number>}}</tool_call>'])
    assert retry is not None
    assert retry.fault.expected.endswith("<number> is a placeholder for a value")


@each("text", TEXTS)
def test_other_text_is_not_a_broken_call(text: str) -> None:
    """Text that resembles a call is not retried if it is next to other text, or if it contains an ellipsis, an unknown
    tool or an unknown key.
    """
    for pieces in ([text], list(text)):
        emitted, retry, _ = run(asking(), pieces)
        assert retry is None
        assert emitted[0] == TextDelta(text)


# Answers that cannot be distinguished from failed calls, and are therefore retried unnecessarily. The last answer
# contains toolsim's own tags.
PRICE = (
    '{"name": "add", "arguments": {"a": "one", "b": "two"}}',
    '{"name": "add", "arguments": {"a": 1}}',
    next(text for text in TALK["answers"] if text.startswith("The template asks for this form")),
)


@each("text", [text for text in (*TALK["answers"], *TALK["read_as_calls"]) if text not in PRICE])
def test_talk_about_calls_is_not_retried(text: str) -> None:
    """An answer that talks about JSON, tools or calls is emitted unchanged and is not retried."""
    offered = tuple(Tool(wire_name=fields["name"], **fields) for fields in TALK["tools"])
    for pieces in ([text], list(text)):
        emitted, retry, report = run(asking(offered=offered), pieces)
        assert retry is None
        assert not report.retries
        assert emitted == run(asking(offered=offered, retries_allowed=frozenset()), pieces)[0]


def test_texts_that_cause_a_retry() -> None:
    """The answers in ``PRICE`` are retried, because they cannot be distinguished from failed calls. If no retry is
    possible, the answers without a tag yield the same events as with retries turned off.
    """
    offered = tuple(Tool(wire_name=fields["name"], **fields) for fields in TALK["tools"])
    reasons = []
    for text in PRICE:
        emitted, retry, _ = run(asking(offered=offered), list(text))
        assert retry is not None
        assert (
            "<tool_call>" in text or emitted == run(asking(offered=offered, retries_allowed=frozenset()), list(text))[0]
        )
        reasons.append(retry.fault.reason)
    assert reasons == ["SCHEMA_MISMATCH", "SCHEMA_MISMATCH", "UNKNOWN_TOOL"]


def test_valid_call_next_to_a_broken_one_is_made() -> None:
    """If an answer contains both a valid call and a broken call, the valid call is emitted, and the answer is not
    retried.
    """
    for text in (SLOTS[0] + "\n" + CALL, SLOTS[0] + "\n" + FIT, FIT + "\n\nThen:\n" + SLOTS[0]):
        emitted, retry, report = run(asking(), list(text))
        assert retry is None
        assert report.calls == ["add"]
        assert any(isinstance(event, CallStarted) for event in emitted)
        assert emitted == run(asking(retries_allowed=frozenset()), list(text))[0]


@pytest.mark.parametrize(
    "item",
    [
        ReasoningDelta("hm"),
        RefusalDelta("No."),
        StructuredCall("add", '{"a": 1}'),
    ],
)
def test_order_of_items_is_kept(item: Any) -> None:
    """The client receives the text of a broken call before the next item, so that the order is kept. The answer is not
    retried.
    """
    emitted, retry, _ = run(asking(), [MISFIT, item])
    assert retry is None
    assert emitted == run(asking(retries_allowed=frozenset()), [MISFIT, item])[0]
    assert emitted[0] == TextDelta(MISFIT)


def test_at_the_length_limit() -> None:
    """If the length limit cut off an answer within a call, the retry starts the call again if the call already
    contained an error. Otherwise, the retry continues the call.
    """
    _, retry, _ = run(asking(), [SLOTS[0][:-3]], "length")
    assert retry is not None
    assert (retry.fault.reason, retry.fault.partial_call) == ("MALFORMED_JSON", "")
    assert retry.otherwise == (TextDelta(SLOTS[0][:-3]), Ended({0: "length"}))
    _, retry, _ = run(asking(), [FIT[:-3]], "length")
    assert retry is not None
    assert (retry.fault.reason, retry.fault.partial_call) == ("CALL_CUT_OFF", FIT[:-3])
    emitted, retry, _ = run(asking(), [SLOTS[0]], "content_filter")
    assert retry is None
    assert emitted[0] == TextDelta(SLOTS[0])


def test_failed_backend_releases_text_without_a_retry() -> None:
    """If the connection to the backend breaks, held-back text is emitted before the error, and the answer is not
    retried.
    """
    answer = answer_for(asking(), Report())
    assert answer.feed(TextDelta(MISFIT)) == []
    emitted = answer.end_of_input()
    assert emitted[0] == TextDelta(MISFIT)
    assert isinstance(emitted[-1], Failed)
    assert answer.retry is None


def test_text_is_held_back_only_with_retries() -> None:
    """``BrokenCalls`` is used only if ``toolsim_retry`` is set. It emits the held-back text as soon as the answer
    contains text in addition to the call.
    """
    for retries_allowed, is_used in (
        (frozenset[str](), False),
        (frozenset({"UNKNOWN_TOOL"}), False),
        (CALL_FAULTS, True),
    ):
        the_plan = asking(retries_allowed=retries_allowed)
        assert isinstance(parser_for(the_plan, Judge(the_plan, Report())), BrokenCalls) == is_used
    answer = answer_for(asking(), Report())
    assert answer.feed(TextDelta(SLOTS[0])) == []
    assert answer.feed(TextDelta("\nis it.")) == [TextDelta(SLOTS[0] + "\nis it.")]
    assert answer.feed(TextDelta(" More.")) == [TextDelta(" More.")]


def test_oversized_call_is_text() -> None:
    """The size limit for calls also applies to text that is held back. Text that exceeds the limit is emitted."""
    the_plan = asking(policy={"max_tool_bytes": 10})
    text = '{"name": "add", "arguments": {"a": <' + "x" * 5000
    assert run(the_plan, list(text))[1] is None
    answer = answer_for(the_plan, Report())
    assert answer.feed(TextDelta(text)) == [TextDelta(text)]


PARTS = [FIT, MISFIT, SLOTS[0], CALL, "```json\n", "\n```", "\n", "[", "]", ",", " ", '"', "word", "...", "{", "}", "`"]


@given(st.lists(st.sampled_from(PARTS), max_size=6), st.data())
def test_splits_make_no_difference(parts: list[str], data: st.DataObject) -> None:
    """The answer and the reason for a retry do not depend on where the text is split."""
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    whole, retry, _ = run(asking(), [text])
    cut, other, _ = run(asking(), pieces)
    assert whole == cut
    assert (retry and retry.fault) == (other and other.fault)
    if "<tool_call>" not in text:
        assert whole == run(asking(retries_allowed=frozenset()), pieces)[0]
