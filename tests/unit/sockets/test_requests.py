"""Tests for answers whose chunks wait until the client reads them, while the backends are paused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from mitmproxy.http import Response
from mitmproxy.test import taddons, tflow
from toolsim.proxy.upgrades import ClientUpgrade
from toolsim.sockets import requests as module
from toolsim.sockets.connection import Head
from toolsim.sockets.requests import MAX_UNREAD_BYTES, Backlog, SocketRequest

PART = b"x" * 50_000
MOST_PARTS = MAX_UNREAD_BYTES // len(PART)


class Handler:
    """A stand-in for the flow handler. It does nothing, and the test provides the answer."""

    def __init__(self, _flow: object, _options: object, _name: str, _owner: str, answered: module.FlowHandler) -> None:
        self.answered = answered
        self.reading = asyncio.Event()
        self.reading.set()
        self.over = asyncio.Event()

    async def run(self) -> None:
        await self.over.wait()


@pytest.fixture(autouse=True)
def flows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "FlowHandler", Handler)
    with taddons.context():
        yield


def posts(count: int) -> list[SocketRequest]:
    flow = tflow.twebsocketflow()
    upgrade, backlog = ClientUpgrade(flow, flow.request, "owner"), Backlog()
    return [SocketRequest(upgrade, backlog, b"{}") for _ in range(count)]


def is_read(post: SocketRequest) -> bool:
    return post._handler.reading.is_set()


async def test_unread_bytes_pause_all_backends_of_a_connection() -> None:
    """If a client leaves too many bytes unread, all backends of its connection are paused until it has read enough of
    them.
    """
    many = posts(16)
    parts = 0
    while any(map(is_read, many)):
        for post in filter(is_read, many):
            post._answered(PART)
            parts += 1
    assert MOST_PARTS <= parts <= MOST_PARTS + len(many)
    reading = [post.parts() for post in many]
    for part in reading:
        assert await anext(part) == PART
    assert not any(map(is_read, many))
    # A chunk counts as unread until the next chunk is requested. Only then is it certain to have been sent.
    for part in reading:
        assert await anext(part) == PART
    assert all(map(is_read, many))
    for part in reading:
        await part.aclose()


async def test_abandoned_answer_does_not_count() -> None:
    """The chunks of an abandoned answer do not count as unread, even if they arrive later, so they do not pause a
    backend.
    """
    left, other = posts(2)
    for _ in range(MOST_PARTS + 1):
        left._answered(PART)
    other._answered(PART)
    assert not is_read(left)
    assert not is_read(other)
    parts = left.parts()
    await anext(parts)
    await parts.aclose()
    assert is_read(left)
    assert is_read(other)
    for _ in range(2 * MOST_PARTS):
        left._answered(PART)
    assert is_read(left)
    assert left._backlog is other._backlog
    assert left._backlog._bytes < 2 * len(PART)


async def test_small_parts_count_extra() -> None:
    """A small chunk counts as more than its size, because thousands of small chunks use additional memory."""
    [post] = posts(1)
    parts = 0
    while is_read(post):
        post._answered(b"x")
        parts += 1
    assert parts < MAX_UNREAD_BYTES // 256


async def test_head_and_end_of_an_answer() -> None:
    """The head of a response contains the headers that a client needs in case of an error. The response ends when its
    flow ends.
    """
    [post] = posts(1)
    post._answered(Response.make(429, b"", {"content-type": "application/json", "retry-after": "3", "x": "y"}))
    post._answered(None)
    parts = post.parts()
    assert [part async for part in parts] == [Head(429, "application/json", {"retry-after": "3"})]
