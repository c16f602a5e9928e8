"""Tests for retries, and for the output that the client receives with and without a retry."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import plan, tool
from support.turns import ADD, CALL, STRICT, whole_call
from toolsim.core.events import (
    CallStarted,
    ClientEvent,
    Closed,
    Counted,
    Ended,
    Failed,
    Finished,
    FinishReason,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Usage,
)
from toolsim.core.plan import Plan, ToolChoice
from toolsim.core.report import Report
from toolsim.response.answer import Answer
from toolsim.response.retry import CALL_FAULTS, EMPTY_ANSWER, Retry
from toolsim.response.retrying_choice import RetryingAnswer
from toolsim.response.rewrite import answer_for

BROKEN = '<tool_call>{"name":"add","arguments":{"a":"x"}}</tool_call>'
UNKNOWN = '<tool_call>{"name":"sub","arguments":{"a":1}}</tool_call>'
MALFORMED = '<tool_call>{"name":"add","arguments":{"a" 1}}</tool_call>'


def round_of(*tools: Any, retries_allowed: frozenset[str] = CALL_FAULTS, **fields: Any) -> Plan:
    return plan("responses", "responses", True, tools or [ADD], retries_allowed=retries_allowed, **fields)


def run(
    the_plan: Plan, *pieces: str, finish: FinishReason = "stop"
) -> tuple[list[ClientEvent], Retry | None, Report, Answer]:
    """Feed the given deltas. Return the events, the retry (if any), the report, and the answer object."""
    answer = answer_for(the_plan, report := Report())
    emitted = [event for piece in pieces for event in answer.feed(TextDelta(piece))]
    for event in (Finished(finish), Counted(Usage(1, 2, 3)), Closed()):
        emitted += answer.feed(event)
    return emitted, answer.retry, report, answer


FAULTS = [
    (BROKEN, STRICT, "SCHEMA_MISMATCH", "add", "/a: got string, expected number"),
    (MALFORMED, ADD, "MALFORMED_JSON", "add", "arguments that are one JSON object"),
    (MALFORMED, STRICT, "MALFORMED_JSON", "add", "arguments that are one JSON object"),
    (UNKNOWN, ADD, "UNKNOWN_TOOL", "sub", "one of the tools on offer: add"),
    (UNKNOWN, STRICT, "UNKNOWN_TOOL", "sub", "one of the tools on offer: add"),
    (UNKNOWN.replace("sub", "hidden"), ADD, "MASKED_TOOL", "hidden", "one of the tools on offer: add"),
    (CALL.replace("1", "1" * 300), ADD, "ARGUMENTS_TOO_LARGE", "add", "arguments of at most 200 bytes, got more"),
    (CALL.removesuffix("}</tool_call>"), STRICT, "MALFORMED_JSON", None, "a complete call, up to its closing tag"),
]


@pytest.mark.parametrize(("text", "offered", "reason", "name", "expected"), FAULTS)
def test_failed_call_is_retried(text: str, offered: Any, reason: str, name: str | None, expected: str) -> None:
    """A failed call is withheld and retried. The retry's ``otherwise`` contains the output that is sent if the answer
    is not retried.
    """
    fields = {"masked_tools": frozenset({"hidden"}), "policy": {"max_tool_bytes": 200}}
    emitted, retry, report, answer = run(round_of(offered, **fields), "Well. ", text)
    assert emitted[0] == TextDelta("Well. ")
    assert [type(event) for event in emitted[1:]] == [Failed]
    assert retry is not None
    assert (retry.fault.reason, retry.fault.name) == (reason, name)
    assert expected in retry.fault.expected
    assert retry.words == "Well. " + text
    assert report.error is None
    assert report.retries == [f"{reason}:{name}" if name else reason]
    asking_nobody, *_ = run(round_of(offered, retries_allowed=frozenset(), **fields), "Well. ", text)
    assert _without_usage(emitted[:-1] + list(retry.otherwise)) == _without_usage(asking_nobody)
    assert answer.is_cut == (reason != "MALFORMED_JSON" or text.endswith("</tool_call>"))


def _without_usage(events: list[ClientEvent]) -> list[ClientEvent]:
    """Return the events without usage and with adjacent texts joined."""
    out: list[ClientEvent] = []
    for event in events:
        if isinstance(event, TextDelta) and out and isinstance(out[-1], TextDelta):
            out[-1] = TextDelta(out[-1].text + event.text)
        else:
            out.append(Ended(event.reasons) if isinstance(event, Ended) else event)
    return out


def test_emitted_call_stays() -> None:
    """A call before the failed call is emitted immediately. It is not emitted again if the answer is not retried after
    all.
    """
    emitted, retry, report, _ = run(round_of(), CALL + UNKNOWN)
    assert emitted[:-1] == whole_call(1)
    assert retry is not None
    assert retry.otherwise == (TextDelta(UNKNOWN), Ended({0: "stop"}))
    assert report.calls == ["add"]


def test_announced_call_is_not_retried() -> None:
    """If an announced call breaks off or turns out to be malformed, it ends as incomplete. It is not retried, because
    the client already has part of its arguments.
    """
    the_plan = round_of(policy={"stream_arguments": "incremental"})
    text = '<tool_call>{"name":"add","arguments":{"a" 1}}</tool_call>'
    emitted, retry, *_ = run(the_plan, *text)
    assert any(isinstance(event, CallStarted) for event in emitted)
    assert retry is None


def test_block_without_a_call_is_text() -> None:
    """A tagged block that does not contain a call is text, and does not end the answer."""
    text = "Write <use_tool>…</use_tool>, or <tool_call>, and then JSON."
    emitted, retry, *_ = run(round_of(), text)
    assert retry is None
    assert "".join(event.text for event in emitted if isinstance(event, TextDelta)) == text


@pytest.mark.parametrize("text", ['<tool_call>{"name":"add","arguments":{"a":', '{"name": "add", "arguments": {"a"'])
def test_truncated_call_can_be_continued(text: str) -> None:
    """If the length limit cuts off a call, the partial call is kept unchanged. The answer to the retry can continue and
    complete it.
    """
    emitted, retry, *_ = run(round_of(), "So:\n" + text, finish="length")
    assert retry is not None
    assert (retry.fault.reason, retry.fault.partial_call) == ("CALL_CUT_OFF", text)
    assert retry.otherwise == (TextDelta(text), Ended({0: "length"}))
    assert emitted[:-1] == [TextDelta("So:\n")]
    rest = "1}}</tool_call>" if text.startswith("<") else ": 1}}"
    emitted, retry, report, _ = run(round_of(partial_call=text), rest)
    assert retry is None
    assert report.calls == ["add"]
    emitted, retry, *_ = run(round_of(partial_call=text), "", finish="length")
    assert retry is not None
    assert retry.fault.partial_call == text


@pytest.mark.parametrize("how", ["buffered", "incremental"])
@pytest.mark.parametrize(
    ("before", "emitted"),
    [
        ('{"name":"add","arguments":{"a":2}} ', [TextDelta('{"name":"add","arguments":{"a":2}} ')]),
        ('```json\n{"name":"add","arguments":{"a":1}}\n```\n', whole_call(1)),
    ],
)
def test_text_before_a_truncated_call_is_separate(before: str, emitted: list[ClientEvent], how: str) -> None:
    """The partial call that a retry continues does not include the text before it, even if this text was held back
    until the end.
    """
    half = '<tool_call>{"name":"sub","arguments":{"a":'
    the_plan = round_of(policy={"stream_arguments": how})
    for pieces in ([before + half], [*(before + half)]):
        events, retry, *_ = run(the_plan, *pieces, finish="length")
        assert retry is not None
        content = retry.otherwise[0]
        assert isinstance(content, TextDelta)
        assert retry.fault.partial_call == half == content.text.lstrip()
        assert events[:-1] == emitted
    events, retry, *_ = run(the_plan, before + half)
    assert retry is not None
    assert (retry.fault.reason, events[:-1]) == ("MALFORMED_JSON", emitted)


@pytest.mark.parametrize("policy", [{"suppress_tail_after_tools": True}, {"stop_after_tools": "on"}, {}])
@pytest.mark.parametrize("broken", [MALFORMED, MALFORMED[:40]])
def test_broken_call_after_calls_is_dropped_like_text(broken: str, policy: dict[str, Any]) -> None:
    """If the policy drops text after calls, a broken call after other calls is dropped as well, unless it is
    retried.
    """
    text = f"{CALL}\n {broken}"
    for pieces in ([text], [*text]):
        emitted, retry, *_ = run(round_of(policy=policy), *pieces, finish="length")
        assert retry is not None
        assert emitted[:-1] == whole_call(1)
        content = [event.text for event in retry.otherwise if isinstance(event, TextDelta)]
        assert content == ([] if policy else [f"\n {broken}"])


def test_missing_required_call_is_retried() -> None:
    """If a required call is missing, the answer's text is emitted, and the model is prompted again. An answer that was
    filtered is not retried.
    """
    required = {"tool_choice": ToolChoice("required")}
    emitted, retry, *_ = run(round_of(**required), "I cannot.")
    assert retry is not None
    assert retry.fault.reason == "NO_CALL"
    assert emitted[:-1] == [TextDelta("I cannot.")]
    assert retry.otherwise == (Ended({0: "stop"}),)
    assert retry.usage == Usage(1, 2, 3)
    assert run(round_of(**required), "")[1] is not None
    assert run(round_of(**required), CALL)[1] is None
    assert run(round_of(**required), "No.", finish="content_filter")[1] is None
    assert run(round_of(**required, retries_allowed=frozenset({EMPTY_ANSWER})), "No.")[1] is None


@pytest.mark.parametrize("content", ["", " \n", "<reasoning>"])
def test_empty_answer_after_an_output_is_retried(content: str) -> None:
    """After a tool output, an answer that contains only whitespace or reasoning counts as empty and is retried. An
    answer with text, a refusal or a hosted item does not count as empty.
    """
    after = round_of(retries_allowed=frozenset({EMPTY_ANSWER}), after_outputs=True)
    answer = answer_for(after, Report())
    answer.feed(ReasoningDelta("hm") if content == "<reasoning>" else TextDelta(content))
    answer.feed(Closed())
    assert answer.retry is not None
    assert answer.retry.fault.reason == EMPTY_ANSWER
    for event in (RefusalDelta("no"), PassThrough({"type": "x"}), TextDelta("18 degrees")):
        answer = answer_for(after, Report())
        answer.feed(event)
        answer.feed(Closed())
        assert answer.retry is None
    assert run(round_of(retries_allowed=frozenset({EMPTY_ANSWER})), content)[1] is None


def test_truncated_stream_is_an_error() -> None:
    """If the stream breaks off within a call, the result is an error, and the partial call is not continued."""
    answer = answer_for(round_of(), Report())
    answer.feed(TextDelta('<tool_call>{"name":"add","argu'))
    emitted = answer.end_of_input()
    assert answer.retry is None
    assert isinstance(emitted[-1], Failed)


@given(st.lists(st.sampled_from([CALL, BROKEN, UNKNOWN, MALFORMED, "text ", "<tool_call>", "{", "\n"])), st.data())
def test_splits_make_no_difference(parts: list[str], data: st.DataObject) -> None:
    """The text, the calls and the reason for a retry are the same wherever the text is split."""
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    both = [run(round_of(STRICT), *cut_text) for cut_text in ([text], pieces)]
    (whole, retry, *_), (cut, other, *_) = both
    assert _without_usage(whole) == _without_usage(cut)
    assert (retry and retry.fault) == (other and other.fault)


def test_text_is_stored_only_for_retries() -> None:
    """If retries are not allowed, the answer's text is not stored."""
    emitted, retry, _, answer = run(round_of(tool("f"), retries_allowed=frozenset()), UNKNOWN)
    assert retry is None
    assert emitted[0] == TextDelta(UNKNOWN)
    assert not isinstance(answer, RetryingAnswer)
