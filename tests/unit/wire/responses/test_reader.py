from __future__ import annotations

import json
from typing import Any

import pytest
from toolsimlib.events import (
    BackendEvent,
    Closed,
    Counted,
    Failed,
    Finished,
    Opened,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    TextDelta,
    Usage,
)
from toolsimlib.wire.responses.reader import ResponsesReader
from toolsimlib.wire.sse import ServerSentEvent

MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
DONE = {"type": "response.completed", "response": {"status": "completed", "output": []}}
END: list[BackendEvent] = [Finished("stop"), Closed()]


def stream(*events: dict[str, Any] | str) -> list[BackendEvent]:
    reader = ResponsesReader()
    told = []
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        told += reader.event(ServerSentEvent("", data))
    return told + reader.end()


def delta(text: str, output_index: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "type": "response.output_text.delta",
        "output_index": output_index,
        "content_index": 0,
        "delta": text,
        **fields,
    }


def test_text_is_said_once() -> None:
    """A text that came in deltas is not said again by any of the events and objects that hold it whole."""
    done = {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Hi"}
    item = {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE}
    completed = {"type": "response.completed", "response": {"status": "completed", "output": [MESSAGE]}}
    assert stream(delta("H"), delta("i"), done, item, completed) == [TextDelta("H"), TextDelta("i"), *END]
    for late in ([done, item, completed], [item, completed], [completed]):
        assert stream(*late) == [TextDelta("Hi"), *END]


def test_what_names_no_index_is_said_once_too() -> None:
    """Plain servers leave the indexes out."""
    bare = {"type": "response.output_text.delta", "delta": "Hi"}
    assert stream(bare, {"type": "response.completed", "response": {"output": [MESSAGE]}}) == [TextDelta("Hi"), *END]


def test_the_event_line_names_what_the_data_does_not() -> None:
    """``type`` may stand in the event line alone."""
    reader = ResponsesReader()
    assert reader.event(ServerSentEvent("response.output_text.delta", '{"delta":"x"}')) == [TextDelta("x")]


def test_opened() -> None:
    """The response's id, time, model and tier are kept: its store may be asked for it."""
    response = {"id": "resp_1", "created_at": 5.0, "model": "m", "service_tier": "flex"}
    assert stream({"type": "response.created", "response": response}) == [Opened("resp_1", 5, "m", service_tier="flex")]


def test_items_of_other_kinds() -> None:
    """Structured calls are calls, phantom outputs are dropped, all else is passed through, each once."""
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


def test_calls_that_are_never_done() -> None:
    """A call that was announced, with its arguments in an event of their own, counts without ``output_item.done``."""
    added = {"type": "response.output_item.added", "item": {"type": "function_call", "name": "f", "arguments": ""}}
    done = {"type": "response.function_call_arguments.done", "arguments": "{}"}
    assert stream(added, done, DONE) == [StructuredCall("f", "{}"), *END]


def test_reasoning() -> None:
    """Summary parts become paragraphs; an item without deltas is read whole."""
    part = {"type": "response.reasoning_summary_text.delta", "output_index": 0}
    item = {"type": "reasoning", "summary": [{"text": "a"}, {"text": "b"}], "content": [{"text": "c"}]}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    streamed = stream({**part, "summary_index": 0, "delta": "a"}, {**part, "summary_index": 1, "delta": "b"}, done)
    assert streamed == [ReasoningDelta("a"), ReasoningDelta("\n\nb")]
    assert stream(done) == [ReasoningDelta("a\n\nb"), ReasoningDelta("c", "text")]
    assert stream({"type": "response.reasoning_text.delta", "delta": "x"}) == [ReasoningDelta("x", "text")]


def test_refusal() -> None:
    """A refusal is told as one."""
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
    """The reason of an incomplete response is kept; nothing is read behind the terminal event."""
    kind = f"response.{response.get('status', 'completed')}"
    assert stream({"type": kind, "response": response}, delta("more"), "[DONE]") == [Finished(reason), Closed()]  # type: ignore[arg-type]


def test_usage() -> None:
    """Counts are taken as given; a missing total is the sum, and no counts are no usage."""
    usage = {"input_tokens": 3, "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 2}, "x": None}
    done = {"type": "response.completed", "response": {"usage": usage}}
    assert stream(done)[0] == Counted(Usage(3, 4, 7, 0, 2))
    assert stream(DONE) == END


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "message": "out", "code": "c", "param": None},
        {"type": "error", "error": {"message": "out", "code": "c", "type": "t"}},
        {"error": {"message": "out", "code": "c"}},
        {"type": "response.failed", "response": {"status": "failed", "error": {"message": "out", "code": "c"}}},
        {"type": "response.completed", "response": {"error": {"message": "out", "code": "c"}}},
    ],
)
def test_failures(event: dict[str, Any]) -> None:
    """An error of any shape is the end, with the backend's own words."""
    (failed,) = stream(event, delta("more"), DONE)
    assert isinstance(failed, Failed)
    assert (failed.error.message, failed.error.code, failed.error.status) == ("out", "c", 502)


def test_garbage() -> None:
    """An event that is not JSON fails the answer, unless the stream's end cut it; what is no event is passed over."""
    assert isinstance(stream("{oops")[0], Failed)
    assert ResponsesReader().event(ServerSentEvent("", "{oops", whole=False)) == []
    assert stream("[1]", "null", '{"type":5}', {"type": "unknown"}, delta("")) == []
