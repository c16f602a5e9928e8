"""Tests for WebSocket mode without a socket: parsing messages, creating requests, and converting answers to
messages.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseSteerFailedEvent
from openai.types.responses.responses_server_event import ResponsesServerEvent, ResponseWsError
from pydantic import TypeAdapter
from support.each import each
from support.open_responses import types
from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.events import Ended, Failed, Opened, TextDelta
from toolsim.core.fair_cache import FairCache
from toolsim.core.plan import AnswerForm
from toolsim.sockets import protocol
from toolsim.sockets.protocol import (
    TRUNCATED,
    BadMessage,
    ClientMessage,
    Context,
    RecentTurns,
    SocketAnswer,
    SocketTurn,
    draft_of,
    error_message,
    prepared,
    read_message,
)
from toolsim.wire.json_codec import TOO_DEEP
from toolsim.wire.responses.request import echo
from toolsim.wire.responses.writer import ResponsesWriter

EVENT: TypeAdapter[ResponsesServerEvent] = TypeAdapter(ResponsesServerEvent)
HELLO = {"role": "user", "content": "Hello"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c_1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c_1", "output": "18"}


NEW = SocketTurn(b"")


def create(**fields: Any) -> str:
    return json.dumps({"type": "response.create", "model": "m", **fields})


def read(text: str) -> ClientMessage:
    return read_message(text.encode())


def stream_of(text: str = "Hi \u2028 there", error: ApiError | None = None, **body: Any) -> bytes:
    """Return the event stream that an HTTP client would receive for an answer with the given text or error."""
    writer = ResponsesWriter(AnswerForm(stream=True, model="m", echo=echo(body)))
    end = Ended({0: "stop"}) if error is None else Failed(error)
    frames = [writer.write(event) for event in (Opened(), TextDelta(text), end)]
    return b": a comment\n\n" + b"".join(b"".join(some) for some in frames)


def fed(answer: SocketAnswer, data: bytes) -> list[str]:
    return [message for messages in answer.feed(data) for message in messages]


def answered(
    data: bytes, turn: SocketTurn = NEW, lane: str = "", cuts: tuple[int, ...] = ()
) -> tuple[SocketAnswer, list[Any]]:
    answer, messages = SocketAnswer(turn, lane), []
    answer.begin(200, "text/event-stream; charset=utf-8", {})
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        messages += fed(answer, data[start:end]) if end > start else []
    return answer, [json.loads(message) for message in messages + fed(answer, b"")]


@given(st.lists(st.integers(0, 2500), max_size=8), st.sampled_from(["", "main", 'a"b']))
def test_each_event_becomes_one_message(cuts: list[int], lane: str) -> None:
    """Each event in the stream becomes one message of a type that the API defines, regardless of how the bytes are
    split. If the request names a lane, the message contains it as ``stream_id``.
    """
    data = stream_of()
    places = tuple(sorted(min(cut, len(data)) for cut in cuts))
    answer, messages = answered(data, lane=lane, cuts=places)
    sent = [json.loads(line.removeprefix("data: ")) for line in data.decode().split("\n") if line.startswith("data: {")]
    assert messages == [{**event, **({"stream_id": lane} if lane else {})} for event in sent]
    assert (answer.is_over, answer.has_failed) == (True, False)
    for message in messages:
        EVENT.validate_python(message)


def test_answer_cut_at_any_byte_has_ended() -> None:
    """Regardless of where the backend's stream breaks off, the answer has ended. It ends with an error, unless its last
    event has already arrived.
    """
    data = stream_of("Hi")
    for at in range(len(data)):
        answer, messages = answered(data[:at])
        assert answer.is_over
        whole = [message for message in messages if message["type"] == "response.completed"]
        assert answer.has_failed is not bool(whole)
        assert whole or messages[-1]["error"]["code"] == TRUNCATED.code


@given(st.binary(max_size=200))
def test_any_bytes_become_json_messages(data: bytes) -> None:
    """Even if the backend sends arbitrary bytes, the client receives only valid JSON messages."""
    answer, _ = answered(data)
    assert answer.has_failed


def test_oversized_event_ends_the_answer() -> None:
    """If an event from the backend is too large, the answer ends with a single error message."""
    answer, messages = answered(b'data: {"type":"response.completed","x":[' + b"1," * 60_000 + b"1]}\n\n" + stream_of())
    assert [message["error"]["code"] for message in messages] == ["backend_bad_event"]
    assert answer.has_failed


def test_failed_stream_ends_once() -> None:
    """A failed HTTP stream ends with two events (``error`` and ``response.failed``). The WebSocket client receives only
    one, because clients treat each of them as the end.
    """
    data = stream_of(error=ApiError("Out.", code="backend_error"))
    answer, messages = answered(data)
    assert [message["type"] for message in messages[-2:]] == ["response.output_item.done", "response.failed"]
    assert answer.has_failed
    answer, messages = answered(data[: data.index(b"event: response.failed")])
    assert (messages[-1]["type"], messages[-1]["message"], answer.has_failed) == ("error", "Out.", True)


def test_http_error_becomes_an_error_event() -> None:
    """An HTTP error becomes an error event that conforms to the API's types, even if the body of the HTTP error cannot
    be parsed.
    """
    answer = SocketAnswer(NEW, "main")
    answer.begin(429, "application/json", {"retry-after": "3"})
    assert fed(answer, b'{"error":{"message":"Slow.","type":"x",') == []
    assert fed(answer, b'"param":null,"code":"rate_limit_exceeded"}}') == []
    [message] = [json.loads(text) for text in fed(answer, b"")]
    read = ResponseWsError.model_validate(message)
    types.WebSocketErrorEvent.model_validate(message)
    assert (read.status, read.error.code, read.stream_id) == (429, "rate_limit_exceeded", "main")
    assert message["headers"] == {"retry-after": "3"}
    answer = SocketAnswer(NEW, "")
    answer.begin(502, "text/html", {})
    fed(answer, b"<html>")
    [message] = [json.loads(text) for text in fed(answer, b"")]
    assert (message["status"], answer.has_failed) == (502, True)


def test_non_streamed_response_is_a_terminal_event() -> None:
    """If the backend did not stream a response, the WebSocket client receives it as a single final event."""
    answer = SocketAnswer(NEW, "")
    answer.begin(200, "application/json", {})
    fed(answer, b'{"object":"response","id":"r","status":"completed","output":[]}')
    [message] = [json.loads(text) for text in fed(answer, b"")]
    assert (message["type"], message["response"]["id"], answer.has_failed) == ("response.completed", "r", False)


@each(
    ("text", "param", "lane"),
    [
        ("[]", None, ""),
        ("{", None, ""),
        ('{"type":"response.create","x":NaN}', None, ""),
        ('{"type":"session.update","stream_id":"a"}', "type", "a"),
        ('{"type":5}', "type", ""),
        (create(stream_id=5), "stream_id", ""),
        (create(stream_id="x" * 257), "stream_id", ""),
        ("[" * 100_000, None, ""),
        (create(background=True, stream_id="a"), "background", "a"),
        (create(generate="no"), "generate", ""),
    ],
)
def test_bad_messages_cause_errors(text: str, param: str | None, lane: str) -> None:
    """An invalid message causes an error in the API's format. If the message names a lane, the error names it as
    well.
    """
    with pytest.raises(BadMessage) as raised:
        read(text)
    assert (raised.value.error.param, raised.value.lane) == (param, lane)
    types.WebSocketErrorEvent.model_validate_json(error_message(raised.value.error, raised.value.lane))


def test_error_of_a_nested_message() -> None:
    with pytest.raises(BadMessage, match=TOO_DEEP):
        read(create(input=[]).replace("[]", "[" * 3_000 + "]" * 3_000))


def test_request_has_the_fields_of_a_post() -> None:
    """The request made from a message has the same fields as an HTTP request, except that ``stream`` is always true."""
    message = read(create(input="x", stream=False, stream_id="a", generate=True, background=False))
    assert message.draft is not None
    assert json.loads(message.draft.body) == {"model": "m", "input": "x", "stream": True, "background": False}
    assert (message.kind, message.lane, message.draft.prepared) == ("create", "a", None)
    warm_up = read(create(input="x", prompt_cache_options={"prewarm": True}, generate=True)).draft
    assert warm_up is not None
    assert warm_up.prepared is not None
    assert read('{"type":"response.processed","response_id":"r"}').kind == "processed"


def test_steering_is_refused_with_its_event() -> None:
    """A steering message is refused with the event that the API defines for this purpose. The event contains the
    client's input.
    """
    steer = {"type": "response.steer", "previous_response_id": "r", "input": "Stop.", "stream_id": "a"}
    event = ResponseSteerFailedEvent.model_validate_json(read_message(json.dumps(steer).encode()).refusal)
    assert (event.error.code, event.steer.input, event.stream_id) == ("steering_not_supported", "Stop.", "a")


def remember(max_bytes: int) -> RecentTurns:
    return RecentTurns(FairCache(1000, max_bytes), "owner")


def remembering(
    output: list[dict[str, Any]], recent: RecentTurns | None = None, **body: Any
) -> tuple[RecentTurns, str, SocketAnswer]:
    """Answer one request. Return the turns that the connection remembers afterward, the ID of the response, and the
    answer.
    """
    recent = recent or remember(10_000)
    turn = recent.turn(draft_of({"model": "m", **body}), has_store=False)
    answer = SocketAnswer(turn, "")
    answer.begin(200, "application/json", {})
    name = f"resp_{len(turn.body)}"
    response = {"id": name, "status": "completed", "store": False, "output": output}
    fed(answer, json.dumps(response).encode())
    fed(answer, b"")
    recent.take(answer, has_store=False)
    return recent, name, answer


def asked(recent: RecentTurns, **body: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(recent.turn(draft_of({"model": "m", **body}), has_store=False).body)
    return made


def test_continuation_contains_previous_turns() -> None:
    """A request that continues a response is sent with all previous turns in order. Its answer contains the ID of the
    response that it continues.
    """
    recent, first, _ = remembering([CALL], input="Hello")
    recent, second, answer = remembering([HELLO], recent, input=[OUTPUT], previous_response_id=first)
    body = asked(recent, input=[HELLO], previous_response_id=second, instructions="i")
    assert body == {"model": "m", "instructions": "i", "input": [HELLO, CALL, OUTPUT, HELLO, HELLO]}
    assert asked(recent, input="x", previous_response_id=first)["input"][:2] == [HELLO, CALL]
    _, messages = answered(stream_of(instructions='a "previous_response_id":null'), answer.turn)
    assert {message["response"]["previous_response_id"] for message in messages if "response" in message} == {first}
    assert messages[0]["response"]["instructions"] == 'a "previous_response_id":null'


@pytest.mark.parametrize("id", ["r\\1", "\\g<x>", 'r"', "\\"])
def test_response_id_is_inserted_literally(id: str) -> None:
    """The ID of the previous response is inserted into the answer literally, even if it looks like a regular-expression
    template.
    """
    _, messages = answered(stream_of(), SocketTurn(b"", previous=id))
    assert {message["response"]["previous_response_id"] for message in messages if "response" in message} == {id}


def test_unknown_response_id_is_left_to_the_store() -> None:
    """If a connection does not know the previous response, the proxy looks it up in the store. If the response cannot
    have been stored, the request is refused.
    """
    recent = remember(1000)
    assert asked(recent, input="x", previous_response_id="r")["previous_response_id"] == "r"
    with pytest.raises(BadRequest) as raised:
        asked(recent, input="x", previous_response_id="r", store=False)
    assert raised.value.error.code == "previous_response_not_found"
    body = {"model": "m", "input": "x", "previous_response_id": "r", "store": False}
    assert json.loads(recent.turn(draft_of(body), has_store=True).body) == body
    for wrong in (5, [5], None):
        assert asked(recent, input=wrong)["input"] == wrong


def test_output_without_its_call_is_an_error() -> None:
    """A tool output without its call is an error only if the connection knows the entire conversation."""
    recent, first, _ = remembering([HELLO], input="Hello")
    with pytest.raises(BadRequest, match="No tool call found"):
        asked(recent, input=[OUTPUT], previous_response_id=first)
    assert asked(recent, input=[CALL, OUTPUT], previous_response_id=first)["input"][-2:] == [CALL, OUTPUT]
    assert asked(recent, input=[OUTPUT])["input"] == [OUTPUT]


def test_stored_answer_is_left_to_the_store() -> None:
    """If an answer was stored, the connection does not remember it, and the store handles continuations. A response is
    also forgotten if a continuation of it fails.
    """
    recent = remember(1000)
    turn = recent.turn(draft_of({"model": "m", "input": "x"}), has_store=True)
    answer = SocketAnswer(turn, "")
    answer.response = {"id": "r", "status": "completed", "store": True, "output": []}
    recent.take(answer, has_store=True)
    assert asked(recent, input="y", previous_response_id="r")["previous_response_id"] == "r"
    recent.take(answer, has_store=False)
    turn = recent.turn(draft_of({"model": "m", "input": "y", "previous_response_id": "r"}), has_store=False)
    assert turn.previous == "r"
    failed, _ = answered(b"", turn)
    recent.take(failed, has_store=False)
    assert asked(recent, input="y", previous_response_id="r")["previous_response_id"] == "r"


def test_compacted_conversation_continues_from_its_summary() -> None:
    """After a compaction, the conversation continues from its summary. The item that triggers the compaction is sent to
    the model but not remembered.
    """
    recent, first, _ = remembering([CALL], input="Hello")
    trigger = {"type": "compaction_trigger"}
    body = asked(recent, input=[OUTPUT, trigger], previous_response_id=first)
    assert body["input"] == [HELLO, CALL, OUTPUT, trigger]
    item = {"type": "compaction", "encrypted_content": "toolsim:eA=="}
    recent, second, _ = remembering([item], recent, input=[OUTPUT, trigger], previous_response_id=first)
    assert asked(recent, input=[HELLO], previous_response_id=second)["input"] == [HELLO, item, HELLO]


def test_memory_is_bounded() -> None:
    """If the memory limit is exceeded, the oldest conversations are forgotten first. A conversation that is larger than
    the limit is not remembered.
    """
    recent, names = remember(300), []
    for number in range(5):
        recent, name, _ = remembering([HELLO], recent, input="x" * (50 + number))
        names.append(name)
    known = [
        name for name in names if "previous_response_id" not in asked(recent, input="y", previous_response_id=name)
    ]
    assert known == names[-len(known) :]
    assert 1 <= len(known) < 5
    recent, name, _ = remembering([HELLO], recent, input="x" * 400)
    assert asked(recent, input="y", previous_response_id=name)["previous_response_id"] == name


def test_connections_share_the_memory() -> None:
    """All connections share a memory limit, but a connection cannot access another connection's conversations. A
    connection that uses too much memory loses its own conversations first.
    """
    places = FairCache[Context](1000, 1000)
    small, name, _ = remembering([HELLO], RecentTurns(places, "small"), input="x")
    large = RecentTurns(places, "large")
    for number in range(5):
        large, other, _ = remembering([HELLO], large, input="y" * (200 + number))
    assert len(asked(small, input="z", previous_response_id=name)["input"]) == 3
    assert asked(small, input="z", previous_response_id=other)["previous_response_id"] == other
    assert len(asked(large, input="z", previous_response_id=other)["input"]) == 3
    large.clear()
    assert asked(large, input="z", previous_response_id=other)["previous_response_id"] == other


@given(st.text())
def test_any_message_is_answered(text: str) -> None:
    """Any text that is not a valid message is answered with an error event, which is valid JSON."""
    with pytest.raises(BadMessage) as raised:
        read(text)
    json.loads(error_message(raised.value.error, raised.value.lane))


def test_warm_up_can_be_continued() -> None:
    """A warm-up is answered with a response that has no output and can be continued."""
    answer, messages = answered(prepared({"model": "m", "tools": [], "store": False}))
    assert [message["type"] for message in messages] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    assert (messages[-1]["response"]["output"], messages[-1]["response"]["store"]) == ([], False)
    assert messages[-1]["response"]["usage"]["total_tokens"] == 0
    assert not answer.has_failed


def test_number_of_remembered_responses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection remembers a limited number of responses, however small they are. The oldest are forgotten first."""
    monkeypatch.setattr(protocol, "MAX_NAMES", 3)
    recent, names = remember(1000), []
    for number in range(5):
        recent, name, _answer = remembering([HELLO], recent, input="x" * (number + 1))
        names.append(name)
    assert list(recent._names) == names[2:]
    assert [recent._find(name) is not None for name in names] == [False, False, True, True, True]
