"""Tests for comparing recorded data. Each difference has a readable path, and random values are ignored."""

from __future__ import annotations

import json
from typing import Any

from mitmproxy.http import HTTPFlow, Response
from mitmproxy.test import tflow
from toolsim.recordings.compare import NOTHING, Difference, comparable, differences, keep_recorded_ids_and_times

ID = "resp_" + "0a" * 24


def found(got: Any, expected: Any) -> list[str]:
    return [str(difference) for difference in differences(got, expected)]


def answered(content: bytes, kind: str = "application/json", **headers: str) -> HTTPFlow:
    flow = tflow.tflow()
    flow.response = Response.make(200, content, {"content-type": kind, **headers})
    return flow


def stream(*events: Any) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)


def test_equal_data_have_no_differences() -> None:
    assert found({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}) == []


def test_differences_have_paths() -> None:
    """Each difference is reported with its path. Missing and extra values are marked. The values true and 1 are
    different, as are 1.0 and 1.
    """
    got = {"a": 1, "c": [{"type": "message", "n": 2}], "d": True, "e": 1.0}
    expected = {"a": 2, "b": 3, "c": [{"type": "message", "n": 1}], "d": 1, "e": 1}
    assert found(got, expected) == [
        "a: got 1, expected 2",
        "b: got nothing, expected 3",
        "c[0 message].n: got 2, expected 1",
        "d: got true, expected 1",
        "e: got 1.0, expected 1",
    ]
    assert found({"x": 1}, {}) == ["x: got 1, expected nothing"]


def test_extra_item_is_one_difference() -> None:
    """A missing or extra list item is a single difference, because the items of the two lists are aligned by kind
    before they are compared.
    """
    events = [{"event": "a", "data": {"n": 1}}, {"event": "b", "data": {"n": 2}}, {"event": "c", "data": {"n": 3}}]
    assert list(differences(events[1:], events)) == [Difference("[0 a]", NOTHING, events[0])]
    assert list(differences(events, events[:2])) == [Difference("[2 c]", events[2], NOTHING)]
    assert found([1, 2], [1]) == ["[1]: got 2, expected nothing"]


def test_long_lists_are_not_aligned() -> None:
    """Long lists are compared by position, because aligning their items would take too long."""
    assert len(list(differences(list(range(1, 3000)), list(range(3000))))) == 3000


def test_text_differences_are_shown_by_line() -> None:
    """For a multi-line string, only the line that differs is reported. For a long line, only the part that differs is
    reported.
    """
    assert found("a\nb\nc", "a\nx\nc") == [' line 2: got "b", expected "x"']
    assert found("a", "a\nb") == [' line 2: got nothing, expected "b"']
    (line,) = found("y" * 300 + "1" + "z" * 300, "y" * 300 + "2" + "z" * 300)
    assert len(line) < 250
    assert "1z" in line
    assert "2z" in line


def test_random_values_are_ignored() -> None:
    """Random IDs are compared only by the order of their first occurrences. Times are not compared."""
    one = {"id": ID, "again": ID, "created_at": 1764967971, "n": 1764967971}
    other = json.loads(
        json.dumps(one).replace("0a", "1b").replace('"created_at": 1764967971', '"created_at": 1764960000')
    )
    assert found(comparable(answered(json.dumps(one).encode())), comparable(answered(json.dumps(other).encode()))) == []
    broken = one | {"again": "resp_" + "0b" * 24}
    assert found(comparable(answered(json.dumps(broken).encode())), comparable(answered(json.dumps(one).encode()))) == [
        'response.body.again: got "resp_#2", expected "resp_#1"'
    ]
    shaped = one | {"id": "res_" + "0a" * 24}
    assert found(comparable(answered(json.dumps(shaped).encode())), comparable(answered(json.dumps(one).encode())))


def test_streams_are_compared_event_by_event() -> None:
    """Streams are compared by the name, data and order of their events. Keep-alives are ignored, but sequence numbers
    must be consecutive.
    """
    events = [{"type": "a", "sequence_number": 0}, {"type": "b", "sequence_number": 1}]
    with_keepalive = [events[0], {"type": "keepalive", "sequence_number": 1}, {"type": "b", "sequence_number": 2}]
    one, other = (
        comparable(answered(stream(*sent), "text/event-stream; charset=utf-8")) for sent in (events, with_keepalive)
    )
    assert found(one, other) == []
    cut = comparable(answered(stream(*events)[:-1] + b": hi\n\n", "text/event-stream"))
    assert found(cut, one) == [
        'response.headers.content-type: got "text/event-stream", expected "text/event-stream; charset=utf-8"'
    ]
    renamed = comparable(
        answered(stream(*events).replace(b"event: b", b"event: c"), "text/event-stream; charset=utf-8")
    )
    assert found(renamed, one) == ['response.events[1 b].event: got "c", expected "b"']
    unended = comparable(answered(stream(*events)[:-2], "text/event-stream; charset=utf-8"))
    assert found(unended, one) == ["response.events[1 b].whole: got false, expected nothing"]


def test_splits_of_a_text_are_ignored() -> None:
    """Consecutive deltas of the same item are joined before streams are compared, so it does not matter how the text
    was split.
    """

    def deltas(*texts: str, item: str = "msg_1") -> list[Any]:
        return [{"type": "t.delta", "item_id": item, "delta": text} for text in texts]

    def sent(*events: Any) -> Any:
        numbered = [event | {"sequence_number": number} for number, event in enumerate(events)]
        return comparable(answered(stream(*numbered), "text/event-stream"))

    done = {"type": "t.done", "text": "abcd"}
    assert found(sent(*deltas("ab", "c", "d"), done), sent(*deltas("a", "bcd"), done)) == []
    (wrong,) = found(sent(*deltas("ab", "x", "d"), done), sent(*deltas("a", "bcd"), done))
    assert 'got "abxd", expected "abcd"' in wrong
    assert found(sent(*deltas("ab"), *deltas("cd", item="msg_2")), sent(*deltas("ab", "cd"))) != []


def test_chat_keepalives_are_recognized() -> None:
    """A chunk with an empty delta and no finish reason is a keep-alive."""
    chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": None}]}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    data = b"".join(b"data: %s\n\n" % json.dumps(document).encode() for document in (chunk, end))
    assert [event["data"] for event in comparable(answered(data, "text/event-stream"))["response"]["events"]] == [end]


def test_volatile_headers_and_duration_are_ignored() -> None:
    """A comparison ignores headers that depend on the body, such as Content-Length, and the duration in the report."""
    one, other = answered(b"{}", x="1"), answered(b"{}", x="2")
    other.response.headers["content-length"] = "77"
    one.metadata["toolsim"] = {"calls": ["f"], "seconds": 1.0, "missing_bytes": {}}
    other.metadata["toolsim"] = {"calls": ["g"], "seconds": 2.0, "missing_bytes": {}}
    assert found(comparable(one), comparable(other)) == [
        'response.headers.x: got "1", expected "2"',
        'report.calls[0]: got "f", expected "g"',
    ]
    assert found(comparable(one, answered=False), comparable(other, answered=False)) == []


def test_update_keeps_ids_and_times() -> None:
    """When a recording is updated, it keeps its IDs and times, so that the file changes only where the result
    differs.
    """
    times = {"created_at": 1764967971, "completed_at": 1764967973}
    old = json.dumps({"id": ID, **times, "a": 1})
    later = dict.fromkeys(times, 1799999999)
    new = json.dumps({"id": "resp_" + "3c" * 24, **later, "a": 2, "m": "msg_" + "1" * 48})
    assert json.loads(keep_recorded_ids_and_times(new, old)) == {"id": ID, **times, "a": 2, "m": "msg_" + "1" * 48}
