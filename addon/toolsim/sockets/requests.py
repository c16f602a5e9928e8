"""Sends each request on a WebSocket connection as a separate flow, and limits the unread data per connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from mitmproxy import ctx
from mitmproxy.http import Response

from toolsim.proxy.head import by_name
from toolsim.proxy.mitmproxy12.internal_flow import FlowHandler
from toolsim.proxy.upgrades import ClientUpgrade, remember
from toolsim.sockets.connection import Head

MAX_UNREAD_BYTES = 1024 * 1024
"""Maximum number of bytes that wait for a client. Above it, nothing is read from the client's backends."""
_PART_BYTES = 256
"""The memory that a part of a response needs in addition to its data, in bytes."""


class Backlog:
    """Counts the bytes that wait for the client of one connection.

    While too many bytes are waiting, the backends that answer the connection's requests are paused.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._paused: set[asyncio.Event] = set()

    def add(self, size: int, reading: asyncio.Event) -> None:
        """Count a part of a response that has arrived.

        If too many bytes are waiting, clear ``reading`` to pause the backend.
        """
        self._bytes += size
        if self._bytes > MAX_UNREAD_BYTES:
            reading.clear()
            self._paused.add(reading)

    def remove(self, size: int) -> None:
        """Subtract a part of a response that has been passed to the client."""
        self._bytes -= size
        if self._bytes <= MAX_UNREAD_BYTES:
            while self._paused:
                self._paused.pop().set()


class SocketRequest:
    """A request on a WebSocket connection, which is sent as a separate flow."""

    def __init__(self, upgrade: ClientUpgrade, backlog: Backlog, body: bytes) -> None:
        flow = upgrade.post(body)
        self._backlog = backlog
        self._parts: asyncio.Queue[Head | bytes | asyncio.Task[None] | None] = asyncio.Queue()
        self._has_reader = True
        self._handler = FlowHandler(flow, ctx.options, "websocket", upgrade.owner, self._answered)
        forget = remember(flow, upgrade)
        # Only standard library code creates the task and handles its end, because an exception raised there would be
        # lost.
        self._task = asyncio.create_task(self._handler.run())
        self._task.add_done_callback(self._parts.put_nowait)
        self._task.add_done_callback(forget)

    async def parts(self) -> AsyncGenerator[Head | bytes]:
        """Yield the parts of the response as they arrive.

        If this generator is closed early, the flow still reads the rest of the response.
        """
        try:
            while isinstance(part := await self._parts.get(), Head | bytes):
                try:
                    yield part
                finally:
                    self._backlog.remove(_cost(part))
        finally:
            self._has_reader = False
            while not self._parts.empty():
                self._backlog.remove(_cost(self._parts.get_nowait()))
            self._handler.reading.set()

    async def leave(self) -> None:
        """Disconnect from the backend, which stops the model."""
        if not self._task.done():
            await self._handler.leave()

    def _answered(self, part: Response | bytes | None) -> None:
        if not self._has_reader:
            return
        if isinstance(part, Response):
            headers = by_name(part.headers)
            kept = {name: headers[name] for name in ("retry-after",) if name in headers}
            self._put(Head(part.status_code, headers.get("content-type", ""), kept))
        else:
            self._put(part)

    def _put(self, part: Head | bytes | None) -> None:
        self._parts.put_nowait(part)
        self._backlog.add(_cost(part), self._handler.reading)


def _cost(part: Head | bytes | asyncio.Task[None] | None) -> int:
    return _PART_BYTES + (len(part) if isinstance(part, bytes) else 0)
