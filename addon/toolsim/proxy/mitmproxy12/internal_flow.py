"""Runs a flow of toolsim's own through mitmproxy's HTTP layer, as a replayed request that can be aborted.

Its layer for client connections provides the request, and hands over the answer or drops it.

Relies on these internals of mitmproxy 12.2:

1. ``ReplayHandler`` carries one flow to its end, its layer's ``connections`` holds the client's side,
   and ``MockServer`` is that side.
2. A client's side reports a disconnected client as ``RequestProtocolError`` with ``CLIENT_DISCONNECTED``.
3. ``drain_writers`` is awaited after each read of a connection, before the next one: there mitmproxy waits for a slow
   client, and this handler for the consumer of the answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, override

from mitmproxy.addons.clientplayback import MockServer, ReplayHandler
from mitmproxy.connection import Client, ConnectionState, Server
from mitmproxy.http import HTTPFlow, Request, Response
from mitmproxy.options import Options
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.events import ConnectionClosed, Event
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)

# mitmproxy's own logger: log lines about a flow's connections appear with those of all others.
_connections = logging.getLogger("mitmproxy.proxy.server")

LEAVE_SECONDS = 1.0
"""How long an aborted flow has to end before it is cancelled."""


Answered = Callable[[Response | bytes | None], None]
"""Called with the head of an answer, with each part of its body, and with None at its end."""


def own_flow(client: Client, request: Request) -> HTTPFlow:
    """Return a flow for an internal request, as if it came from ``client``, until the addon's first hook."""
    own = Client(
        peername=client.peername,
        sockname=client.sockname,
        timestamp_start=time.time(),
        proxy_mode=client.proxy_mode,
        state=ConnectionState.OPEN,
    )
    flow = HTTPFlow(own, Server(address=(request.host, request.port)), live=True)
    # The client's password for the proxy (``proxyauth``) was removed; replays need none. The addon's first hook, which
    # comes after that check, makes it a flow like any other.
    flow.is_replay = "request"
    flow.request = request
    return flow


class FlowHandler(ReplayHandler):
    """Runs one flow. ``name``: the prefix of its log lines. ``answered``: receives its answer."""

    def __init__(self, flow: HTTPFlow, options: Options, name: str, answered: Answered = lambda _: None) -> None:
        super().__init__(flow, options)
        self._name = name
        self.reading = asyncio.Event()
        """Cleared while the backend must not be read, because its data is not consumed."""
        self.reading.set()
        self.layer.connections[self.client] = _OwnClient(flow, self.layer.context.fork(), answered)

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
        """End the flow like a client that disconnects, which stops the backend."""
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


class _OwnClient(MockServer):
    """The client's side of a flow, which can disconnect."""

    def __init__(self, flow: HTTPFlow, context: Context, answered: Answered) -> None:
        super().__init__(flow, context)
        self._answered = answered

    @override
    def _handle_event(self, event: Event) -> CommandGenerator[None]:
        match event:
            case ConnectionClosed():
                yield ReceiveHttp(RequestProtocolError(1, "The client has left.", ErrorCode.CLIENT_DISCONNECTED))
            case ResponseHeaders(response=response):
                self._answered(response)
            case ResponseData(data=data):
                self._answered(data)
            case ResponseEndOfMessage() | ResponseProtocolError():
                self._answered(None)
            case _:
                yield from super()._handle_event(event)
