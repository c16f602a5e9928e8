from __future__ import annotations

import json
from typing import Any

import pytest
from support.each import each
from toolsim.core.events import (
    BackendEvent,
    Closed,
    Counted,
    Failed,
    Finished,
    HostedEnded,
    HostedProgress,
    HostedStarted,
    NextMessage,
    Opened,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    StructuredCallStarted,
    StructuredDelta,
    TextDelta,
    Usage,
)
from toolsim.wire.responses.reader import ResponsesReader
from toolsim.wire.sse import ServerSentEvent

MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
DONE = {"type": "response.completed", "response": {"status": "completed", "output": []}}
END: list[BackendEvent] = [Finished("stop"), Closed()]


def stream(*events: dict[str, Any] | str) -> list[BackendEvent]:
    reader = ResponsesReader()
    emitted = []
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        emitted += reader.event(ServerSentEvent("", data))
    return [event for event in emitted + reader.end() if event != StructuredCallStarted()]


def delta(text: str, output_index: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "type": "response.output_text.delta",
        "output_index": output_index,
        "content_index": 0,
        "delta": text,
        **fields,
    }


def test_text_is_emitted_once() -> None:
    """Text that has been emitted from deltas is not emitted again when a later event contains the complete text."""
    done = {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Hi"}
    item = {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE}
    completed = {"type": "response.completed", "response": {"status": "completed", "output": [MESSAGE]}}
    assert stream(delta("H"), delta("i"), done, item, completed) == [TextDelta("H"), TextDelta("i"), *END]
    for late in ([done, item, completed], [item, completed], [completed]):
        assert stream(*late) == [TextDelta("Hi"), *END]


def test_text_without_an_index_is_emitted_once() -> None:
    """Text is emitted only once even if events lack indexes, as with simple servers."""
    bare = {"type": "response.output_text.delta", "delta": "Hi"}
    assert stream(bare, {"type": "response.completed", "response": {"output": [MESSAGE]}}) == [TextDelta("Hi"), *END]


def test_items_without_an_index_are_distinguished_by_id() -> None:
    """If events lack indexes, as with llama.cpp, items are distinguished by their IDs."""
    reasoning = {"type": "reasoning", "id": "rs", "content": [{"type": "reasoning_text", "text": "hm"}]}
    message = {**MESSAGE, "id": "msg"}
    calls = [{"type": "function_call", "call_id": f"fc_{n}", "name": "f", "arguments": f"[{n}]"} for n in (1, 2)]
    items = [reasoning, message, *calls]
    emitted = stream(
        {"type": "response.created", "response": {"id": "resp"}},
        {"type": "response.output_item.added", "item": {**reasoning, "content": []}},
        {"type": "response.reasoning_text.delta", "item_id": "rs", "delta": "hm"},
        {"type": "response.output_item.added", "item": {**message, "content": []}},
        {"type": "response.output_text.delta", "item_id": "msg", "delta": "Hi"},
        *({"type": "response.output_item.added", "item": {**call, "arguments": ""}} for call in calls),
        *({"type": "response.output_item.done", "item": item} for item in items),
        {"type": "response.completed", "response": {"status": "completed", "output": items}},
    )
    expected = [ReasoningDelta("hm", "text"), TextDelta("Hi"), StructuredCall("f", "[1]"), StructuredCall("f", "[2]")]
    assert emitted[1:] == [*expected, *END]


def test_event_line_supplies_the_type() -> None:
    """If the data of a frame lacks ``type``, the type is read from the frame's event line."""
    reader = ResponsesReader()
    assert reader.event(ServerSentEvent("response.output_text.delta", '{"delta":"x"}')) == [TextDelta("x")]


def test_opening_passes_metadata_on() -> None:
    """The event that opens the answer passes on the response's ID, time, model and service tier."""
    response = {"id": "resp_1", "created_at": 5.0, "model": "m", "service_tier": "flex"}
    assert stream({"type": "response.created", "response": response}) == [Opened("resp_1", 5, "m", service_tier="flex")]


def test_items_of_other_kinds_are_emitted_once() -> None:
    """Function call items become structured calls, and tool outputs that the backend invented are dropped. All other
    items are passed through exactly once.
    """
    call = {"type": "function_call", "name": "f", "arguments": "{}", "namespace": "ns", "call_id": "c"}
    custom = {"type": "custom_tool_call", "name": "p", "input": "x"}
    phantom = {"type": "function_call_output", "call_id": "c", "output": "unknown MCP server"}
    mcp = {"type": "mcp_call", "id": "mcp_1"}
    output = [call, custom, phantom, mcp]
    events = [{"type": "response.output_item.done", "output_index": n, "item": item} for n, item in enumerate(output)]
    expected = [StructuredCall("f", "{}", namespace="ns"), StructuredCall("p", "x", "custom"), PassThrough(mcp)]
    completed = {"type": "response.completed", "response": {"status": "completed", "output": output}}
    assert stream(*events, completed) == [*expected, *END]
    assert ResponsesReader().whole({"id": "r", "output": output})[1:] == [*expected, *END]


MCP = {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "find", "arguments": "", "status": "in_progress"}


def of_item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "output_index": 0, "item_id": "mcp_1", "sequence_number": 9, **fields}


def test_hosted_item_is_emitted_step_by_step() -> None:
    """Each event of a hosted tool's item is emitted when it arrives, even if its type is unknown. The backend's
    sequence number is removed.
    """
    done = {**MCP, "arguments": "{}", "output": "x", "status": "completed"}
    emitted = stream(
        {"type": "response.output_item.added", "output_index": 0, "item": MCP},
        of_item("response.mcp_call_arguments.delta", delta="{}"),
        of_item("response.mcp_call_arguments.done", arguments="{}"),
        of_item("response.mcp_call.in_progress"),
        of_item("response.mcp_call.invented", some=1),
        {"type": "response.mcp_call.lost"},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        of_item("response.mcp_call.late"),
        delta("Hi", 1),
        {"type": "response.completed", "response": {"status": "completed", "output": [done, MESSAGE]}},
    )
    assert emitted == [
        HostedStarted("0", MCP),
        HostedProgress("0", "response.mcp_call_arguments.delta", {"delta": "{}"}),
        HostedProgress("0", "response.mcp_call_arguments.done", {"arguments": "{}"}),
        HostedProgress("0", "response.mcp_call.in_progress"),
        HostedProgress("0", "response.mcp_call.invented", {"some": 1}),
        HostedEnded("0", done),
        TextDelta("Hi"),
        *END,
    ]


def test_unfinished_hosted_item_ends_with_the_answer() -> None:
    """A hosted item that is never completed ends when the answer ends. Its content is taken from the final object or,
    if the item is missing there, from its announcement.
    """
    added = {"type": "response.output_item.added", "output_index": 0, "item": MCP}
    whole = {**MCP, "status": "completed"}
    completed = {"type": "response.completed", "response": {"status": "completed", "output": [whole]}}
    assert stream(added, completed) == [HostedStarted("0", MCP), HostedEnded("0", whole), *END]
    assert stream(added, DONE) == [HostedStarted("0", MCP), HostedEnded("0", MCP), *END]


def test_unknown_event_type_is_recorded() -> None:
    """The type of an unknown event is recorded for the log, whether or not the event is passed on."""
    reader = ResponsesReader()
    for event in (
        {"type": "response.output_item.added", "item": MCP},
        {"type": "response.new.kind", "item_id": "mcp_1"},
    ):
        reader.event(ServerSentEvent("", json.dumps(event)))
    assert list(reader.unknown) == ["response.new.kind"]


def test_unfinished_calls_count() -> None:
    """An announced call is emitted even if ``output_item.done`` is missing."""
    added = {"type": "response.output_item.added", "item": {"type": "function_call", "name": "f", "arguments": ""}}
    done = {"type": "response.function_call_arguments.done", "arguments": "{}"}
    assert stream(added, done, DONE) == [StructuredCall("f", "{}"), *END]


def test_reasoning() -> None:
    """The parts of a reasoning summary become paragraphs. If there were no deltas, the reasoning is read from the
    finished item.
    """
    part = {"type": "response.reasoning_summary_text.delta", "output_index": 0}
    item = {"type": "reasoning", "summary": [{"text": "a"}, {"text": "b"}], "content": [{"text": "c"}]}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    streamed = stream({**part, "summary_index": 0, "delta": "a"}, {**part, "summary_index": 1, "delta": "b"}, done)
    assert streamed == [ReasoningDelta("a"), ReasoningDelta("\n\nb")]
    assert stream(done) == [ReasoningDelta("a\n\nb"), ReasoningDelta("c", "text")]
    assert stream({"type": "response.reasoning_text.delta", "delta": "x"}) == [ReasoningDelta("x", "text")]


def test_refusal() -> None:
    """A refusal is emitted only once, either from its deltas or from its final text."""
    assert stream({"type": "response.refusal.delta", "delta": "No"}) == [RefusalDelta("No")]
    assert stream({"type": "response.refusal.done", "refusal": "No"}) == [RefusalDelta("No")]


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "incomplete"}, "length"),
        ({}, "stop"),
    ],
)
def test_finish(response: dict[str, Any], reason: str) -> None:
    """The reason why a response is incomplete is passed on. Events after the terminal event are ignored."""
    kind = f"response.{response.get('status', 'completed')}"
    assert stream({"type": kind, "response": response}, delta("more"), "[DONE]") == [Finished(reason), Closed()]  # type: ignore[arg-type]


def test_usage() -> None:
    """Token counts are passed on, and a missing total is computed. Without token counts, no usage is emitted."""
    usage = {"input_tokens": 3, "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 2}, "x": None}
    done = {"type": "response.completed", "response": {"usage": usage}}
    assert stream(done)[0] == Counted(Usage(3, 4, 7, 0, 2))
    assert stream(DONE) == END


@each(
    "event",
    [
        {"type": "error", "message": "out", "code": "c", "param": None},
        {"type": "error", "error": {"message": "out", "code": "c", "type": "t"}},
        {"error": {"message": "out", "code": "c"}},
        {"type": "response.failed", "response": {"status": "failed", "error": {"message": "out", "code": "c"}}},
        {"type": "response.completed", "response": {"error": {"message": "out", "code": "c"}}},
    ],
)
def test_errors_end_the_answer(event: dict[str, Any]) -> None:
    """An error in any format ends the answer with the backend's message and code."""
    (failed,) = stream(event, delta("more"), DONE)
    assert isinstance(failed, Failed)
    assert (failed.error.message, failed.error.code, failed.error.status) == ("out", "c", 502)


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_unfinished_answer_is_a_failure(status: str) -> None:
    """A non-streamed response that is still in progress and has no output is treated as a failure, rather than as an
    empty answer.
    """
    (failed,) = ResponsesReader().whole({"id": "r", "status": status, "output": []})
    assert isinstance(failed, Failed)
    assert (failed.error.code, failed.error.status) == ("backend_bad_answer", 502)
    assert ResponsesReader().whole({"status": status, "output": [MESSAGE]})[1:] == [TextDelta("Hi"), *END]


def test_invalid_event_fails_the_answer() -> None:
    """An event that is not JSON makes the answer fail, unless the event was truncated by the end of the stream."""
    assert isinstance(stream("{oops")[0], Failed)
    assert ResponsesReader().event(ServerSentEvent("", "{oops", whole=False)) == []
    assert stream("[1]", "null", '{"type":5}', {"type": "ping"}, delta("")) == []


def test_final_object_with_other_indexes() -> None:
    """Items that were streamed are not emitted again, even if they have different indexes in the final object."""
    call = {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}", "status": "completed"}
    thought = {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "Hm"}
    completed = {"type": "response.completed", "response": {"status": "completed", "output": [MESSAGE, call]}}
    emitted = stream(thought, delta("Hi", 1), completed)
    assert emitted == [ReasoningDelta("Hm", "text"), TextDelta("Hi"), StructuredCall("f", "{}"), *END]
    done = {"type": "response.output_item.done", "output_index": 2, "item": call}
    assert stream(thought, delta("Hi", 1), done, completed) == emitted


def test_arguments_only_in_deltas_are_kept() -> None:
    """Arguments that arrive only in deltas are kept. Arguments sent as an object are encoded as JSON text."""
    item = {"type": "function_call", "name": "f", "arguments": ""}
    added = {"type": "response.output_item.added", "output_index": 0, "item": item}
    deltas = [
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": piece}
        for piece in ('{"a"', ":1}")
    ]
    assert stream(added, *deltas, DONE) == [StructuredCall("f", '{"a":1}'), *END]
    done = {"type": "response.output_item.done", "output_index": 0, "item": {**item, "arguments": {"a": 1}}}
    assert stream(done, DONE) == [StructuredCall("f", '{"a":1}'), *END]


def test_truncated_call_is_incomplete() -> None:
    """A call whose item has the status "incomplete" is marked as incomplete."""
    item = {"type": "function_call", "name": "f", "arguments": '{"a":1', "status": "incomplete"}
    body = {"status": "incomplete", "output": [item]}
    assert ResponsesReader().whole(body)[1] == StructuredCall("f", '{"a":1', whole=False)


@pytest.mark.parametrize("body", [{}, {"detail": "loading"}, {"choices": []}])
def test_body_without_a_response_is_a_failure(body: dict[str, Any]) -> None:
    """A body with status 200 that contains no answer is treated as a failure, rather than as an empty answer."""
    assert [type(event) for event in ResponsesReader().whole(body)] == [Failed]


def test_token_counts_precede_text_of_the_final_object() -> None:
    """Token counts in the final object are emitted before its text, because the turn might end within the text."""
    body = {"status": "completed", "output": [MESSAGE], "usage": {"input_tokens": 1, "output_tokens": 2}}
    assert ResponsesReader().whole(body)[1:] == [Counted(Usage(1, 2, 3)), TextDelta("Hi"), *END]


def test_surrogate_halves_are_joined() -> None:
    """If a surrogate pair is split across two deltas, its halves are joined. A lone half at the end becomes U+FFFD."""
    done = {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "whatever"}
    for end in ([done, DONE], [DONE]):
        emitted = stream(delta("a\ud83d"), delta("\ude00b"), delta("\ud83d"), *end)
        assert [event.text for event in emitted if isinstance(event, TextDelta)] == ["a", "😀b", "\ufffd"]


def test_unknown_event_is_passed_on() -> None:
    """An unknown event is passed on without the backend's sequence number and index. Its type is recorded for the
    log.
    """
    reader = ResponsesReader()
    for kind in (
        "response.mcp_call.in_progress",
        "response.mcp_list_tools.failed",
        "response.in_progress",
        "keepalive",
    ):
        assert reader.event(ServerSentEvent(kind, json.dumps({"type": kind}))) == []
    # These two types are usually items, but some backends send them as events.
    flat = ("response.mcp_list_tools", "response.mcp_approval_request")
    for kind in ("response.new_thing.delta", *flat, "x" * 500):
        event = {"type": kind, "sequence_number": 7, "output_index": 3, "item_id": "i", "thing": [1]}
        assert reader.event(ServerSentEvent(kind, json.dumps(event))) == [HostedProgress("", kind, {"thing": [1]})]
    assert list(reader.unknown) == ["response.new_thing.delta", *flat, "x" * 80]


def done(item: dict[str, Any], **place: int) -> dict[str, Any]:
    return {"type": "response.output_item.done", "item": item, **place}


@pytest.mark.parametrize("place", [{"output_index": 0}, {}], ids=["index 0", "no index"])
@pytest.mark.parametrize("is_repeated", [True, False], ids=["all again at the end", "nothing at the end"])
def test_items_that_share_an_index(place: dict[str, int], is_repeated: bool) -> None:
    """Each item is emitted exactly once, even if all items have index 0 or no index."""
    calls = [{"type": "function_call", "name": name, "arguments": "{}"} for name in "fg"]
    calls.append({**calls[1], "call_id": "c"})
    final = {"type": "response.completed", "response": {"output": [MESSAGE, *calls] if is_repeated else []}}
    events = [done(item, **place) for item in (MESSAGE, MESSAGE, *calls, calls[-1])]
    expected = [StructuredCall(call["name"], "{}", call_id=call.get("call_id")) for call in calls]
    assert stream(delta("Hi"), *events, final) == [TextDelta("Hi"), *expected, *END]


def test_new_item_at_a_used_index() -> None:
    """If a new item has the index of a finished item, later events at this index belong to the new item."""
    added = [
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "function_call", "name": name}}
        for name in "fg"
    ]
    arguments = {"type": "response.function_call_arguments.delta", "output_index": 0}
    done = {"type": "response.output_item.done", "output_index": 0}
    emitted = stream(
        added[0],
        {**arguments, "delta": '{"a":1}'},
        {**done, "item": added[0]["item"]},
        added[1],
        {**arguments, "delta": '{"a":2}'},
        {**done, "item": added[1]["item"]},
        DONE,
    )
    assert emitted == [StructuredCall("f", '{"a":1}'), StructuredCall("g", '{"a":2}'), *END]


def test_message_content_can_be_a_string() -> None:
    """A message's content can be a string instead of a list of parts."""
    assert stream({"type": "response.completed", "response": {"output": [{**MESSAGE, "content": "Hi"}]}}) == [
        TextDelta("Hi"),
        *END,
    ]


def test_empty_events_and_space_around_the_terminator() -> None:
    """Empty events are ignored, and whitespace around ``[DONE]`` is accepted. Neither is treated as invalid JSON."""
    assert stream("", " [DONE] ", delta("Hi"), " ", DONE) == [TextDelta("Hi"), *END]


def streamed_ahead(*events: dict[str, Any]) -> list[BackendEvent]:
    reader = ResponsesReader()
    reader.streams_ahead = True
    emitted = [each for event in events for each in reader.event(ServerSentEvent("", json.dumps(event)))]
    return [event for event in emitted if event != StructuredCallStarted()]


def added(index: int, kind: str = "function_call", **fields: str) -> dict[str, Any]:
    item = {"type": kind, "name": "f", **fields}
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def piece(index: int, text: str) -> dict[str, Any]:
    return {"type": "response.function_call_arguments.delta", "output_index": index, "delta": text}


def test_calls_are_streamed_in_pieces() -> None:
    """If incremental calls are enabled, calls are emitted in fragments. The final event of a call has the same key as
    its fragments.
    """
    item = {"type": "function_call", "name": "f", "namespace": "n", "arguments": '{"a":1}'}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    emitted = streamed_ahead(added(0, namespace="n"), piece(0, '{"a"'), piece(0, ":1}"), done, added(1), piece(1, "{"))
    first = [StructuredDelta("0", "f", '{"a"', True, "n"), StructuredDelta("0", "f", ":1}", False, "n")]
    assert emitted == [*first, StructuredCall("f", '{"a":1}', namespace="n"), StructuredDelta("1", "f", "{", True)]
    assert [call.key for call in emitted if isinstance(call, StructuredCall)] == ["0"]


def test_other_calls_are_not_streamed_in_pieces() -> None:
    """Even if incremental calls are enabled, overlapping, custom and unannounced calls are emitted only when complete.
    By default, this applies to all calls.
    """
    assert streamed_ahead(added(0), added(1), piece(1, "{")) == []
    assert streamed_ahead(added(0, "custom_tool_call"), piece(0, "{")) == []
    assert streamed_ahead(piece(0, "{"), added(0), piece(0, "}")) == []
    assert stream(added(0), piece(0, "{")) == []


def message(*texts: str, **fields: str) -> dict[str, Any]:
    return {**MESSAGE, "content": [{"type": "output_text", "text": text} for text in texts], **fields}


def test_texts_of_two_messages_are_separated() -> None:
    """Exactly one separator is inserted between the texts of two messages, regardless of which events contain the
    texts.
    """
    messages = [message("A", "B", id="m1"), message("", id="m2"), message(id="m3"), message("C", "D", id="m4")]
    expected = [TextDelta("A"), TextDelta("B"), NextMessage(), TextDelta("C"), TextDelta("D"), *END]
    completed = {"type": "response.completed", "response": {"output": messages}}
    assert ResponsesReader().whole({"output": messages})[1:] == expected
    deltas = [
        delta(text, at, content_index=part) for at, part, text in ((0, 0, "A"), (0, 1, "B"), (3, 0, "C"), (3, 1, "D"))
    ]
    items = [
        {"type": "response.output_item.done", "output_index": at, "item": item} for at, item in enumerate(messages)
    ]
    announced = [
        {"type": "response.output_item.added", "item": {**item, "content": []}} for item in (messages[0], messages[3])
    ]
    by_id = [
        {"type": "response.output_text.delta", "item_id": f"m{at}", "delta": text}
        for at, text in ((1, "AB"), (4, "CD"))
    ]
    for events in ([completed], [*items, completed], [*deltas, DONE], [*deltas, *items, completed]):
        assert stream(*events) == expected
    assert stream(*announced, *by_id, DONE) == [TextDelta("AB"), NextMessage(), TextDelta("CD"), *END]


def test_alternating_messages_are_separated_once() -> None:
    """If the deltas of two messages alternate, only one separator is inserted between the messages. No separator is
    inserted for a refusal.
    """
    emitted = stream(delta("A", 0), delta("C", 1), delta("B", 0), delta("D", 1), DONE)
    assert emitted == [TextDelta("A"), NextMessage(), TextDelta("C"), TextDelta("B"), TextDelta("D"), *END]
    refusal = {"type": "response.refusal.delta", "output_index": 1, "delta": "No"}
    assert stream(delta("A"), refusal, delta("B"), DONE) == [TextDelta("A"), RefusalDelta("No"), TextDelta("B"), *END]


def test_new_item_id_alone_begins_no_message() -> None:
    """A new item ID alone does not start a message, because some backends change the ID with each event."""
    deltas = [
        {"type": "response.output_text.delta", "item_id": f"m{at}", "delta": text} for at, text in enumerate("AB")
    ]
    assert stream(*deltas, DONE) == [TextDelta("A"), TextDelta("B"), *END]


def parts_of(texts: tuple[str, ...], *, numbers: str, said: frozenset[str]) -> list[dict[str, Any]]:
    """Return the events of a stream with reasoning and a message that consists of the given texts.

    ``said`` selects the events that the backend sends. ``numbers`` selects how text parts are numbered: ``own`` counts
    within each item, ``running`` counts across all items, ``deltas`` counts the deltas, and ``zero`` gives every part
    the number 0.
    """
    reasoning = {"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "hm"}]}
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    message = {"type": "message", "role": "assistant", "id": "msg_1", "content": content}
    events: list[dict[str, Any]] = [
        {"type": "response.output_item.added", "output_index": 0, "item": {**reasoning, "content": []}},
        {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "hm"},
        {"type": "response.output_item.done", "output_index": 0, "item": reasoning},
        {"type": "response.output_item.added", "output_index": 1, "item": {**message, "content": []}},
    ]
    number = 0
    for nth, text in enumerate(texts):
        number = {"own": nth, "running": nth + 1, "zero": 0}.get(numbers, number)
        where = {"output_index": 1, "content_index": number}
        if "part.added" in said:
            events.append({"type": "response.content_part.added", **where, "part": {"type": "output_text", "text": ""}})
        for character in text if "deltas" in said else "":
            events.append(delta(character, 1, content_index=number))
            number += numbers == "deltas"
        if "text.done" in said:
            events.append({"type": "response.output_text.done", **where, "text": text})
        if "part.done" in said:
            events.append({"type": "response.content_part.done", **where, "part": content[nth]})
    if "item.done" in said:
        events.append({"type": "response.output_item.done", "output_index": 1, "item": message})
    output = [reasoning, message] if "final" in said else []
    return [*events, {"type": "response.completed", "response": {"status": "completed", "output": output}}]


ALL = ("part.added", "deltas", "text.done", "part.done", "item.done", "final")


@pytest.mark.parametrize("numbers", ["own", "running", "deltas", "zero"])
@pytest.mark.parametrize("texts", [("One.",), ("One.", "Two."), ("One.", "One.")])
def test_each_text_is_emitted_once_for_any_part_numbers(texts: tuple[str, ...], numbers: str) -> None:
    """Each text is emitted exactly once, regardless of which events contain it and how the message parts are
    numbered.
    """
    for chosen in range(2 ** len(ALL)):
        said = frozenset(name for bit, name in enumerate(ALL) if chosen >> bit & 1)
        if not said & {"deltas", "text.done", "item.done", "final"}:
            continue
        counts = {"own", "running"} | ({"deltas"} if "deltas" in said else set())
        if len(texts) > 1 and numbers not in counts and not _tells_texts_apart(said):
            continue
        emitted = stream(*parts_of(texts, numbers=numbers, said=said))
        assert "".join(event.text for event in emitted if isinstance(event, TextDelta)) == "".join(texts), said
        assert [event.text for event in emitted if isinstance(event, ReasoningDelta)] == ["hm"]


def _tells_texts_apart(said: frozenset[str]) -> bool:
    """Return whether the events show where each text begins, even if the message parts have no numbers."""
    if "deltas" in said:
        return bool(said & {"part.added", "text.done", "part.done"})
    return "text.done" not in said or bool(said & {"part.added", "item.done", "final"})


def test_vllm_stream_is_read() -> None:
    """In gpt-oss streams from vLLM, the part numbers of a message continue the part numbers of the reasoning. The
    message's text is emitted once.
    """
    said = frozenset(ALL)
    call = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
    emitted = stream(*parts_of((call,), numbers="running", said=said))
    assert "".join(event.text for event in emitted if isinstance(event, TextDelta)) == call


@pytest.mark.parametrize("is_inside", [True, False])
def test_error_next_to_a_failed_response(is_inside: bool) -> None:
    """The error message of a failed response is kept, whether it is inside the response object or next to it."""
    error = {"error": {"message": "Out of memory.", "code": 500}}
    response = {"status": "failed", "output": [], "error": None, **(error if is_inside else {})}
    (failed,) = stream({"type": "response.failed", "response": response, **({} if is_inside else error)})
    assert isinstance(failed, Failed)
    assert failed.error.message == "Out of memory."
    _, whole = ResponsesReader().whole({**response, **error})
    assert isinstance(whole, Failed)
    assert whole.error.message == "Out of memory."
