"""Runs a flow of ours through mitmproxy's HTTP layer, as a replayed request, and may break it off.

Its layer for client connections is one that brings the request, and drops the bytes of the answer.

Relies on these internals of mitmproxy 12.2:

1. ``ReplayHandler`` carries one flow to its end, its layer's ``connections`` holds the client's side,
   and ``MockServer`` is that side.
2. ``RequestProtocolError`` with ``CLIENT_DISCONNECTED`` is what a client's side reports when the
   client hangs up.
3. ``drain_writers`` is awaited after each read of a connection, before the next one: there mitmproxy
   waits for a slow client, and this handler for whoever takes the answer.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, override

from mitmproxy.addons.clientplayback import MockServer, ReplayHandler
from mitmproxy.connection import ConnectionState
from mitmproxy.http import HTTPFlow
from mitmproxy.options import Options
from mitmproxy.proxy.events import ConnectionClosed, Event
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import ErrorCode, RequestProtocolError

# mitmproxy's own logger: log lines about a flow's connections appear with those of all others.
_connections = logging.getLogger("mitmproxy.proxy.server")

LEAVE_SECONDS = 1.0
"""How long a flow may take to end once it is broken off, before it is cancelled."""


class FlowHandler(ReplayHandler):
    """Runs one flow. ``name``: begins the log lines about its connections."""

    def __init__(self, flow: HTTPFlow, options: Options, name: str) -> None:
        super().__init__(flow, options)
        self._name = name
        self.reading = asyncio.Event()
        """Cleared while the backend is not to be read, since what has come is not taken."""
        self.reading.set()
        self.layer.connections[self.client] = _LeavingClient(flow, self.layer.context.fork())

    @override
    def log(self, message: str, level: int = logging.INFO, exc_info: Any = None) -> None:
        _connections.log(level, "[%s] %s", self._name, message, exc_info=exc_info)

    async def run(self) -> None:
        """Run the flow to its end."""
        try:
            await self.replay()
        finally:
            for timer in list(self.wakeup_timer):
                timer.cancel()

    @override
    async def drain_writers(self) -> None:
        await super().drain_writers()  # type: ignore[no-untyped-call]
        await self.reading.wait()

    async def leave(self) -> None:
        """End the flow like a client that hangs up, which stops the backend."""
        self.reading.set()
        self.client.state = ConnectionState.CLOSED
        await self.server_event(ConnectionClosed(self.client))
        with suppress(TimeoutError):
            await asyncio.wait_for(self.done.wait(), LEAVE_SECONDS)
            return
        # The flow has been intercepted, or its connection is still being opened.
        if self.flow.killable:
            self.flow.kill()  # type: ignore[no-untyped-call]
        for transport in list(self.transports.values()):
            if transport.handler:
                transport.handler.cancel("client disconnected")
        self.done.set()


class _LeavingClient(MockServer):
    """The client's side of a flow, which may leave."""

    @override
    def _handle_event(self, event: Event) -> CommandGenerator[None]:
        if isinstance(event, ConnectionClosed):
            yield ReceiveHttp(RequestProtocolError(1, "The client has left.", ErrorCode.CLIENT_DISCONNECTED))
        else:
            yield from super()._handle_event(event)
