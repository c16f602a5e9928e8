from __future__ import annotations

import dataclasses

import pytest
from support.answers import plan
from support.turns import ARGS, CALL, STRICT, chat, responses, run_events, whole_call
from toolsim.core.errors import ApiError
from toolsim.core.events import (
    BackendEvent,
    CallDelta,
    CallEnded,
    CallStarted,
    Closed,
    Counted,
    Ended,
    EndReason,
    Failed,
    Finished,
    FinishReason,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    StructuredDelta,
    TextDelta,
    Usage,
)
from toolsim.core.plan import ToolChoice
from toolsim.core.policy import ApiName
from toolsim.core.report import Report
from toolsim.response import client_calls
from toolsim.response.answer import Answer
from toolsim.response.retry import NO_CALL


def test_refusal_after_a_call_ends_the_turn() -> None:
    """If text after a call ends the turn, a refusal after a call ends it as well, because the client sees the refusal
    as text.
    """
    emitted, report, answer = run_events(chat(), [TextDelta(CALL), RefusalDelta("no")])
    assert emitted[-1] == Ended({0: "tool_calls"})
    assert answer.is_cut
    assert report.tool_cutoff
    assert run_events(responses(), [TextDelta(CALL), RefusalDelta("no")])[0][-1] == RefusalDelta("no")


def test_reasoning_between_calls_does_not_end_the_turn() -> None:
    """Reasoning and built-in tools between calls do not end the turn, because the model will make further calls."""
    for other in (ReasoningDelta("hm"), PassThrough({"type": "mcp_call"})):
        emitted, _, answer = run_events(chat(), [TextDelta(CALL), other, TextDelta(CALL), Finished("stop"), Closed()])
        assert emitted == [*whole_call(1), other, *whole_call(2), Ended({0: "tool_calls"})]
        assert not answer.is_cut


def test_backend_that_ends_after_its_call_is_not_cut_off() -> None:
    """If only one call is allowed and the backend ends right after this call, its stream is read to the end, and its
    token counts reach the client.
    """
    events = [TextDelta(CALL), Finished("stop"), Counted(Usage(1, 2, 3)), Closed()]
    emitted, report, answer = run_events(chat(one_call=True), events)
    assert emitted == [*whole_call(1), Ended({0: "tool_calls"}, Usage(1, 2, 3))]
    assert not answer.is_cut
    assert report.tool_cutoff is None


def test_dropped_calls_do_not_cut_off_the_backend() -> None:
    """If text after a call does not end the turn, toolsim continues to read the backend's stream after it has dropped a
    call. The report lists the dropped calls and marks the answer as truncated.
    """
    emitted, report, answer = run_events(responses(one_call=True), [TextDelta(CALL * 3), Finished("stop"), Closed()])
    assert emitted == [*whole_call(1), Ended({0: "tool_calls"})]
    assert not answer.is_cut
    assert report.tool_cutoff is None
    assert report.dropped_calls == ["OVER_LIMIT:add", "OVER_LIMIT:add"]
    assert report.truncated


def test_turn_that_ends_at_a_dropped_call_is_truncated() -> None:
    """If a dropped call ends the turn, the turn is reported as truncated, even if the call was complete."""
    for pieces in ([CALL * 2], [CALL, "<tool_call>"]):
        _, report, answer = run_events(chat(one_call=True), [TextDelta(piece) for piece in pieces])
        assert answer.is_cut
        assert (report.tool_cutoff, report.dropped_calls) == ("more than 1 calls", ["OVER_LIMIT"])
        assert report.truncated


def test_call_beyond_the_limit_cuts_off_at_its_opening_tag() -> None:
    """If text after a call ends the turn, the backend's stream is cut off at the opening tag of a call beyond the
    limit, before that call is complete.
    """
    emitted, _, answer = run_events(chat(one_call=True), [TextDelta(CALL), TextDelta("\n<tool_"), TextDelta("call>")])
    assert emitted == [*whole_call(1), Ended({0: "tool_calls"})]
    assert answer.is_cut
    _, _, goes_on = run_events(responses(one_call=True), [TextDelta(CALL), TextDelta("<tool_call>")])
    assert not goes_on.is_cut


@pytest.mark.parametrize("broken", [CALL.replace("add", "foo"), CALL.replace("1", '"one"')])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_excess_broken_call_is_not_an_error(api: ApiName, broken: str) -> None:
    """Once the limit on calls has been reached, a broken call to a strict tool is dropped without an error, wherever
    the text is split.
    """
    the_plan, text = plan(api, "chat", True, [STRICT], one_call=True), CALL + broken
    for size in (1, 7, len(text)):
        pieces: list[BackendEvent] = [TextDelta(text[at : at + size]) for at in range(0, len(text), size)]
        emitted, report, _ = run_events(the_plan, [*pieces, Finished("stop"), Closed()])
        assert emitted == [*whole_call(1), Ended({0: "tool_calls"})]
        assert (report.error, report.dropped_calls[0].partition(":")[0]) == (None, "OVER_LIMIT")
    calls: list[BackendEvent] = [StructuredCall("add", ARGS), StructuredCall("add", "oops")]
    assert run_events(the_plan, [*calls, Finished("stop"), Closed()])[0] == [*whole_call(1), Ended({0: "tool_calls"})]


@pytest.mark.parametrize("call", [StructuredCall("add", "oops"), StructuredCall("", ARGS)])
def test_rejected_structured_call_becomes_text(call: StructuredCall) -> None:
    """A rejected structured call becomes text without markup, and the report lists it as a dropped call."""
    emitted, report, _ = run_events(chat(), [call, Finished("stop"), Closed()])
    words, end = emitted
    assert end == Ended({0: "stop"})
    assert isinstance(words, TextDelta)
    assert words.text.endswith(call.arguments)
    assert "<" not in words.text
    assert [code.partition(":")[0] for code in report.dropped_calls] == ["STRUCTURED_CALL"]
    assert report.truncated
    assert [code.partition(":")[0] for code in report.warnings] == ["CALL_AS_TEXT"]


def test_empty_structured_call_is_dropped() -> None:
    """An empty structured call, which some backends send next to text, is dropped. If there is no text, the answer is
    empty.
    """
    emitted, report, _ = run_events(chat(), [StructuredCall("", ""), Finished("stop"), Closed()])
    assert emitted == [Ended({0: "stop"})]
    assert "EMPTY_ANSWER" in report.warnings


@pytest.mark.parametrize("call", [StructuredCall("add", "oops"), StructuredCall("own", ARGS)])
def test_rejected_structured_call_is_retried(call: StructuredCall) -> None:
    """If a rejected structured call causes a retry, the retry contains the arguments exactly as the model wrote
    them.
    """
    the_plan = dataclasses.replace(responses(), retries_allowed=frozenset({"MALFORMED_JSON", "UNKNOWN_TOOL"}))
    _, report, answer = run_events(the_plan, [call])
    assert answer.retry is not None
    assert call.arguments in answer.retry.words
    assert report.warnings == []


def test_xml_text_follows_its_call() -> None:
    """In ``obsidian-xml`` mode, each call is followed by its XML text, regardless of what ends the turn."""
    xml = "<use_tool>\n  <name>add</name>\n  <a>1</a>\n</use_tool>"
    xml_mode = {"output_mode": "obsidian-xml"}
    emitted, _, _ = run_events(chat(policy=xml_mode), [TextDelta(CALL * 2), Finished("stop"), Closed()])
    assert emitted == [
        *whole_call(1),
        TextDelta(xml),
        *whole_call(2),
        TextDelta(f"\n{xml}"),
        Ended({0: "tool_calls"}),
    ]
    emitted, _, answer = run_events(chat(policy=xml_mode | {"stop_after_tools_mode": "first"}), [TextDelta(CALL * 2)])
    assert emitted == [*whole_call(1), TextDelta(xml), Ended({0: "tool_calls"})]
    assert answer.is_cut
    emitted, _, _ = run_events(chat(policy=xml_mode), [TextDelta(CALL, 1), Finished("stop", 1), Closed()])
    assert TextDelta(xml, 1) in emitted


def test_whitespace_is_emitted_without_other_content() -> None:
    """Whitespace is emitted if the answer has no other content, and dropped if the answer has a call."""
    assert run_events(chat(), [TextDelta(" \n"), Finished("stop"), Closed()])[0] == [
        TextDelta(" \n"),
        Ended({0: "stop"}),
    ]
    emitted, _, _ = run_events(chat(), [TextDelta(f" {CALL}\n"), Finished("stop"), Closed()])
    assert emitted == [*whole_call(1), Ended({0: "tool_calls"})]


@pytest.mark.parametrize("text", ["<use_tool><name>add</name><a>1</a>", '[{"name": "add", "arguments": {"a": 1}}'])
@pytest.mark.parametrize(("reason", "calls"), [("stop", ["add"]), ("length", [])])
def test_unclosed_call_counts_unless_truncated(text: str, reason: FinishReason, calls: list[str]) -> None:
    """A call without its closing tag is accepted if the backend stopped normally, but not if the length limit cut off
    the text.
    """
    emitted, _, _ = run_events(chat(), [TextDelta(text), Finished(reason), Closed()])
    assert [event.name for event in emitted if isinstance(event, CallStarted)] == calls
    assert calls or emitted[0] == TextDelta(text)


def test_reason_of_an_early_end_is_reported() -> None:
    """If toolsim ends the turn early, the report states the reason. The finish reason is "tool_calls" only if the
    client received a call.
    """
    emitted, report, _ = run_events(chat(policy={"stop_after_tools_mode": "first"}), [TextDelta(CALL)])
    assert (emitted[-1], report.tool_cutoff) == (Ended({0: "tool_calls"}), "first call")
    strict = plan("chat", "chat", True, [STRICT], policy={"strict_policy": "message"})
    emitted, report, _ = run_events(strict, [TextDelta(CALL.replace("1", '"x"'))])
    assert (emitted[-1], report.tool_cutoff) == (Ended({0: "stop"}), "strict failure")
    assert isinstance(emitted[0], TextDelta)
    assert emitted[0].text.startswith("The model called the tool add and failed (SCHEMA_MISMATCH)")


def test_structured_calls_are_numbered_with_text_calls() -> None:
    """Structured calls and calls in text are numbered together, in their order of appearance."""
    other = '{"a":2}'
    emitted, _, _ = run_events(responses(), [TextDelta(CALL), StructuredCall("add", other), Finished("stop"), Closed()])
    assert emitted == [*whole_call(1), *whole_call(2, arguments=other), Ended({0: "tool_calls"})]


def test_content_after_the_finish_is_ignored() -> None:
    """Further text and calls in a choice that has finished are ignored."""
    emitted, _, _ = run_events(
        chat(), [TextDelta("a"), Finished("stop"), TextDelta("b"), StructuredCall("add", ARGS), Closed()]
    )
    assert emitted == [TextDelta("a"), Ended({0: "stop"})]


def test_each_choice_has_its_events() -> None:
    """Text, whitespace and calls of a second choice are emitted with the index of that choice."""
    events = [TextDelta(text, choice=1) for text in ("x", "y", CALL, " ", "z")]
    emitted, _, _ = run_events(responses(), [*events, Finished("stop", 1), Closed()])
    texts = [TextDelta(text, 1) for text in ("x", "y")]
    assert emitted == [*texts, *whole_call(1, choice=1), TextDelta(" z", 1), Ended({1: "tool_calls"})]


def test_legacy_functions_allow_one_call() -> None:
    """The legacy ``functions`` of the chat API allow only one call per answer, so the turn ends after the first
    call.
    """
    emitted, _, answer = run_events(chat(legacy_functions=True), [TextDelta(CALL * 2)])
    assert emitted == [*whole_call(1), Ended({0: "tool_calls"})]
    assert answer.is_cut


def test_endless_whitespace_is_text() -> None:
    """Endless line breaks are held back up to a limit, and then emitted as text. After a call, they end the turn."""
    emitted, _, _ = run_events(responses(), [TextDelta("\n" * 30_000)] * 3)
    assert "".join(event.text for event in emitted if isinstance(event, TextDelta)) == "\n" * 90_000
    emitted, _, answer = run_events(chat(), [TextDelta(CALL), *[TextDelta("\n" * 30_000)] * 3])
    assert emitted == [*whole_call(1), Ended({0: "tool_calls"})]
    assert answer.is_cut


def test_markup_is_text_without_tools() -> None:
    """If the request has no tools, markup such as ``<tool_call>`` reaches the client as text, byte for byte."""
    emitted, _, _ = run_events(
        dataclasses.replace(responses(), tools=()), [TextDelta(CALL[:9]), TextDelta(CALL[9:]), Closed()]
    )
    assert emitted == [TextDelta(CALL[:9]), TextDelta(CALL[9:]), Ended({0: "stop"})]


INCREMENTAL = {"stream_arguments": "incremental"}


def test_arguments_stream_as_they_arrive() -> None:
    """An incremental call is announced to the client when its header, which contains the tool's name, is complete.
    Concatenated, the fragments that follow equal the arguments.
    """
    the_plan = responses(policy=INCREMENTAL)
    emitted, _, _ = run_events(the_plan, [TextDelta(char) for char in CALL])
    assert emitted[0] == CallStarted(1, "add")
    assert emitted[-1] == CallEnded("completed")
    fragments = [event.text for event in emitted if isinstance(event, CallDelta)]
    assert "".join(fragments) == ARGS
    assert len(fragments) > 3


def test_first_call_of_a_list_is_streamed() -> None:
    """The first call in a list is streamed incrementally. The other calls follow when the tagged block with the list is
    complete.
    """
    text = CALL.replace(">{", ">\n[{").replace("}<", '}, {"name": "add", "arguments": {"a": 2}}]\n<')
    emitted, _, _ = run_events(responses(policy=INCREMENTAL), [TextDelta(char) for char in text])
    starts = [at for at, event in enumerate(emitted) if isinstance(event, CallStarted)]
    assert len(starts) == 2
    first = [event.text for event in emitted[: starts[1]] if isinstance(event, CallDelta)]
    assert "".join(first) == ARGS
    assert len(first) > 3
    assert emitted[starts[1] :] == [CallStarted(2, "add"), CallDelta('{"a": 2}'), CallEnded("completed")]


def test_strict_call_is_never_announced_early() -> None:
    """A call to a strict tool is emitted only after the complete call has been judged."""
    the_plan = plan("responses", "responses", True, [STRICT], policy=INCREMENTAL)
    answer = Answer(the_plan, Report())
    assert [out for char in CALL[:-1] for out in answer.feed(TextDelta(char))] == []
    assert answer.feed(TextDelta(CALL[-1])) == whole_call(1)


def test_announced_call_that_breaks_ends_incomplete() -> None:
    """If a call has been announced to the client and then turns out to be malformed, both the call and the answer end
    as incomplete. The raw text of the call is emitted.
    """
    text = '<tool_call>{"name":"add","arguments":{"a":1, ~~~ </tool_call> ok'
    emitted, _, _ = run_events(responses(policy=INCREMENTAL), [*(TextDelta(char) for char in text), Closed()])
    assert emitted[0] == CallStarted(1, "add")
    assert CallEnded("incomplete") in emitted
    assert emitted[-1] == Ended({0: "length"})
    assert "".join(event.text for event in emitted if isinstance(event, TextDelta)) == text


@pytest.mark.parametrize(
    "other",
    [ReasoningDelta("hm"), RefusalDelta("no"), PassThrough({"type": "web_search_call"}), StructuredCall("add", "{}")],
)
def test_items_within_an_announced_call_are_emitted_after_the_call(other: BackendEvent) -> None:
    """Other content that arrives while an announced call is still open is emitted after this call, because clients
    receive items one after another.
    """
    behind = whole_call(2, arguments="{}") if isinstance(other, StructuredCall) else [other]
    emitted, _, _ = run_events(
        responses(policy=INCREMENTAL), [TextDelta(CALL[:-16]), other, TextDelta(CALL[-16:]), Closed()]
    )
    assert emitted[0] == CallStarted(1, "add")
    assert "".join(event.text for event in emitted if isinstance(event, CallDelta)).removesuffix("{}") == ARGS
    assert emitted[-2 - len(behind) :] == [CallEnded("completed"), *behind, Ended({0: "tool_calls"})]
    emitted, _, _ = run_events(responses(policy=INCREMENTAL), [TextDelta(CALL[:-16]), other, Closed()])
    rest = [event for event in emitted if isinstance(event, CallEnded)]
    assert rest[0] == CallEnded("incomplete")
    assert emitted[-1] == Ended({0: "length"})
    assert all(event in emitted for event in behind)


@pytest.mark.parametrize(("waiting", "reason"), [(client_calls.MAX_WAITING, "tool_calls"), (2_000, "length")])
def test_number_of_waiting_calls_is_limited(waiting: int, reason: EndReason) -> None:
    """Calls that arrive while an announced call is open wait until this call ends. If too many calls wait, the open
    call is broken off, so that the waiting calls are not all emitted in one long step.
    """
    calls = [StructuredCall("add", f'{{"a":{number}}}') for number in range(2, waiting + 2)]
    answer = Answer(responses(policy=INCREMENTAL), Report())
    steps = [answer.feed(event) for event in (TextDelta(CALL[:-16]), *calls, TextDelta(CALL[-16:]), Closed())]
    emitted = [event for step in steps for event in step]
    assert max(map(len, steps)) <= 3 * (client_calls.MAX_WAITING + 2)
    assert [event.status for event in emitted if isinstance(event, CallEnded)].count("completed") == waiting + 1
    assert [event.text for event in emitted if isinstance(event, CallDelta)].count('{"a":2}') == 1
    assert emitted[-1] == Ended({0: reason})


def test_waiting_texts_are_emitted_as_one() -> None:
    """Adjacent texts that arrive during an open call are joined, and emitted in one step after the call."""
    behind: list[BackendEvent] = [TextDelta("a"), TextDelta("b"), ReasoningDelta("hm"), TextDelta("c")]
    first = StructuredDelta("0", "add", '{"a"', is_first=True)
    emitted, _, _ = run_events(
        responses(policy=INCREMENTAL), [first, *behind, StructuredCall("add", ARGS, key="0"), Closed()]
    )
    assert emitted[3:] == [CallEnded("completed"), TextDelta("ab"), ReasoningDelta("hm"), TextDelta("c"), emitted[-1]]


def test_early_end_breaks_the_announced_call() -> None:
    """If a refusal arrives while a second call is still open, the turn ends. The client receives the open call with the
    status "incomplete".
    """
    emitted, _, _ = run_events(chat(policy=INCREMENTAL), [TextDelta(CALL), TextDelta(CALL[:-16]), RefusalDelta("no")])
    assert emitted[-2:] == [CallEnded("incomplete"), Ended({0: "length"})]


def test_nothing_is_retried_after_a_broken_call() -> None:
    """Once the client has seen a broken call, another faulty call or a missing call no longer causes a retry."""
    asks = frozenset({NO_CALL, "SCHEMA_MISMATCH", "MALFORMED_JSON"})
    the_plan = responses(policy=INCREMENTAL, retries_allowed=asks, tool_choice=ToolChoice("required"))
    broken = TextDelta(CALL[:-17] + " ~~~ </tool_call>")
    for events in ([broken], [broken, StructuredCall("add", "[1]")]):
        emitted, _, answer = run_events(the_plan, [*events, Finished("stop"), Closed()])
        assert CallEnded("incomplete") in emitted
        assert emitted[-1] == Ended({0: "length"})
        assert answer.retry is None


def test_failure_at_the_end_is_the_last_event() -> None:
    """If the answer fails when its input ends, only the error is emitted. Whitespace that was held back is dropped."""
    broken = CALL.removesuffix("</tool_call>").replace("1", '"x"')
    the_plan = plan("responses", "responses", True, [STRICT])
    emitted, report, _ = run_events(the_plan, [TextDelta(" "), TextDelta(broken), Finished("stop"), Closed()])
    assert [type(event) for event in emitted] == [Failed]
    assert report.error == "invalid_tool_call"


def test_blocks_are_reported_with_position_and_outcome() -> None:
    """For each tagged block, the report contains the outcome and the position in the choice's text, wherever the text
    is split.
    """
    comma = CALL.replace("1}", "1,}")
    unknown = CALL.replace("add", "gone")
    text = f"a{CALL}é{comma}{unknown}{CALL}"
    the_plan = responses()
    the_plan = dataclasses.replace(the_plan, policy=dataclasses.replace(the_plan.policy, tool_block_max=2))
    for size in (1, 5, len(text)):
        events = [TextDelta(text[at : at + size]) for at in range(0, len(text), size)]
        _, report, _ = run_events(the_plan, [*events, Finished("stop"), Closed()])
        assert [text[block["start"] : block["end"]] for block in report.blocks] == [CALL, comma, unknown, CALL]
        assert [block["verdicts"] for block in report.blocks] == [
            ["call add"],
            ["call add"],
            ["text UNKNOWN_TOOL"],
            ["passed over add"],
        ]
        assert [block["repairs"] for block in report.blocks] == [[], ["TRAILING_COMMA:add"], [], []]


def test_report_is_bounded() -> None:
    """The report lists at most 1,000 tagged blocks, so that a very long answer cannot exhaust the memory."""
    _, report, _ = run_events(responses(), [TextDelta(CALL * 1100), Finished("stop"), Closed()])
    assert len(report.blocks) == 1000
    assert len(report.calls) == 1100


def test_untagged_call_is_reported_like_a_block() -> None:
    """An untagged call is reported with its position and outcome, as a tagged block is."""
    text = '{"name":"add","arguments":{"a":1}}'
    emitted, report, _ = run_events(responses(), [TextDelta(text), Finished("stop"), Closed()])
    assert emitted[:-1] == whole_call(1)
    [block] = report.blocks
    assert (text[block["start"] : block["end"]], block["verdicts"]) == (text, ["call add"])


def test_unclosed_call_is_text_if_the_backend_fails() -> None:
    """A call without its closing tag is accepted if the backend ends normally, but becomes text if the backend
    fails.
    """
    held = "<use_tool><name>add</name><a>1</a>"
    assert run_events(responses(), [TextDelta(held), Finished("stop"), Closed()])[0][:-1] == whole_call(1)
    _, report, answer = run_events(responses(), [TextDelta(held)])
    emitted = answer.fail(ApiError("gone", code="backend_gone", status=502))
    assert [type(event) for event in emitted] == [TextDelta, Failed]
    assert emitted[0] == TextDelta(held)
    assert report.calls == []


def test_violation_message_belongs_to_its_choice() -> None:
    """If an answer has several choices, the error about a strict tool's violated schema is added to the choice in which
    the call occurred.
    """
    strict = plan("chat", "chat", True, [STRICT], choices=2, policy={"strict_policy": "message"})
    emitted, _, _ = run_events(strict, [TextDelta(CALL.replace("1", '"one"'), 1)])
    [words] = [event for event in emitted if isinstance(event, TextDelta)]
    assert words.choice == 1


def test_broken_call_determines_the_finish_reason() -> None:
    """After a broken call, the finish reason is "length". With "tool_calls", a chat client would run the partial
    call.
    """
    broken = '<tool_call>{"name":"add","arguments":{"a":1, ~~~ </tool_call>'
    emitted, report, _ = run_events(
        chat(policy=INCREMENTAL), [*(TextDelta(char) for char in broken), TextDelta(f" or {CALL} text")]
    )
    assert CallEnded("incomplete") in emitted
    assert report.tool_cutoff == "text after tools"
    assert emitted[-1] == Ended({0: "length"})
