"""Tests for the stored events of a background answer, and for selecting the events to send."""

from __future__ import annotations

import json

import pytest
from toolsim.background.frames import (
    cursor,
    error_frame,
    events_value,
    frames_after,
    frames_of,
    has_end,
    wants_stream,
)
from toolsim.core.errors import BadRequest
from toolsim.core.events import Ended, TextDelta
from toolsim.core.plan import AnswerForm
from toolsim.wire.responses.background import LEFT_ALONE
from toolsim.wire.responses.writer import ResponsesWriter


def test_query_selects_the_events() -> None:
    """The query of the URL states whether the client wants events, and after which sequence number they start. An
    invalid number is refused.
    """
    assert wants_stream("stream=true&starting_after=3")
    assert not wants_stream("stream=false")
    assert not wants_stream("")
    assert [cursor(query) for query in ("", "starting_after=0", "starting_after=12")] == [-1, 0, 12]
    for wrong in "x", "-2", "1.5", "9" * 16:
        with pytest.raises(BadRequest) as caught:
            cursor(f"starting_after={wrong}")
        assert caught.value.error.param == "starting_after"


def test_stored_events_are_located_by_number() -> None:
    """Stored events are found by their sequence number, and ``has_end`` returns whether the last event of the answer is
    stored.
    """
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


def test_error_event_repeats_its_message() -> None:
    """An error event contains its message twice, at the top level and in ``error``, because each client reads only one
    of the two fields.
    """
    answered = json.loads(error_frame(LEFT_ALONE, 7).partition(b"data: ")[2])
    assert (answered["type"], answered["message"], answered["sequence_number"]) == ("error", LEFT_ALONE.message, 7)
    assert answered["error"]["message"] == LEFT_ALONE.message
