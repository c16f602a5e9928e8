"""Tests for a WebSocket connection with a stand-in for the proxy: lanes (ordered queues of requests), limits,
cancellation, and slow clients.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from support.each import each
from toolsim.core import time_slice
from toolsim.core.fair_cache import FairCache
from toolsim.sockets.connection import Head, SocketConnection, TooManyUnread
from toolsim.sockets.protocol import (
    MAX_LANES,
    MAX_RUNNING,
    MAX_UNREAD_ERRORS,
    MAX_WAITING,
    ClientMessage,
    Context,
    RecentTurns,
    read_message,
)
from toolsim.sockets.websocket import MESSAGE_UNITS, UNITS_BURST
from toolsim.wire.responses.background import STOPPED


class Post:
    """A stand-in for a request to the proxy. The test provides its answer."""

    def __init__(self, body: bytes) -> None:
        self.body: dict[str, Any] = json.loads(body)
        self.has_left = False
        self._parts: asyncio.Queue[Head | bytes | None] = asyncio.Queue()

    async def parts(self) -> AsyncGenerator[Head | bytes]:
        while (part := await self._parts.get()) is not None:
            yield part

    async def leave(self) -> None:
        self.has_left = True

    def event(self, kind: str, **fields: Any) -> None:
        self._parts.put_nowait(f"data: {json.dumps({'type': kind, **fields})}\n\n".encode())

    def answer(self, name: str, status: str = "completed") -> None:
        self._parts.put_nowait(Head(200, "text/event-stream", {}))
        for kind in "created", status:
            response = {"id": name, "status": status, "store": False, "output": []}
            self.event(f"response.{kind}", response=response)
        self._parts.put_nowait(None)

    def refuse(self, status: int) -> None:
        self._parts.put_nowait(Head(status, "application/json", {}))
        self._parts.put_nowait(b'{"error":{"message":"No."}}')
        self._parts.put_nowait(None)


async def read(data: bytes) -> ClientMessage:
    return read_message(data)


class Stage:
    def __init__(self, max_bytes: int = 10_000) -> None:
        self.posts: list[Post] = []
        self.got: list[dict[str, Any]] = []
        self.is_gone = False
        self.reads = asyncio.Event()
        self.reads.set()
        self.memory = FairCache[Context](100, 100_000)
        recent = RecentTurns(self.memory, "owner")
        self.connection = SocketConnection(read, self.ask, self.send, recent, max_bytes, lambda: False)

    def ask(self, body: bytes) -> Post:
        self.posts.append(Post(body))
        return self.posts[-1]

    async def send(self, messages: Sequence[str]) -> None:
        if self.is_gone:
            raise ConnectionError
        await self.reads.wait()
        self.got += map(json.loads, messages)

    async def create(self, text: str = "x", **fields: Any) -> None:
        await self.connection.receive(
            json.dumps({"type": "response.create", "model": "m", "input": text, **fields}).encode()
        )
        await settled()

    def kinds(self) -> list[str]:
        return [message["type"] for message in self.got]


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    await stage.connection.stop(None)


async def test_requests_of_a_lane_are_answered_in_order(stage: Stage) -> None:
    """The next request in a lane is sent only when the previous answer has ended. It can therefore continue that
    answer.
    """
    await stage.create("a")
    await stage.create("b", previous_response_id="r_a")
    assert len(stage.posts) == 1
    stage.posts[0].answer("r_a")
    await settled()
    assert stage.kinds() == ["response.created", "response.completed"]
    assert stage.posts[1].body["input"] == [{"role": "user", "content": text} for text in "ab"]
    assert not stage.posts[0].has_left


async def test_internal_error_is_an_error_event(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If an internal error occurs, the client receives an error event. The next request in the lane is still
    processed.
    """
    monkeypatch.setattr(Post, "parts", lambda _: 1 / 0)
    await stage.create("a", stream_id="l")
    await stage.create("b", stream_id="l")
    assert [(message["type"], message["status"], message["stream_id"]) for message in stage.got] == [
        ("error", 500, "l"),
        ("error", 500, "l"),
    ]
    assert stage.got[0]["error"]["code"] == "internal_error"
    assert "ZeroDivisionError" in caplog.text


async def test_lanes_run_concurrently(stage: Stage) -> None:
    """Requests in different lanes run concurrently, up to a limit. Each message contains the ID of its lane. A lane can
    continue an answer from another lane.
    """
    for number in range(MAX_RUNNING + 1):
        await stage.create(stream_id=f"s{number}")
    assert len(stage.posts) == MAX_RUNNING
    stage.posts[3].answer("r_3")
    await settled()
    assert {message["stream_id"] for message in stage.got} == {"s3"}
    assert len(stage.posts) == MAX_RUNNING + 1
    await stage.create("more", stream_id="s3", previous_response_id="r_3")
    stage.posts[0].answer("r_0")
    await settled()
    assert len(stage.posts[-1].body["input"]) == 2


async def test_flood_affects_only_its_sender(stage: Stage) -> None:
    """If a client floods a lane with requests, one request runs, some wait, and all others are refused with errors. The
    number of lanes is also limited.
    """
    for _ in range(1000):
        await stage.connection.receive(b'{"type":"response.create","input":"x"}')
    while stage.connection._errors:
        await asyncio.sleep(0)
    assert len(stage.posts) == 1
    assert {message["error"]["code"] for message in stage.got} == {"rate_limit_exceeded"}
    assert len(stage.got) in (1000 - MAX_WAITING, 999 - MAX_WAITING)
    few = Stage(max_bytes=100)
    for _ in range(4):
        await few.create("y" * 60)
    assert few.got[0]["error"]["code"] == "rate_limit_exceeded"
    await few.connection.stop(None)
    many = Stage()
    for number in range(MAX_LANES + 1):
        await many.create(stream_id=f"s{number}")
    assert [message["error"]["code"] for message in many.got] == ["websocket_stream_limit_reached"]
    await many.connection.stop(None)


REFUSED = {
    "unreadable": b"{",
    "of an unknown type": b'{"type":"x"}',
    "steering": b'{"type":"response.steer","input":"x"}',
    "a cancellation of nothing": b'{"type":"response.cancel"}',
}


@each("message", REFUSED.values(), REFUSED.keys())
async def test_unread_errors_are_limited(message: bytes) -> None:
    """Error messages that the client has not read are limited in total size. Messages from the client are processed
    until the limit is reached.
    """
    stage = Stage()
    stage.reads.clear()
    for _ in range(UNITS_BURST // MESSAGE_UNITS):
        await asyncio.wait_for(stage.connection.receive(message), 10)
    while len(message) + stage.connection._errors_size < MAX_UNREAD_ERRORS - 1_000:
        await stage.connection.receive(message)
    with pytest.raises(TooManyUnread):
        await stage.connection.receive(b'{"type":"response.steer","input":"%s"}' % (b"x" * 2_000))
    assert stage.got == []
    stage.reads.set()
    while stage.connection._errors:
        await asyncio.sleep(0)
    await stage.connection.receive(message)
    await stage.connection.stop(None)


async def test_single_unread_error_can_have_any_size(stage: Stage) -> None:
    """A single unread error can exceed the limit on unread errors, because it repeats the client's message. While it is
    unread, any further error exceeds the limit.
    """
    stage.reads.clear()
    message = json.dumps({"type": "response.steer", "input": "x" * MAX_UNREAD_ERRORS}).encode()
    await stage.connection.receive(message)
    with pytest.raises(TooManyUnread):
        await stage.connection.receive(b"{")
    stage.reads.set()
    await settled()
    await stage.connection.receive(message)
    await settled()
    assert stage.kinds() == ["response.steer.failed"] * 2
    stage.reads.clear()
    await stage.connection.receive(message)
    await settled()
    await stage.connection.stop(None)
    assert not stage.connection._sending_errors


async def test_every_error_is_sent(stage: Stage) -> None:
    """An error message is sent even if the error occurs just after the previous error message was sent."""
    for turns in range(5):
        await stage.connection.receive(b"{")
        for _ in range(turns):
            await asyncio.sleep(0)
        await stage.connection.receive(b"{")
        await settled()
        assert len(stage.got) == 2 * (turns + 1)


async def test_errors_are_sent_in_slices(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """If time slices have zero length, other tasks run after each error message, even though sending never suspends."""
    monkeypatch.setattr(time_slice, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(time_slice, "PAUSE_SECONDS", 0.0)
    for _ in range(300):
        await stage.connection.receive(b"{")
    counts = [0]
    while counts[-1] < 300:
        await asyncio.sleep(0)
        counts.append(len(stage.got))
    assert max(after - before for before, after in pairwise(counts)) <= 1


async def test_cancelled_response_stops_the_model(stage: Stage) -> None:
    """If a response is canceled, with or without its ID, the model stops. Then the next request in the lane starts."""
    await stage.create("a")
    await stage.create("b")
    stage.posts[0].event("response.created", response={"id": "r_a", "status": "in_progress", "output": []})
    await settled()
    await stage.connection.receive(b'{"type":"response.cancel","response_id":"r_x"}')
    await settled()
    assert stage.got[-1]["error"]["code"] == "response_not_active"
    await stage.connection.receive(b'{"type":"response.cancel","response_id":"r_a"}')
    await settled()
    last = stage.got[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "cancelled")
    assert last["response"]["error"]["message"] == "The response was cancelled."
    assert stage.posts[0].has_left
    assert len(stage.posts) == 2
    await stage.connection.receive(b'{"type":"response.cancel"}')
    await settled()
    assert stage.got[-1]["error"]["code"] == "response_cancelled"
    assert stage.posts[1].has_left


async def test_failed_continuation_is_forgotten(stage: Stage) -> None:
    """If a continuation fails or is invalid, the connection forgets the previous response, which can then no longer be
    continued.
    """
    for wrong in ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, {"text": "later"}):
        await stage.create("a", store=False)
        stage.posts[-1].answer("r_a")
        await settled()
        count = len(stage.posts)
        await stage.create(**{"text": "b", "store": False, "previous_response_id": "r_a", **wrong})
        if len(stage.posts) > count:
            stage.posts[-1].refuse(503)
        await settled()
        assert stage.got[-1]["status"] in (400, 503)
        await stage.create("c", store=False, previous_response_id="r_a")
        assert stage.got[-1]["error"]["code"] == "previous_response_not_found"


async def test_client_disconnect_stops_the_model(stage: Stage) -> None:
    """The model is stopped if writing to the client fails, or if the server reports that the client has
    disconnected.
    """
    await stage.create("a")
    stage.is_gone = True
    stage.posts[0].answer("r_a")
    await settled()
    assert stage.posts[0].has_left
    stage.is_gone = False
    await stage.create("b")
    await stage.create("c")
    await stage.connection.stop(None)
    assert [post.has_left for post in stage.posts] == [True, True]
    assert not stage.connection.is_busy
    assert stage.got == []


async def test_stopping_proxy_sends_errors(stage: Stage) -> None:
    """When the proxy stops, each lane with an answer in progress receives an error, as does a request that arrives
    later.
    """
    await stage.create("a", stream_id="s")
    await stage.connection.stop()
    assert (stage.got[-1]["error"]["message"], stage.got[-1]["stream_id"]) == (STOPPED.message, "s")
    await stage.create("b")
    assert stage.got[-1]["error"]["message"] == STOPPED.message


async def test_warm_up_does_not_reach_the_backend(stage: Stage) -> None:
    """A warm-up request is answered without a request to the backend. Its answer can be continued."""
    await stage.create("a", generate=False, store=False)
    assert stage.kinds()[-1] == "response.completed"
    assert not stage.posts
    await stage.create("b", previous_response_id=stage.got[-1]["response"]["id"], store=False)
    assert [item["content"] for item in stage.posts[0].body["input"]] == ["a", "b"]


async def test_refused_event_type_is_logged_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """If a client repeatedly sends an unsupported event type, as older clients do, only one warning is logged."""
    for _ in range(3):
        await stage.connection.receive(b'{"type":"response.append"}')
    await settled()
    assert [message["error"]["param"] for message in stage.got] == ["type"] * 3
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "'response.append'" in record.getMessage()


async def test_events_are_sent_in_slices(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """If time slices have zero length, other tasks run after each event, even though sending never suspends."""
    monkeypatch.setattr(time_slice, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(time_slice, "PAUSE_SECONDS", 0.0)
    await stage.create()
    [post] = stage.posts
    post._parts.put_nowait(Head(200, "text/event-stream", {}))
    post._parts.put_nowait(b'data: {"type":"response.output_text.delta","delta":"x"}\n\n' * 300)
    counts = [0]
    while counts[-1] < 300:
        await asyncio.sleep(0)
        counts.append(len(stage.got))
    assert max(after - before for before, after in pairwise(counts)) <= 1
