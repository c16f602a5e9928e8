import io
import tracemalloc
from typing import Any

from mitmproxy.http import HTTPFlow, Response
from mitmproxy.io import FlowReader, FlowWriter
from mitmproxy.test import tflow
from toolsim.proxy.recorder import BodyRecorder, BoundedBuffer


def exchanged(*, content: bytes | None) -> HTTPFlow:
    """Return a flow with a rewritten request, a backup of the original request, and an answer with the given
    content.
    """
    flow = tflow.tflow()
    flow.request.content = b"the client's own"
    flow.backup()
    flow.request.content = b"rewritten"
    flow.response = Response.make(200)
    flow.response.raw_content = content
    flow.metadata["toolsim"] = {"calls": ["f"]}
    flow.comment, flow.marked = "one call", ":x:"
    return flow


def test_buffer_keeps_only_complete_chunks():
    """A chunk that exceeds the recording's size limit, and all later chunks, are counted but not stored, so that a
    stored body has no gaps.
    """
    buffer = BoundedBuffer(limit=5)
    for chunk in (b"ab", b"cd", b"efg", b"h"):
        buffer.add(chunk)
    assert buffer.content() == b"abcd"
    assert buffer.missing == 4
    assert repr(buffer) == "BoundedBuffer(4 bytes stored, 4 not)"


def test_long_stream_is_compressed():
    """A long stream of repetitive frames is stored in compressed form and restored unchanged, even if there is a large
    chunk in the middle.
    """
    buffer = BoundedBuffer()
    frames = [
        b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % n for n in range(5000)
    ]
    chunks = [*frames, bytes(range(256)) * 1000, *frames]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for chunk in chunks:
        buffer.add(bytes(bytearray(chunk)))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert buffer.content() == b"".join(chunks)
    assert taken < sum(map(len, chunks)) / 3


def test_both_sides_are_recorded():
    """After a streamed exchange, the flow contains the bytes sent to the client, and its backup contains the bytes from
    the backend.
    """
    recorder, flow = BodyRecorder(), exchanged(content=None)
    head = Response.make(200, headers={"server": "backend"})
    recorder.begin(head)
    recorder.received.add(b"from the backend")
    recorder.sent.add(b"to the client")
    recorder.store_in(flow)
    assert flow.response is not None
    assert flow.response.raw_content == b"to the client"
    flow.revert()
    assert flow.request.content == b"the client's own"
    assert flow.response.raw_content == b"from the backend"
    assert flow.response.headers["server"] == "backend"


def test_revert_keeps_comment_mark_and_report():
    """Reverting a flow keeps its comment, mark and report. The report then states that the flow shows the backend's
    side of the exchange.
    """
    recorder, flow = BodyRecorder(), exchanged(content=b"whole")
    recorder.whole(Response.make(200, b"raw"))
    recorder.store_in(flow)
    assert "side" not in flow.metadata["toolsim"]
    flow.revert()
    assert flow.response is not None
    assert flow.response.content == b"raw"
    assert (flow.comment, flow.marked) == ("one call", ":x:")
    assert flow.metadata["toolsim"] == {"calls": ["f"], "side": "backend"}


def test_recorded_answer_is_not_affected_by_later_changes():
    """Rewriting an answer does not affect the recorded copy of the backend's answer."""
    recorder, flow = BodyRecorder(), exchanged(content=b"raw")
    assert flow.response is not None
    recorder.whole(flow.response)
    flow.response.content = b"rewritten"
    recorder.store_in(flow)
    assert flow.response.content == b"rewritten"
    flow.revert()
    assert flow.response.content == b"raw"


def test_flow_without_answer_or_backup_is_unchanged():
    """If a flow was aborted before its answer, or was never rewritten, nothing is stored in it."""
    recorder, flow = BodyRecorder(), exchanged(content=None)
    flow.response = None
    recorder.store_in(flow)
    flow.revert()
    assert flow.response is None
    bare = tflow.tflow(resp=True)
    BodyRecorder().store_in(bare)
    assert not bare.modified()


def test_missing_bytes_are_counted():
    """``missing`` gives the number of missing bytes for each side (client or backend) that was not recorded
    completely.
    """
    recorder = BodyRecorder()
    assert recorder.missing == {}
    recorder.sent = BoundedBuffer(limit=1)
    recorder.sent.add(b"too long")
    assert recorder.missing == {"client": 8}


def test_saved_exchange_keeps_both_sides():
    """The client's side and the backend's side of an exchange are both kept when its flow is saved to a file and loaded
    again.
    """
    recorder, flow = BodyRecorder(), exchanged(content=None)
    recorder.begin(Response.make(200))
    recorder.received.add(b"raw \xff\x00")
    recorder.store_in(flow)
    file = io.BytesIO()
    FlowWriter(file).add(flow)  # type: ignore[no-untyped-call]
    file.seek(0)
    loaded: Any = next(iter(FlowReader(file).stream()))
    assert loaded.modified()
    loaded.revert()
    assert loaded.request.content == b"the client's own"
    assert loaded.response.raw_content == b"raw \xff\x00"


def test_aborted_replay_drops_the_old_answer():
    """If a replay is aborted before its answer, the backup does not contain the old answer."""
    recorder, flow = BodyRecorder(), exchanged(content=b"")
    flow._backup["response"] = Response.make(200, b"old").get_state()  # type: ignore[index]
    flow.response = None
    recorder.store_in(flow)
    flow.revert()
    assert flow.response is None


def test_passing_data_is_recorded_on_both_sides() -> None:
    """Data that passes through unchanged is recorded for both the client's side and the backend's side."""
    recorder = BodyRecorder()
    assert recorder.passing(b"error") == b"error"
    assert recorder.sent.content() == recorder.received.content() == b"error"
