"""The upgrades that are admitted, and the requests of their connections as flows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow, Request, Response

from toolsimlib.errors import ApiError
from toolsimlib.proxy.head import by_name
from toolsimlib.proxy.metadata import SOCKET
from toolsimlib.proxy.mitmproxy12.replayed import FlowHandler, own_flow
from toolsimlib.proxy.sockets.connection import Head

if TYPE_CHECKING:
    from toolsimlib.proxy.sockets.server import SocketServer

MAX_CONNECTIONS = 128
"""Connections of one key. Each takes three file descriptors."""
MAX_UNREAD = 256
"""Parts of an answer that wait for a client who reads slowly; then its backend is not read."""

TOKEN = "toolsim-socket"
"""The header that names an upgrade to the server: it cannot be guessed, and is valid once."""

TOO_MANY = ApiError(
    f"Too many WebSocket connections with this key: expected at most {MAX_CONNECTIONS}. HTTP is served.",
    "invalid_request_error",
    "rate_limit_exceeded",
    status=429,
    retry_after=1,
)

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


class Sockets:
    """Admits upgrades. ``has_store``: whether the proxy stores answers now."""

    def __init__(self, has_store: Callable[[], bool]) -> None:
        self.max_bytes = 32 * 1024 * 1024
        """The size limit of a request, and of what a connection remembers."""
        self.has_store = has_store
        self._server: SocketServer | None = None
        self._upgrades: dict[str, Upgrade] = {}  # By flow id, until they are answered.
        self._counts: Counter[str] = Counter()

    def admit(self, flow: HTTPFlow, sent: Request, owner: str, *, has_proxy_key: bool) -> ApiError | None:
        """Send an upgrade to our server; return why it is refused, None if it is not. ``owner``: of its key."""
        if self._counts[owner] >= MAX_CONNECTIONS:
            return TOO_MANY
        upgrade = Upgrade(flow, sent, owner, has_proxy_key)
        request, server = flow.request, self._serve()
        self._upgrades[flow.id] = upgrade
        flow.metadata[SOCKET] = True
        request.headers[TOKEN] = server.admit(upgrade)
        request.scheme, request.host, request.port = "http", "127.0.0.1", server.port
        return None

    def answered(self, flow: HTTPFlow) -> None:
        """Give an upgrade that has been answered, or has failed, its own target again, which people see."""
        if (upgrade := self._upgrades.pop(flow.id, None)) is not None:
            request, sent = flow.request, upgrade.sent
            if self._server is not None:
                self._server.forget(upgrade)
            request.scheme, request.host, request.port = sent.scheme, sent.host, sent.port
            request.headers = sent.headers.copy()

    def opened(self, upgrade: Upgrade) -> None:
        """Count a connection."""
        self._counts[upgrade.owner] += 1

    def closed(self, upgrade: Upgrade, code: int | None, reason: str) -> None:
        """Forget a connection, and note in its flow how it ended."""
        self._counts[upgrade.owner] -= 1
        if not self._counts[upgrade.owner]:
            del self._counts[upgrade.owner]
        if (websocket := upgrade.flow.websocket) is not None and code is not None:
            websocket.close_code, websocket.close_reason = code, reason

    def stop(self) -> Coroutine[Any, Any, None] | None:
        """Return the coroutine that ends all connections, None if there was none."""
        server, self._server = self._server, None
        return server.stop() if server is not None else None

    def _serve(self) -> SocketServer:
        if self._server is None:
            # It needs tornado's server, which takes as long to import as all of toolsim.
            from toolsimlib.proxy.sockets.server import SocketServer

            self._server = SocketServer(self)
            self._server.start()
        return self._server


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

    async def parts(self) -> AsyncIterator[Head | bytes]:
        """Yield the answer as it comes. Without a limit once nobody takes it: then there is only its end left."""
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
