"""The requests that come by a connection, each as a flow of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow, Request, Response

from toolsimlib.proxy.head import by_name
from toolsimlib.proxy.mitmproxy12.replayed import FlowHandler, own_flow
from toolsimlib.proxy.sockets.connection import Head

TOKEN = "toolsim-socket"
"""The header that names an upgrade to our server: it cannot be guessed, and is valid once."""

MAX_UNREAD = 256
"""Parts of an answer that wait for a client who reads slowly; then its backend is not read."""

# Of the upgrade, and of a body that it does not have.
_DROPPED = ("connection", "upgrade", "content-length", "transfer-encoding", TOKEN)
_PREFIX = "sec-websocket-"


@dataclass(frozen=True, slots=True)
class Upgrade:
    """An upgrade of a client. ``sent``: as it came; ``has_proxy_key``: its client has shown the key of the proxy."""

    flow: HTTPFlow
    sent: Request
    owner: str
    has_proxy_key: bool

    def post(self, body: bytes) -> HTTPFlow:
        """Return the flow of a request on this connection."""
        request: Request = self.sent.copy()
        for name in list(request.headers):
            if name.lower() in _DROPPED or name.lower().startswith(_PREFIX):
                request.headers.pop(name, None)
        if request.headers.get("openai-beta", "").startswith("responses_websockets"):
            del request.headers["openai-beta"]
        request.method = "POST"
        request.headers["content-type"] = "application/json"
        request.headers["accept"] = "text/event-stream"
        request.content = body
        return own_flow(self.flow.client_conn, request)


_POSTS: dict[str, Upgrade] = {}
"""The requests of connections in flight, by flow id. A client's own flow is never one of these."""


def upgrade_of(flow: HTTPFlow) -> Upgrade | None:
    """Return the upgrade of the connection that a request has come by, None for one that came over HTTP."""
    return _POSTS.get(flow.id)


class Post:
    """A request of a connection, on its way as a flow of its own."""

    def __init__(self, upgrade: Upgrade, body: bytes) -> None:
        flow = upgrade.post(body)
        _POSTS[flow.id] = upgrade
        self._parts: asyncio.Queue[Head | bytes | None] = asyncio.Queue()
        self._handler = FlowHandler(flow, ctx.options, "websocket", self._answered)
        self._task = asyncio.create_task(self._handler.run())
        self._task.add_done_callback(lambda _: self._parts.put_nowait(None))
        self._task.add_done_callback(lambda _: _POSTS.pop(flow.id, None))

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
