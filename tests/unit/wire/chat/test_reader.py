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
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    TextDelta,
    Usage,
)
from toolsimlib.wire.chat.reader import ChatReader
from toolsimlib.wire.sse import ServerSentEvent


def stream(*chunks: dict[str, Any] | str) -> list[BackendEvent]:
    reader = ChatReader()
    told = []
    for chunk in chunks:
        data = chunk if isinstance(chunk, str) else json.dumps(chunk)
        told += reader.event(ServerSentEvent("", data))
    return [event for event in told + reader.end() if not isinstance(event, Opened)]


def chunk(finish: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def test_text_and_finish() -> None:
    """Deltas, the finish, the counts and the terminator, in that order."""
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 1}}
    told = stream(
        chunk(role="assistant", content=""),
        chunk(content="Hi"),
        chunk("length"),
        {"choices": [], "usage": usage},
        "[DONE]",
    )
    assert told == [TextDelta("Hi"), Finished("length"), Counted(Usage(3, 4, 7, 1)), Closed()]


def test_opened_once() -> None:
    """The first chunk opens the answer, with what it says of itself."""
    reader = ChatReader()
    first = json.dumps({"created": 5, "model": "m", "system_fingerprint": "fp", "choices": []})
    assert reader.event(ServerSentEvent("", first)) == [Opened(None, 5, "m", "fp")]
    assert reader.event(ServerSentEvent("", first)) == []


def test_the_end_without_done() -> None:
    """The end of the stream closes the answer if every choice has finished, and only then."""
    assert stream(chunk("stop"))[-1] == Closed()
    assert stream(chunk("stop"), chunk(content="x", index=1))[-1] == TextDelta("x", 1)
    assert stream() == []


def test_a_second_finish_says_nothing() -> None:
    """Some servers repeat the finish reason with the counts."""
    assert stream(chunk("stop"), chunk("stop"), "[DONE]") == [Finished("stop"), Closed()]


def test_structured_calls_in_fragments() -> None:
    """Calls in fragments are told whole, in the order of their indexes, before the finish; legacy ones too."""
    one = {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a"'}}
    two = {"index": 1, "custom": {"name": "p", "input": "x"}}
    more = {"index": 0, "function": {"arguments": ":1}"}}
    told = stream(chunk(tool_calls=[one]), chunk(tool_calls=[two]), chunk(tool_calls=[more]), chunk("tool_calls"))
    assert told == [StructuredCall("f", '{"a":1}'), StructuredCall("p", "x", "custom"), Finished("stop"), Closed()]
    legacy = stream(chunk(function_call={"name": "f"}), chunk(function_call={"arguments": "{}"}), "[DONE]")
    assert legacy == [StructuredCall("f", "{}"), Closed()]


def test_reasoning_refusal_and_parts() -> None:
    """Both names of reasoning, refusals, and content as a list of parts."""
    assert stream(chunk(reasoning_content="a")) == [ReasoningDelta("a", "text")]
    assert stream(chunk(reasoning="a")) == [ReasoningDelta("a", "text")]
    assert stream(chunk(refusal="no")) == [RefusalDelta("no")]
    assert stream(chunk(content=[{"type": "text", "text": "a"}, {"text": "b"}, 5])) == [TextDelta("ab")]


def test_whole() -> None:
    """A whole completion is read like a stream that comes at once; each choice ends even if it does not say why."""
    body = {
        "choices": [
            {"message": {"content": "a"}},
            {"index": 1, "message": {"content": "b"}, "finish_reason": "length"},
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    expected = [
        TextDelta("a"),
        Finished("stop"),
        TextDelta("b", 1),
        Finished("length", 1),
        Counted(Usage(1, 1, 2)),
        Closed(),
    ]
    assert ChatReader().whole(body)[1:] == expected


@pytest.mark.parametrize("body", [{"error": {"message": "out", "code": 429}}, {"error": "out"}])
def test_failures(body: dict[str, Any]) -> None:
    """An error is the end, streamed or whole; a numeric code becomes text."""
    for told in (stream(chunk(content="a"), body, chunk(content="b"), "[DONE]")[1:], ChatReader().whole(body)):
        (failed,) = told
        assert isinstance(failed, Failed)
        assert failed.error.message == "out"
        assert failed.error.code in (None, "429")


def test_garbage() -> None:
    """A chunk that is not JSON fails the answer, unless the stream's end cut it; oddities are passed over."""
    assert isinstance(stream("{oops")[0], Failed)
    assert ChatReader().event(ServerSentEvent("", "{oops", whole=False)) == []
    assert isinstance(ChatReader().event(ServerSentEvent("error", '{"message":"out"}'))[0], Failed)
    assert stream("[]", '{"choices":5}', '{"choices":[{"delta":5}]}') == []
