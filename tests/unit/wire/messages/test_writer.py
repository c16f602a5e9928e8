"""Messages API streams and answers, validated with the SDK's types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter
from support.each import each
from toolsim.core.errors import ApiError
from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Ended,
    Failed,
    KeepAlive,
    Opened,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Usage,
)
from toolsim.core.plan import AnswerForm
from toolsim.wire.messages.writer import MessagesWriter

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
CALL = (CallStarted(4, "get_weather"), CallDelta('{"city":'), CallDelta(' "Rome", "n": 1.0}'), CallEnded())
USED = Usage(10, 5, 15, cached_tokens=4)


def written(*events: ClientEvent, stream: bool = True) -> tuple[MessagesWriter, list[dict[str, Any]]]:
    writer = MessagesWriter(AnswerForm(stream, "m"))
    frames = b"".join(frame for event in events for frame in writer.write(event)).decode()
    parsed = []
    for frame in frames.split("\n\n")[:-1]:
        name, data = frame.split("\n")
        parsed.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {parsed[-1]['type']}"
    return writer, parsed


def shape(frames: list[dict[str, Any]]) -> list[Any]:
    return [(frame["type"], frame.get("index")) for frame in frames]


def test_stream_has_the_sdks_types() -> None:
    """In a stream, content blocks follow one another with increasing indexes, and the usage comes last."""
    _, frames = written(
        Opened(), ReasoningDelta("hm"), TextDelta("Hi"), *CALL, TextDelta("so"), Ended({0: "tool_calls"}, USED)
    )
    for frame in frames:
        EVENT.validate_python(frame)
    assert shape(frames) == [
        ("message_start", None),
        *[(f"content_block_{kind}", 0) for kind in ("start", "delta", "stop")],
        *[(f"content_block_{kind}", 1) for kind in ("start", "delta", "stop")],
        *[(f"content_block_{kind}", 2) for kind in ("start", "delta", "delta", "stop")],
        *[(f"content_block_{kind}", 3) for kind in ("start", "delta", "stop")],
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert frames[7]["content_block"] == {"type": "tool_use", "id": "toolu_004", "name": "get_weather", "input": {}}
    assert frames[-2] == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"input_tokens": 6, "output_tokens": 5, "cache_read_input_tokens": 4},
    }


def test_non_streamed_answer_has_the_sdks_type() -> None:
    """A non-streamed answer contains the same blocks as a stream. The arguments of a call are an object in which
    numbers keep their exact digits.
    """
    writer, frames = written(Opened(), TextDelta("Hi"), *CALL, Ended({0: "tool_calls"}, USED), stream=False)
    assert frames == []
    assert writer.body is not None
    Message.model_validate(writer.body, strict=True)
    assert writer.body["content"] == [
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "toolu_004", "name": "get_weather", "input": {"city": "Rome", "n": 1.0}},
    ]
    assert json.dumps(writer.body["content"][1]["input"]["n"]) == "1.0"


@each(
    ("events", "reason"),
    [
        ([TextDelta("x"), Ended({0: "stop"})], "end_turn"),
        ([TextDelta("x"), Ended({0: "length"})], "max_tokens"),
        ([TextDelta("x"), Ended({0: "content_filter"})], "refusal"),
        ([RefusalDelta("no"), Ended({0: "stop"})], "refusal"),
        ([CallStarted(1, "f"), CallDelta("{"), CallEnded("incomplete"), Ended({0: "length"})], "max_tokens"),
        ([CallStarted(1, "f"), CallEnded(), Ended({0: "tool_calls"})], "tool_use"),
        ([Ended({0: "stop"})], "end_turn"),
    ],
)
@each("stream", [True, False])
def test_stop_reasons(events: list[ClientEvent], reason: str, stream: bool) -> None:
    """Every way in which an answer can end is mapped to a stop reason, streamed or not."""
    writer, frames = written(*events, stream=stream)
    assert (frames[-2]["delta"] if stream else writer.body or {})["stop_reason"] == reason


def test_pings_and_failures() -> None:
    """Pings do not affect a stream. A failure is sent as the last event of a stream, or as the error of a non-streamed
    answer.
    """
    _, frames = written(KeepAlive(), TextDelta("x"), KeepAlive(), Failed(ApiError("Gone.", status=502)))
    assert [frame["type"] for frame in frames][0::3] == ["ping", "content_block_delta"]
    assert frames[-1]["error"] == {"type": "api_error", "message": "Gone."}
    writer, _ = written(Failed(ApiError("Gone.", status=502)), stream=False)
    assert writer.error is not None
    assert writer.body is None


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("{}", {}),
        ("", {}),
        ("[1]", {"arguments": "[1]"}),
        ("{oops", {"arguments": "{oops"}),
        ('{"a":NaN}', {"arguments": '{"a":NaN}'}),
    ],
)
def test_non_streamed_arguments_are_always_an_object(arguments: str, value: Any) -> None:
    """Arguments that are not a JSON object are wrapped in an object, because the API accepts nothing else."""
    delta = [CallDelta(arguments)] if arguments else []
    writer, _ = written(CallStarted(1, "f"), *delta, CallEnded(), Ended({0: "tool_calls"}), stream=False)
    assert writer.body is not None
    assert writer.body["content"][0]["input"] == value


@pytest.mark.parametrize(
    "number", ["1.0", "-0", "1e5", "3.14159265358979323846", "12345678901234567890.5", "1e999", "7" * 5000]
)
def test_numbers_keep_their_digits(number: str) -> None:
    """Numbers in a non-streamed answer have exactly the digits that the model wrote, as they do in a stream."""
    arguments = f'{{"a":[{number}],"b":"😀"}}'
    events = [CallStarted(1, "f"), CallDelta(arguments), CallEnded(), Ended({0: "tool_calls"})]
    whole, _ = written(*events, stream=False)
    _, frames = written(*events)
    assert [frame["delta"]["partial_json"] for frame in frames if "partial_json" in frame.get("delta", {})] == [
        arguments
    ]
    assert f'"input":{arguments}' in whole.whole().decode()
