"""Limits the time that an attempt to connect to a backend can take.

mitmproxy has no connection timeout. The operating system's timeout may be minutes (mitmproxy issue #1095).

Relies on these internals of ``mitmproxy.proxy.server`` 12.2: the hook ``server_connect`` runs in the task that then
connects, and canceling that task results in an ordinary connection error. So a timer cancels the task unless the
connection, including any TLS handshake, is established in time.
"""

from __future__ import annotations

import asyncio

from mitmproxy.connection import Connection
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.tls import TlsData


class ConnectTimeout:
    """An addon that cancels an attempt to connect after ``seconds``. If ``seconds`` is 0, there is no time limit."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def server_connect(self, data: ServerConnectionHookData) -> None:
        """Start the connection's timer. This hook is async, so that it runs in the task that connects."""
        task = asyncio.current_task()
        if self.seconds and task is not None:
            self._stop(data.server)
            loop = asyncio.get_running_loop()
            self._timers[data.server.id] = loop.call_later(self.seconds, task.cancel, "timed out")

    def server_connected(self, data: ServerConnectionHookData) -> None:
        """Stop the connection's timer unless a TLS handshake follows."""
        if not data.server.tls:
            self._stop(data.server)

    def server_connect_error(self, data: ServerConnectionHookData) -> None:
        """Stop the timer of a connection that could not be opened."""
        self._stop(data.server)

    def server_disconnected(self, data: ServerConnectionHookData) -> None:
        """Stop the timer of a connection that was closed."""
        self._stop(data.server)

    def tls_established_server(self, data: TlsData) -> None:
        """Stop the timer of a connection whose TLS handshake is complete."""
        self._stop(data.conn)

    def tls_failed_server(self, data: TlsData) -> None:
        """Stop the timer of a connection whose TLS handshake has failed."""
        self._stop(data.conn)

    def _stop(self, connection: Connection) -> None:
        if (timer := self._timers.pop(connection.id, None)) is not None:
            timer.cancel()
