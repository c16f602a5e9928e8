"""Tests for the server that handles upgraded WebSocket connections, without a proxy: tokens, pings and closing."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mitmproxy.test import tflow
from soak.frames import KINDS
from toolsim.proxy.jobs import LOOP_BYTES, Job, JobResult, is_heavy, run
from toolsim.proxy.upgrades import BUFFER_BYTES, TOKEN, ClientUpgrade
from toolsim.proxy.worker import WorkQueue
from toolsim.sockets import server as server_module
from toolsim.sockets import websocket as websocket_module
from toolsim.sockets.server import SocketServer

connect = pytest.importorskip("websockets.asyncio.client", reason="needs the extra [clients]: run `make setup`").connect
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402
from websockets.frames import Opcode  # noqa: E402


@pytest.fixture
async def server() -> AsyncIterator[SocketServer]:
    server = SocketServer(lambda: False, WorkQueue(has_workers=False).run)
    server.start()
    yield server
    await server.stop()


def upgrade() -> ClientUpgrade:
    flow = tflow.twebsocketflow()
    return ClientUpgrade(flow, flow.request, "owner")


def opened(server: SocketServer, token: str, **options: Any) -> Any:
    return connect(f"ws://127.0.0.1:{server.port}/v1/responses", additional_headers={TOKEN: token}, **options)


async def test_token_opens_one_connection(server: SocketServer) -> None:
    """A token opens only one connection. Invalid tokens are rejected, as is a token revoked with ``forget``."""
    token = server.admit(upgrade(), 1000)
    async with opened(server, token):
        assert server.count("owner") == 1
        for wrong in (token, "", "x"):
            with pytest.raises(InvalidStatus, match="403"):
                await opened(server, wrong)
    never = upgrade()
    token = server.admit(never, 1000)
    assert server.count("owner") >= 1
    server.forget(never)
    with pytest.raises(InvalidStatus, match="403"):
        await opened(server, token)


@pytest.mark.parametrize("size", [10, 100_000])
async def test_large_message_is_read_in_a_worker(size: int) -> None:
    """A large message is parsed in a worker, so that the event loop is not blocked. An error in the message is still
    reported.
    """
    jobs: list[Job[Any]] = []

    async def do[R: JobResult](job: Job[R]) -> R:
        jobs.append(job)
        return run(job)

    server = SocketServer(lambda: False, do)
    server.start()
    async with opened(server, server.admit(upgrade(), 200_000)) as connection:
        await connection.send(json.dumps({"type": "response.creation", "stream_id": "a", "input": "x" * size}))
        error = json.loads(await connection.recv())
    await server.stop()
    assert (error["error"]["param"], error["stream_id"]) == ("type", "a")
    assert [(is_heavy(job), job.owner) for job in jobs] == [(size > LOOP_BYTES, "owner")]


@pytest.mark.parametrize(
    ("limit", "answers", "reason"),
    [("SILENT_SECONDS", False, "no answer to pings"), ("UNUSED_SECONDS", True, "no request for an hour")],
)
async def test_unused_connection_is_closed(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch, limit: str, answers: bool, reason: str
) -> None:
    """A connection is closed if its client does not answer pings, or sends no requests for too long. The reason is
    recorded in the flow.
    """
    monkeypatch.setattr(server_module, "PING_SECONDS", 0.02)
    monkeypatch.setattr(server_module, limit, 0.1)
    asked = upgrade()
    async with opened(server, server.admit(asked, 1000)) as client:
        send = client.protocol.send_frame
        client.protocol.send_frame = lambda frame: send(frame) if answers or frame.opcode != Opcode.PONG else None
        with pytest.raises(ConnectionClosed) as raised:
            await asyncio.wait_for(client.recv(), 10)
        assert raised.value.rcvd is not None
        assert raised.value.rcvd.reason == reason
    await asyncio.sleep(0.1)
    assert server.count("owner") == 0
    assert asked.flow.websocket is not None
    assert asked.flow.websocket.close_reason == reason


async def test_stopping_server_sends_code_1001(server: SocketServer) -> None:
    """When the server stops, clients receive close code 1001. This includes clients that do not read."""
    async with opened(server, server.admit(upgrade(), 1000)) as client:
        await server.stop()
        with pytest.raises(ConnectionClosed, match="1001"):
            await asyncio.wait_for(client.recv(), 10)


async def test_internal_error_closes_the_connection(server: SocketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an exception occurs while a message is received, the client receives the close code 1011. The exception is
    reported to the event loop, and the connection no longer counts toward the limit.
    """
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    monkeypatch.setattr(server_module.SocketConnection, "receive", lambda *_: 1 / 0)
    asked = upgrade()
    async with opened(server, server.admit(asked, 1000)) as client:
        await client.send("{}")
        with pytest.raises(ConnectionClosed, match="1011"):
            await asyncio.wait_for(client.recv(), 10)
    while server.count("owner"):
        await asyncio.sleep(0.01)
    assert [type(report["exception"]) for report in reports] == [ZeroDivisionError]
    assert asked.flow.websocket is not None
    assert asked.flow.websocket.close_code == 1011


async def test_disconnect_during_a_write_raises_nothing(server: SocketServer) -> None:
    """If a client disconnects while the server is writing, no exception is left for the event loop to report."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    message = json.dumps({"type": "response.create", "model": "m", "input": "x", "generate": False})
    for _ in range(20):
        async with opened(server, server.admit(upgrade(), 1000)) as client:
            await client.send(message)
            # Because the client and the server run in the same thread, the socket is already closed when the server
            # reads the message.
            with socket.socket(fileno=os.dup(client.transport.get_extra_info("socket").fileno())) as same:
                same.shutdown(socket.SHUT_RDWR)
        while server.count("owner"):
            await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    assert not reports


async def test_unreadable_message_costs_more(server: SocketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that cannot be parsed uses about ten times as much of the connection's rate allowance as a valid
    message.
    """
    monkeypatch.setattr(websocket_module, "UNITS_PER_SECOND", 0.001)
    async with opened(server, server.admit(upgrade(), 1000)) as client:
        [handler] = server.handlers
        for text, units in (("[", 1 + 10 + 100), ('{"type":"response.cancel"}', 1 + 10)):
            before = handler._websocket._allowance._left
            await client.send(text)
            await client.recv()
            assert round(before - handler._websocket._allowance._left) == units


@pytest.mark.ci
async def test_client_that_reads_late_causes_no_deadlock(server: SocketServer) -> None:
    """A client that reads nothing until it has sent all its messages does not cause a deadlock. Its connection is
    closed because it sends too many messages.
    """
    creates = KINDS["creates without generation"][1]
    async with opened(server, server.admit(upgrade(), 1000)) as client:
        client.transport.pause_reading()
        client.transport.write(creates * (3_000_000 // len(creates)))
        while not server.handlers:
            await asyncio.sleep(0)
        [handler] = server.handlers
        async with asyncio.timeout(20):
            while handler._websocket.end is None:
                await asyncio.sleep(0.01)
        assert handler._websocket.end == (1008, "too many frames or messages")


async def test_kernel_buffers_are_small(server: SocketServer) -> None:
    async with opened(server, server.admit(upgrade(), 1000)):
        [handler] = server.handlers
        own = handler._websocket._writer.get_extra_info("socket")
        for option in socket.SO_RCVBUF, socket.SO_SNDBUF:
            assert own.getsockopt(socket.SOL_SOCKET, option) <= 2 * BUFFER_BYTES


async def test_draining_closes_connections(server: SocketServer) -> None:
    """During a drain, idle connections are closed immediately. A connection that is opened later is closed after its
    first answer.
    """
    async with opened(server, server.admit(upgrade(), 1000)) as idle:
        server.drain()
        with pytest.raises(ConnectionClosed, match="1001"):
            await asyncio.wait_for(idle.recv(), 10)
    async with opened(server, server.admit(upgrade(), 1000)) as late:
        await late.send(json.dumps({"type": "response.create", "model": "m", "input": "x", "generate": False}))
        got = [json.loads(message)["type"] async for message in late]
        assert (got[-1], late.close_code) == ("response.completed", 1001)
