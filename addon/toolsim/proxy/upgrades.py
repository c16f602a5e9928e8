"""Admits upgrades to WebSocket connections, and recognizes the requests that arrive on them.

An optional package (``SOCKETS`` in ``plugins.py``) serves the connections on the loopback interface, and turns each
request into a separate flow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from mitmproxy.http import HTTPFlow, Request
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from toolsim.plugins import SOCKETS
from toolsim.proxy.access import Refusal
from toolsim.proxy.jobs import RunJob
from toolsim.proxy.metadata import SOCKET
from toolsim.proxy.mitmproxy12.backpressure import bound_buffers, writer_of
from toolsim.proxy.mitmproxy12.internal_flow import own_flow
from toolsim.proxy.options.api_keys import User

TOKEN = "toolsim-socket"
"""The header that identifies an upgrade for the local server. Its value cannot be guessed and is valid only once."""

BUFFER_BYTES = 64 * 1024
"""Size, in bytes, of the kernel's buffer for each direction of a relayed connection."""

MAX_CONNECTIONS = 128
"""Maximum number of connections per key. Each connection uses three file descriptors."""

TOO_MANY = Refusal(
    f"Too many WebSocket connections with this key: expected at most {MAX_CONNECTIONS}. You can still use HTTP.",
    "invalid_request_error",
    "rate_limit_exceeded",
    status=429,
    retry_after=1,
    reason="websocket",
)


# Headers that apply only to the upgrade, not to the requests that arrive on the connection.
_DROPPED = ("connection", "upgrade", "content-length", "transfer-encoding", TOKEN)
_PREFIX = "sec-websocket-"


@dataclass(frozen=True, slots=True)
class ClientUpgrade:
    """A client's upgrade to a WebSocket connection.

    ``sent`` is the request as received. ``proxy_user`` is the user whose key the client sent to the forward proxy.
    """

    flow: HTTPFlow
    sent: Request
    owner: str
    proxy_user: User | None = None

    def post(self, body: bytes) -> HTTPFlow:
        """Return a flow for an API request that arrived on this connection with this body."""
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


def remember(flow: HTTPFlow, upgrade: ClientUpgrade) -> Callable[[object], object]:
    """Remember the upgrade of the connection on which a request arrived, while the request is in progress.

    The returned function forgets the upgrade. It can be used as a callback, because it ignores its argument.
    """
    _POSTS[flow.id] = upgrade
    return partial(_POSTS.pop, flow.id)


_POSTS: dict[str, ClientUpgrade] = {}
"""The WebSocket connections on which the requests in progress arrived, by flow ID.

A client cannot add an entry, regardless of the headers that it sends.
"""


def upgrade_of(flow: HTTPFlow) -> ClientUpgrade | None:
    """Return the upgrade of the connection on which a request arrived, or None for an HTTP request."""
    return _POSTS.get(flow.id)


class SocketServer(Protocol):
    """The local server, which serves WebSocket connections for admitted upgrades on 127.0.0.1:``port``."""

    port: int
    is_draining: bool

    def start(self) -> None:
        """Bind a free port. Raises OSError if no port is free."""

    def drain(self) -> None:
        """Close each connection once its client is no longer waiting for an answer."""

    async def stop(self) -> None:
        """Notify all clients and close their connections."""

    def count(self, owner: str) -> int:
        """Return the number of an owner's connections, including connections that are still being opened."""

    def admit(self, upgrade: ClientUpgrade, max_bytes: int) -> str:
        """Return a token that is valid for one upgrade. ``max_bytes`` limits the size of each request on the
        connection.
        """

    def forget(self, upgrade: ClientUpgrade) -> None:
        """Withdraw the token of an upgrade whose request never reached this server."""


class Sockets:
    """An addon that admits upgrades to WebSocket connections.

    ``has_store`` returns whether the proxy currently stores answers. ``do`` runs a job, in this process or in a
    worker process.
    """

    def __init__(self, has_store: Callable[[], bool], do: RunJob) -> None:
        self._do = do
        self._has_store = has_store
        self._server: SocketServer | None = None
        self._is_draining = False
        self._upgrades: dict[str, ClientUpgrade] = {}  # The upgrades without a response so far, by flow ID.

    def admit(
        self, flow: HTTPFlow, sent: Request, owner: str, max_bytes: int, proxy_user: User | None = None
    ) -> Refusal | None:
        """Send an upgrade to the local server, or return the reason for refusing it.

        ``sent`` is the request as received, ``owner`` is the owner of its key, and ``proxy_user`` is the user whose key
        the client sent to the forward proxy. ``max_bytes`` limits the size of each request on the connection.
        """
        server = self._serve()
        if server.count(owner) >= MAX_CONNECTIONS:
            return TOO_MANY
        upgrade = self._upgrades[flow.id] = ClientUpgrade(flow, sent, owner, proxy_user)
        flow.metadata[SOCKET] = True
        request = flow.request
        request.headers[TOKEN] = server.admit(upgrade, max_bytes)
        request.scheme, request.host, request.port = "http", "127.0.0.1", server.port
        return None

    def answered(self, flow: HTTPFlow) -> None:
        """Restore an upgrade request's original target in its flow, because the request was answered or has failed."""
        if (upgrade := self._upgrades.pop(flow.id, None)) is not None:
            request, sent = flow.request, upgrade.sent
            if self._server is not None:
                self._server.forget(upgrade)
            request.scheme, request.host, request.port = sent.scheme, sent.host, sent.port
            request.headers = sent.headers.copy()

    def server_connected(self, data: ServerConnectionHookData) -> None:
        """Limit the size of the kernel's buffers for the connection to the local server."""
        if self._server is not None and data.server.address == ("127.0.0.1", self._server.port):
            writer = writer_of(data.client, data.server)
            if writer is not None:
                bound_buffers(writer.get_extra_info("socket"), BUFFER_BYTES)

    def drain(self) -> None:
        """Start the drain, which closes each connection once its client is no longer waiting for an answer."""
        self._is_draining = True
        if self._server is not None:
            self._server.drain()

    async def stop(self) -> None:
        """Close all connections and stop the local server."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    def _serve(self) -> SocketServer:
        if self._server is None:
            # The optional package is imported on demand, because most proxies never need it.
            server: SocketServer = importlib.import_module(SOCKETS).SocketServer(self._has_store, self._do)
            server.start()
            server.is_draining = self._is_draining
            self._server = server
        return self._server
