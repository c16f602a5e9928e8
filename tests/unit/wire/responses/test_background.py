"""The status of a background answer, by what is stored and by its producer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.each import each
from toolsimlib.errors import BadRequest
from toolsimlib.events import Ended, TextDelta
from toolsimlib.plan import AnswerForm
from toolsimlib.wire.json_codec import parse_object
from toolsimlib.wire.responses.background import (
    LEFT_ALONE,
    cursor,
    error_frame,
    events_value,
    frames_after,
    frames_of,
    has_end,
    is_in_background,
    is_streamed,
    response_now,
    value_of,
    wants_stream,
    with_response,
)
from toolsimlib.wire.responses.resources import Call, Resource, respond
from toolsimlib.wire.responses.stored import items_of
from toolsimlib.wire.responses.writer import ResponsesWriter


@each(
    ("kept", "state", "cancel", "now"),
    [
        ("queued", "queued", False, "queued"),
        ("queued", "in_progress", False, "in_progress"),
        ("queued", "in_progress", True, "cancelled"),
        ("queued", "", False, "failed"),
        ("queued", "", True, "failed"),
        ("completed", "", True, "completed"),
        ("completed", "in_progress", True, "completed"),
        ("failed", "", False, "failed"),
        ("cancelled", "", True, "cancelled"),
        ("incomplete", "", True, "incomplete"),
    ],
)
def test_what_it_is_now(kept: str, state: str, cancel: bool, now: str) -> None:
    """A finished one is unchanged; one without a producer has failed; and it is written only once it is over."""
    response = {"id": "r", "status": kept, "output": []}
    assert response_now(response, state, cancel=cancel)["status"] == now
    value = value_of(json.dumps(response).encode(), b'[{"id":"i"}]', stream=True)
    call = Call(Resource("cancel" if cancel else "response", "r"), "POST" if cancel else "GET", state=state)
    answered = respond(call, value)
    assert answered.body["status"] == now
    assert (answered.id == "r") is (kept == "queued" and now in ("failed", "cancelled"))
    if answered.id:
        record: Any = parse_object(answered.value)
        assert (record["response"], record["input"]) == (answered.body, [{"id": "i"}])
        assert is_streamed(answered.value)
    if kept == "queued" and not state:
        assert answered.body["error"]["message"] == LEFT_ALONE.message


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_kept(stream: bool) -> None:
    """It is a record like any other, marked as made in the background, and as streamed or not."""
    value = value_of(b'{"id":"r","status":"queued","output":[{"id":"o"}]}', b'[{"id":"i"}]', stream=stream)
    record = parse_object(value)
    assert record is not None
    assert is_in_background(record)
    assert is_streamed(value) is stream
    assert [item["id"] for item in items_of(record)] == ["i", "o"]
    assert with_response(record, record["response"]) == value
    assert not is_in_background({"response": {}, "input": []})


def test_queries() -> None:
    """Whether events are requested, and from which one on."""
    assert wants_stream("stream=true&starting_after=3")
    assert not wants_stream("stream=false")
    assert not wants_stream("")
    assert [cursor(query) for query in ("", "starting_after=0", "starting_after=12")] == [-1, 0, 12]
    for wrong in "x", "-2", "1.5", "9" * 16:
        with pytest.raises(BadRequest) as caught:
            cursor(f"starting_after={wrong}")
        assert caught.value.error.param == "starting_after"


def test_events_that_are_kept() -> None:
    """Their position is their number, and the last one shows whether the answer is complete; damaged ones have none."""
    writer = ResponsesWriter(AnswerForm(stream=True, model="m"))
    frames = frames_of(writer.queue()[1])
    whole = [*frames, *frames_of([*writer.write(TextDelta("Hi")), *writer.write(Ended({0: "stop"}))])]
    assert [json.loads(frame.partition(b"data: ")[2])["sequence_number"] for frame in whole] == list(range(len(whole)))
    for first, after in (0, -1), (0, 3), (2, 1), (2, 4):
        assert frames_after(events_value(first, whole[first:]), after) == whole[after + 1 :]
    assert frames_after(events_value(2, whole[2:]), 0) is None
    assert frames_after(events_value(0, whole), 1000) == []
    assert has_end(events_value(0, whole))
    assert has_end(events_value(len(whole) - 1, whole[-1:]))
    assert not has_end(events_value(0, whole[:-1]))
    for wrong in b"", b"x", b"-1\n", b"\n\n\n":
        assert frames_after(wrong, -1) is None
        assert not has_end(wrong)


def test_the_event_of_an_error() -> None:
    """It is flat and nested, since each client reads only one of them."""
    answered = json.loads(error_frame(LEFT_ALONE, 7).partition(b"data: ")[2])
    assert (answered["type"], answered["message"], answered["sequence_number"]) == ("error", LEFT_ALONE.message, 7)
    assert answered["error"]["message"] == LEFT_ALONE.message
