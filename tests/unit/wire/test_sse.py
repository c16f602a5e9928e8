from __future__ import annotations

from itertools import pairwise

import httpx
import httpx_sse
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.wire.json_codec import parse_object
from toolsim.wire.sse import ServerSentEvent, SSEDecoder, comment, encode

# Examples from the WHATWG specification, and streams with line endings and deviations that real servers send.
CASES = {
    "stock": (b"data: YHOO\ndata: +2\ndata: 10\n\n", [("", "YHOO\n+2\n10")]),
    "comment and ids": (
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
        [("", "first event"), ("", "second event"), ("", " third event")],
    ),
    "empty data": (b"data\n\ndata\ndata\n\ndata:\n\n", [("", ""), ("", "\n"), ("", "")]),
    "space is optional": (b"data:test\n\ndata: test\n\n", [("", "test"), ("", "test")]),
    "event names": (
        b"event: add\ndata: 73857293\n\nevent: remove\ndata: 2153\n\n",
        [("add", "73857293"), ("remove", "2153")],
    ),
    "event without data is none": (b"event: add\n\ndata: x\n\n", [("", "x")]),
    "cr lf": (b"event: a\r\ndata: 1\r\n\r\ndata: 2\r\n\r\n", [("a", "1"), ("", "2")]),
    "cr": (b"data: 1\r\rdata: 2\r\r", [("", "1"), ("", "2")]),
    "bom": (b"\xef\xbb\xbfdata: 1\n\n", [("", "1")]),
    "unicode line ends are data": ("data: a\u2028b\x0bc\x85d\n\n".encode(), [("", "a\u2028b\x0bc\x85d")]),
    "no blank line at the end": (b"data: 1\n\ndata: [DONE]", [("", "1"), ("", "[DONE]")]),
    "multi-byte text": ("data: żółw 🐢\n\n".encode(), [("", "żółw 🐢")]),
    "unknown field": (b"foo: bar\nretry: 10\ndata: x\n\n", [("", "x")]),
}


def decode(chunks: list[bytes]) -> list[tuple[str, str]]:
    decoder = SSEDecoder()
    events: list[ServerSentEvent] = []
    for chunk in chunks:
        if chunk:
            events += decoder.feed(chunk)
    events += decoder.feed(b"")
    assert decoder.feed(b"") == []
    return [(event.event, event.data) for event in events]


@each("name", CASES)
def test_case_in_one_piece(name: str) -> None:
    """A stream that arrives in one chunk results in the events that the specification requires."""
    stream, events = CASES[name]
    assert decode([stream]) == events


@each("name", CASES)
def test_case_byte_by_byte(name: str) -> None:
    """A stream that arrives byte by byte results in the events that the specification requires."""
    stream, events = CASES[name]
    assert decode([stream[i : i + 1] for i in range(len(stream))]) == events


@given(
    st.lists(
        st.sampled_from([b"data: a\n", b"data:\xc3\xa9", b"\n", b"\r", b"\r\n", b"event: x", b":", b"\xff", b"\n\n"])
    ),
    st.data(),
)
def test_any_bytes_at_any_split(pieces: list[bytes], data: st.DataObject) -> None:
    """Any bytes are decoded without raising an exception, and the events do not depend on how the bytes are split."""
    stream = b"".join(pieces)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    bounds = [0, *cuts, len(stream)]
    assert decode([stream[a:b] for a, b in pairwise(bounds)]) == decode([stream])


@given(st.lists(st.tuples(st.sampled_from(["", "delta", "response.created"]), st.text(alphabet='aé🐢{}":, '))))
def test_frames_against_httpx_sse(events: list[tuple[str, str]]) -> None:
    """httpx-sse decodes the frames that toolsim writes to the same events as toolsim."""
    stream = b"".join(encode(data, event) + comment("telemetry") for event, data in events)
    answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream)
    seen = list(httpx_sse.EventSource(answer).iter_sse())
    expected = [(event, data) for event, data in events]
    assert decode([stream]) == expected
    # httpx-sse drops an unnamed event without data, and names all other unnamed events "message".
    assert [(e.event, e.data) for e in seen if e.data] == [
        (event or "message", data) for event, data in expected if data
    ]


_FIELDS = (
    "data",
    "data:",
    "data: ",
    "data:  ",
    "event: ",
    "event",
    "id: 1",
    "id",
    "retry: 5",
    "retry: x",
    "other: ",
    ":",
)
_LINES = st.tuples(st.sampled_from(_FIELDS), st.text(alphabet="a:é🐢{ \u2028\x0b\x85\0", max_size=4)).map("".join)


@given(st.lists(st.lists(_LINES, max_size=4)), st.sampled_from(["\n", "\r", "\r\n"]), st.data())
def test_any_stream_against_httpx_sse(events: list[list[str]], end: str, data: st.DataObject) -> None:
    """For any line endings and splits, toolsim's decoder yields the same events as httpx-sse."""
    stream = "".join(line + end for lines in events for line in [*lines, ""]).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    pieces = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]
    answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=iter(pieces))
    seen = [(event.event, event.data) for event in httpx_sse.EventSource(answer).iter_sse()]
    # Unlike toolsim, httpx-sse also reports an event without data if the event has a name or an ID.
    read = [(event or "message", data) for event, data in decode(pieces)]
    assert [event for event in read if event[1]] == [event for event in seen if event[1]]


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 200, b"data: xxxx\n" * 20], ids=["line", "lines"])
def test_oversized_event_is_truncated(stream: bytes) -> None:
    """An event that exceeds the size limit is truncated, and later events are not affected."""
    decoder = SSEDecoder(limit=100)
    events = [event for n in range(len(stream)) for event in decoder.feed(stream[n : n + 1])]
    assert len(events) == 1 + (len(stream) == 220)
    assert len(events[0].data) <= 100
    assert [event.data for event in decoder.feed(b"\n\ndata: ok\n\n")][-1] == "ok"
    assert sum(len(event.data) for n in range(50) for event in decoder.feed(b"data: fine\n\n")) == 200


@pytest.mark.parametrize(
    ("inside", "whole"),
    [
        (b'"a,b[{",' * 20_000, True),
        (b'"\\",[[[",' * 20_000, True),
        (b"[]," * 20_000, True),
        (b"[]," * 30_000, False),
        (b"1," * 60_000, False),
        (b"{}," * 30_000, False),
    ],
)
def test_event_with_too_many_values_fails(inside: bytes, whole: bool) -> None:
    """An event that contains too many JSON values is treated as failed. Brackets and commas within strings do not
    count.
    """
    event, behind = SSEDecoder().feed(b'data: {"x":[' + inside + b"0]}\n\ndata: ok\n\n")
    assert event.whole is whole
    assert (parse_object(event.data.encode()) is not None) is whole
    parsed = event.parsed()
    assert isinstance(parsed, dict) if whole else "more than 50000 values" in parsed.message
    # The event after the failed event is not affected.
    assert behind == ServerSentEvent("", "ok")
