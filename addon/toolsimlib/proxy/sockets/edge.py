"""Which upgrades are admitted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from mitmproxy.http import HTTPFlow, Request

from toolsimlib.errors import ApiError
from toolsimlib.proxy.jobs import Done, Job
from toolsimlib.proxy.metadata import SOCKET
from toolsimlib.proxy.sockets.posts import TOKEN, Upgrade

if TYPE_CHECKING:
    from toolsimlib.proxy.sockets.server import SocketServer

MAX_CONNECTIONS = 128
"""Connections of one key. Each takes three file descriptors."""

TOO_MANY = ApiError(
    f"Too many WebSocket connections with this key: expected at most {MAX_CONNECTIONS}. HTTP is served.",
    "invalid_request_error",
    "rate_limit_exceeded",
    status=429,
    retry_after=1,
)


class Sockets:
    """Admits upgrades. ``has_store``: whether the proxy stores answers now; ``do`` does a job, here or in a worker."""

    def __init__(self, has_store: Callable[[], bool], do: Callable[[Job], Awaitable[Done]]) -> None:
        self._do = do
        self._has_store = has_store
        self._server: SocketServer | None = None
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

    async def stop(self) -> None:
        """End all connections."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    def _serve(self) -> SocketServer:
        if self._server is None:
            # It needs tornado's server, which takes as long to import as all of toolsim.
            from toolsimlib.proxy.sockets.server import SocketServer

            self._server = SocketServer(self._has_store, self._do)
            self._server.start()
        return self._server
