from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from toolsim.wire.responses.event_stream import EventStream
from toolsim.wire.sse import SSEDecoder

TEXTS = st.lists(st.text(min_size=1), min_size=1, max_size=4)


def read(frames: list[bytes]) -> list[dict[str, Any]]:
    """Return the events in the given frames. Check that the event line of each frame matches the type in its data."""
    found = []
    for event in SSEDecoder().feed(b"".join(frames)):
        document = json.loads(event.data)
        assert document["type"] == event.event
        found.append(document)
    return found


@given(st.lists(TEXTS | st.sampled_from(["a", "b"])))
def test_events_are_numbered_from_zero(batches: list[list[str] | str]) -> None:
    """All events are numbered from 0 by a single counter, regardless of when the events are retrieved."""
    events = EventStream(is_on=True)
    events.start_deltas("d", {"item_id": "m"}, ',"logprobs":[]')
    frames: list[bytes] = []
    expected: list[dict[str, Any]] = []
    for batch in batches:
        if isinstance(batch, str):
            events.emit("e", {"fields": batch}, ',"more":[1]')
            expected.append({"type": "e", "fields": batch, "more": [1]})
        else:
            for text in batch:
                events.delta(text)
            expected += [{"type": "d", "item_id": "m", "delta": text, "logprobs": []} for text in batch]
        if len(expected) % 2:
            frames += events.take()
    frames += events.take()
    assert read(frames) == [{**event, "sequence_number": number} for number, event in enumerate(expected)]
    assert all(frame.endswith(b"\n\n") for frame in frames)
    assert events.take() == []


def test_terminator_has_no_number() -> None:
    """The stream's terminator follows the last event, and has no sequence number."""
    events = EventStream(is_on=True)
    events.start_deltas("d", {})
    events.delta("a")
    events.done()
    assert events.take()[1:] == [b"data: [DONE]\n\n"]


def test_non_streamed_answer_has_no_events() -> None:
    events = EventStream(is_on=False)
    events.start_deltas("d", {})
    events.delta("a")
    events.emit("e", {})
    events.done()
    assert events.take() == []
