"""Which upgrades to WebSocket connections are admitted, and which requests have come by one.

An optional package serves the connections on the loopback (``SOCKETS`` in ``plugins.py``): each request becomes a
separate flow.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from mitmproxy.http import HTTPFlow, Request
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from toolsim.core.errors import ApiError
from toolsim.plugins import SOCKETS
from toolsim.proxy.jobs import Done, Job
from toolsim.proxy.metadata import SOCKET
from toolsim.proxy.mitmproxy12.replayed import own_flow
from toolsim.proxy.mitmproxy12.unread import bound_buffers, writer_of

TOKEN = "toolsim-socket"
"""The header that names an upgrade to our server: it cannot be guessed, and is valid once."""

BUFFER_BYTES = 64 * 1024
"""Of the kernel, for each direction of a relayed connection; it takes twice that."""

MAX_CONNECTIONS = 128
"""Connections of one key. Each takes three file descriptors."""

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
        """Return the flow of a request on this connection, which ``forget`` has to follow."""
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
        flow = own_flow(self.flow.client_conn, request)
        _POSTS[flow.id] = self
        return flow


def forget(flow: HTTPFlow) -> None:
    """Let the flow of a request be over."""
    _POSTS.pop(flow.id, None)


_POSTS: dict[str, Upgrade] = {}
"""The requests of connections in flight, by flow id. A client's own flow is never one of these."""


def upgrade_of(flow: HTTPFlow) -> Upgrade | None:
    """Return the upgrade of the connection that a request has come by, None for one that came over HTTP."""
    return _POSTS.get(flow.id)


class SocketServer(Protocol):
    """Serves the connections of upgrades that it was told to expect, on 127.0.0.1:``port``."""

    port: int
    is_draining: bool

    def start(self) -> None:
        """Bind a free port. Raises OSError if there is none."""

    def drain(self) -> None:
        """Close each connection when its client waits for no answer any more."""

    async def stop(self) -> None:
        """Tell all clients, and close their connections."""

    def count(self, owner: str) -> int:
        """Return how many connections an owner has, those that are being opened included."""

    def admit(self, upgrade: Upgrade, max_bytes: int) -> str:
        """Return the token with which one upgrade is accepted; ``max_bytes``: of a request."""

    def forget(self, upgrade: Upgrade) -> None:
        """Forget an upgrade that never came."""


class Sockets:
    """An addon that admits upgrades.

    ``has_store``: whether the proxy stores answers now; ``do`` does a job, here or in a worker.
    """

    def __init__(self, has_store: Callable[[], bool], do: Callable[[Job], Awaitable[Done]]) -> None:
        self._do = do
        self._has_store = has_store
        self._server: SocketServer | None = None
        self._is_draining = False
        self._upgrades: dict[str, Upgrade] = {}  # By flow id, until they are answered.

    def admit(
        self, flow: HTTPFlow, sent: Request, owner: str, max_bytes: int, *, has_proxy_key: bool
    ) -> ApiError | None:
        """Send an upgrade to our server; return why it is refused, None if it is not.

        ``sent``: the request as it came; ``owner``: that of its key; ``max_bytes``: of a request on the connection.
        """
        server = self._serve()
        if server.count(owner) >= MAX_CONNECTIONS:
            return TOO_MANY
        upgrade = self._upgrades[flow.id] = Upgrade(flow, sent, owner, has_proxy_key)
        flow.metadata[SOCKET] = True
        request = flow.request
        request.headers[TOKEN] = server.admit(upgrade, max_bytes)
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

    def server_connected(self, data: ServerConnectionHookData) -> None:
        """Bound what the kernel buffers on this side of a relayed connection."""
        if self._server is not None and data.server.address == ("127.0.0.1", self._server.port):
            writer = writer_of(data.client, data.server)
            if writer is not None:
                bound_buffers(writer.get_extra_info("socket"), BUFFER_BYTES)

    def drain(self) -> None:
        """Close each connection, from now on, when its client waits for no answer any more: the proxy is to end."""
        self._is_draining = True
        if self._server is not None:
            self._server.drain()

    async def stop(self) -> None:
        """End all connections."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    def _serve(self) -> SocketServer:
        if self._server is None:
            # An optional package, which most proxies never need.
            server: SocketServer = importlib.import_module(SOCKETS).SocketServer(self._has_store, self._do)
            server.start()
            server.is_draining = self._is_draining
            self._server = server
        return self._server
