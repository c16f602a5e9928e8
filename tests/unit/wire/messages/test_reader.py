"""Conversion of a Messages backend's answer to events, including the deviations of real servers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter
from support.each import each
from support.wire import MessagesAnswer
from toolsim.core.events import (
    BackendEvent,
    Closed,
    Counted,
    Failed,
    Finished,
    Opened,
    ReasoningDelta,
    StructuredCall,
    StructuredCallStarted,
    StructuredDelta,
    TextDelta,
    Usage,
)
from toolsim.wire.json_codec import TOO_DEEP
from toolsim.wire.messages.reader import MessagesReader
from toolsim.wire.sse import ServerSentEvent, SSEDecoder

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
COUNTS = {"input_tokens": 6, "output_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2}
ARGUMENTS = '{"city": "Zürich", "n": 1.0, "long": 0.1234567890123456789}'
CALL = StructuredCall("get_weather", ARGUMENTS)


def decoded(chunks: Iterable[bytes], *, ahead: bool = False) -> tuple[MessagesReader, list[BackendEvent]]:
    """Decode a stream that arrives in ``chunks``, and return the reader and its events."""
    reader, decoder = MessagesReader(), SSEDecoder()
    reader.streams_ahead = ahead
    events: list[BackendEvent] = []
    for chunk in (*chunks, b""):
        for sse in decoder.feed(chunk):
            events += reader.event(sse)
    return reader, [event for event in events + reader.end() if event != StructuredCallStarted()]


def told(*frames: dict[str, Any] | str) -> list[BackendEvent]:
    """Return the events for the given frames, without the event that opens the answer."""
    data = [frame if isinstance(frame, str) else json.dumps(frame) for frame in frames]
    events = decoded([f"data: {text}\n\n".encode() for text in data])[1]
    return [event for event in events if not isinstance(event, Opened)]


def start(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str = "end_turn") -> list[dict[str, Any]]:
    return [{"type": "message_delta", "delta": {"stop_reason": reason}}, {"type": "message_stop"}]


def answer() -> tuple[bytes, dict[str, Any]]:
    """Return one answer in two forms: as a stream and as a JSON document."""
    made = MessagesAnswer(counts=COUNTS)
    frames = [*made.begin(), *made.add_reasoning("hm"), *made.add_text("Hi \N{GRINNING FACE}")]
    frames += made.begin_call("get_weather")
    for piece in ("", ARGUMENTS[:9], ARGUMENTS[9:]):
        frames += made.add_arguments(piece)
    frames += [*made.end_call(), *made.add_text("so")]
    frames += made.end("tool_use")
    return b"".join(frames), made.whole("tool_use")


def test_stream_cut_at_every_byte() -> None:
    """A stream yields the same events regardless of where the network splits it."""
    stream, _ = answer()
    for frame in stream.decode().split("\n\n")[:-1]:
        data = json.loads(frame.partition("data: ")[2])
        if data["type"] != "ping":  # The SDK has no type for ping events.
            EVENT.validate_python(data)
    expected: list[BackendEvent] = [
        Opened(model="text-model"),
        ReasoningDelta("hm", "text"),
        TextDelta("Hi \N{GRINNING FACE}"),
        CALL,
        TextDelta("so"),
        Counted(Usage(12, 5, 17, cached_tokens=4)),
        Finished("stop"),
        Closed(),
    ]
    reader, events = decoded([stream])
    assert events == expected
    assert reader.unknown == {}
    for at in range(len(stream)):
        assert decoded([stream[:at], stream[at:]])[1] == expected


def test_non_streamed_answer_equals_its_stream() -> None:
    """A non-streamed answer yields the same events as its stream, except that the usage precedes the text."""
    stream, whole = answer()
    Message.model_validate(whole)
    streamed = decoded([stream])[1]
    read = [event for event in MessagesReader().whole(whole) if event != StructuredCallStarted()]
    counts = [event for event in read if isinstance(event, Counted)]
    assert read.index(counts[0]) == 1
    assert [type(event) for event in read if event not in counts] == [
        type(event) for event in streamed if not isinstance(event, Counted)
    ]
    calls = [event for event in read if isinstance(event, StructuredCall)]
    assert [json.loads(call.arguments) for call in calls] == [json.loads(ARGUMENTS)]
    assert calls[0].call_id == "toolu_b2"


@pytest.mark.parametrize("ahead", [True, False])
def test_call_pieces_are_emitted_on_request(ahead: bool) -> None:
    """If incremental calls are enabled, the fragments of a call are emitted as they arrive. Concatenated, the fragments
    equal the arguments.
    """
    stream, _ = answer()
    _, events = decoded([stream], ahead=ahead)
    pieces = [event for event in events if isinstance(event, StructuredDelta)]
    [whole] = [event for event in events if isinstance(event, StructuredCall)]
    assert "".join(piece.text for piece in pieces) == (ARGUMENTS if ahead else "")
    assert {piece.key for piece in pieces} == ({whole.key} if ahead else set())
    assert [piece.text for piece in pieces if piece.is_first] == [piece.text for piece in pieces[:1]]


def test_arguments_in_the_start_event_are_used() -> None:
    """Arguments in a call's start event are used, because some gateways send no deltas. If there are no arguments at
    all, they are ``{}``.
    """
    at_once = start(0, "tool_use", name="f", input={"a": 1.0})
    assert told(at_once, stop(0), *ended())[0] == StructuredCall("f", '{"a":1.0}')
    assert told(start(0, "tool_use", name="f", input={}), stop(0), *ended())[0] == StructuredCall("f", "{}")


@pytest.mark.parametrize("number", ["1e5", "0.1234567890123456789", "12345678901234567890.5", "-0.0"])
def test_arguments_sent_as_an_object_keep_their_digits(number: str) -> None:
    """If arguments arrive as an object, numbers keep their exact digits."""
    frame = '{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","name":"f","input":{"a":%s}}}'
    assert told(frame % number, stop(0), *ended())[0] == StructuredCall("f", f'{{"a":{number}}}')


def test_text_in_the_start_event_precedes_deltas() -> None:
    """Text in the start event of a content block precedes the text in its deltas. A text delta is accepted even if
    there was no start event.
    """
    assert told(start(0, "text", text="a"), delta(0, "text_delta", text="b"), delta(5, "text_delta", text="c")) == [
        *(TextDelta("a"), TextDelta("b"), TextDelta("c"))
    ]


def test_surrogate_halves_are_joined() -> None:
    """If a surrogate pair is split across two deltas, its halves are joined. A lone half is replaced with U+FFFD."""
    halves = [delta(0, "text_delta", text="\ud83d"), delta(0, "text_delta", text="\ude00")]
    assert told(start(0, "text", text=""), *halves, stop(0)) == [TextDelta("\N{GRINNING FACE}")]
    assert told(start(0, "thinking", thinking=""), delta(0, "thinking_delta", thinking="x\ud83d"), stop(0)) == [
        *(ReasoningDelta("x", "text"), ReasoningDelta("\N{REPLACEMENT CHARACTER}", "text"))
    ]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("of tomorrow", "stop"),
    ],
)
def test_stop_reasons(reason: str, finish: str) -> None:
    """Each stop reason is mapped to a finish reason. An unknown stop reason counts as a normal end."""
    assert told(*ended(reason)) == [Finished(finish), Closed()]
    assert MessagesReader().whole({"content": [], "stop_reason": reason})[1:] == [Finished(finish), Closed()]


def test_broken_off_answer_is_not_closed() -> None:
    """If a stream breaks off before the stop reason, the answer does not count as complete."""
    started = [start(0, "tool_use", name="f"), delta(0, "input_json_delta", partial_json='{"a":')]
    assert told(*started) == []
    assert told(*started, *ended("max_tokens")[:1]) == [
        *(StructuredCall("f", '{"a":', whole=False), Finished("length"), Closed())
    ]
    stream, _ = answer()
    for at in range(stream.index(b'"message_delta"')):
        assert Closed() not in decoded([stream[:at]])[1]


@each(
    ("frame", "message"),
    [
        ('{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "Overloaded"),
        ('{"type":"error","message":"flat"}', "flat"),
        ('{"error":{"message":"of a gateway"}}', "of a gateway"),
        ("{oops", "The backend sent an event that is not JSON."),
        ("[" * 40_000, f"The backend sent an event that cannot be read. {TOO_DEEP}."),
    ],
)
def test_errors_end_the_answer(frame: str, message: str) -> None:
    """An error in any format ends the answer, and all later events are ignored."""
    *_, failed = told(start(0, "text", text="a"), frame, start(1, "text", text="b"), *ended())
    assert isinstance(failed, Failed)
    assert failed.error.message == message
    assert failed.error.status == 502


def test_malformed_values_are_ignored() -> None:
    """Values of the wrong type, missing fields and empty frames are ignored."""
    odd: list[Any] = ["[]", "5", "null", " ", "[DONE]", '{"type":5}', '{"type":"content_block_start"}']
    odd += [start(0, "text", text=5), stop(9), delta(0, "text_delta", text=None)]
    odd += [{"type": "message_delta", "delta": [], "usage": "many"}, {"type": "message_delta", "delta": {}}]
    assert told(*odd, *ended()) == [Finished("stop"), Closed()]
    assert MessagesReader().event(ServerSentEvent("", "{oops", whole=False)) == []


def test_server_tool_blocks_are_skipped() -> None:
    """Blocks and deltas of server tools are skipped. Blocks and deltas of unknown types are also skipped, and their
    types are recorded for the log.
    """
    reader, events = decoded(
        f"data: {json.dumps(frame)}\n\n".encode()
        for frame in (
            *(start(0, "server_tool_use", name="web_search"), start(1, "web_search_tool_result"), stop(1)),
            *(start(2, "text"), delta(2, "citations_delta", citation={}), delta(2, "signature_delta", signature="")),
            *(start(3, "hologram"), delta(3, "light_delta"), {"type": "message_new"}, *ended()),
        )
    )
    assert events == [Opened(), Finished("stop"), Closed()]
    assert list(reader.unknown) == ["hologram", "light_delta", "message_new"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"type": "error", "error": {"message": "Overloaded"}}, "Overloaded"),
        ({"message": "Not here"}, "Not here"),
        ({"choices": []}, "The backend's answer has no 'content': it might use another API (see toolsim_backend)."),
    ],
)
def test_non_streamed_failures(body: dict[str, Any], message: str) -> None:
    """If a body with status 200 contains no answer, the error quotes the server's message."""
    [failed] = MessagesReader().whole(body)
    assert isinstance(failed, Failed)
    assert failed.error.message == message
