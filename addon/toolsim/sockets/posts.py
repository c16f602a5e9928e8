"""A request that has come by a connection, on its way as a flow of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from mitmproxy import ctx
from mitmproxy.http import Response

from toolsim.proxy.head import by_name
from toolsim.proxy.mitmproxy12.replayed import FlowHandler
from toolsim.proxy.upgrades import Upgrade, forget
from toolsim.sockets.connection import Head

MAX_UNREAD = 256
"""Parts of an answer that wait for a client who reads slowly; then its backend is not read."""


class Post:
    """A request of a connection, on its way as a flow of its own."""

    def __init__(self, upgrade: Upgrade, body: bytes) -> None:
        flow = upgrade.post(body)
        self._parts: asyncio.Queue[Head | bytes | None] = asyncio.Queue()
        self._handler = FlowHandler(flow, ctx.options, "websocket", self._answered)
        self._task = asyncio.create_task(self._handler.run())
        self._task.add_done_callback(lambda _: self._parts.put_nowait(None))
        self._task.add_done_callback(lambda _: forget(flow))

    async def parts(self) -> AsyncGenerator[Head | bytes]:
        """Yield the answer as it comes. It may be closed at the answer's end: the rest, the flow does by itself."""
        try:
            while (part := await self._parts.get()) is not None:
                if self._parts.empty():
                    self._handler.reading.set()
                yield part
        finally:
            self._handler.reading.set()

    async def leave(self) -> None:
        """Hang up, which stops the model."""
        if not self._task.done():
            await self._handler.leave()

    def _answered(self, part: Response | bytes | None) -> None:
        if isinstance(part, Response):
            headers = by_name(part.headers)
            kept = {name: headers[name] for name in ("retry-after",) if name in headers}
            self._parts.put_nowait(Head(part.status_code, headers.get("content-type", ""), kept))
            return
        self._parts.put_nowait(part)
        if self._parts.qsize() > MAX_UNREAD:
            self._handler.reading.clear()
