"""Runs an internal flow through mitmproxy's HTTP layer, as a replayed request that can be aborted.

``_OwnClient`` replaces the layer for the client's connection. It provides the request, and passes the answer to a
function.

Relies on these internals of mitmproxy 12.2:

1. ``ReplayHandler`` runs one flow to its end. The ``connections`` of its layer contain the client's side, which is a
   ``MockServer``.
2. The client's side reports a disconnected client as ``RequestProtocolError`` with ``CLIENT_DISCONNECTED``.
3. ``drain_writers`` is awaited between two reads of a connection. mitmproxy waits there for a slow client, and this
   handler waits for the consumer of the answer.
4. ``server_event`` handles an event, which for a read of a connection is a ``DataReceived``.

A client can have many internal flows at the same time, so each flow waits for its turn when it starts, when it ends,
and after reading a large amount of data.
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
from mitmproxy.proxy.events import ConnectionClosed, DataReceived, Event
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

from toolsim.core.turns import TURNS

# mitmproxy's own logger is used, so that these connections are logged like all others.
_connections = logging.getLogger("mitmproxy.proxy.server")

LARGE_BYTES = 4096
"""Number of bytes after which a flow waits for its turn before it reads more."""

CHECK_SECONDS = 1.0
"""Interval, in seconds, for checking whether an exception in toolsim has ended a connection's task."""

LEAVE_SECONDS = 1.0
"""Maximum time, in seconds, to wait for an aborted flow to end before it is canceled."""

Answered = Callable[[Response | bytes | None], None]
"""A function that is called with a response's headers, with each part of its body, and finally with None."""


def own_flow(client: Client, request: Request) -> HTTPFlow:
    """Return a flow for an internal request on behalf of ``client``, marked as a replay until the first hook."""
    own = Client(
        peername=client.peername,
        sockname=client.sockname,
        timestamp_start=time.time(),
        proxy_mode=client.proxy_mode,
        state=ConnectionState.OPEN,
    )
    flow = HTTPFlow(own, Server(address=(request.host, request.port)), live=True)
    # The client's proxy password (``proxyauth``) was removed from the request, but a replay does not need a password.
    # The addon's first hook, which runs after the password check, turns the replay into an ordinary flow.
    flow.is_replay = "request"
    flow.request = request
    return flow


class FlowHandler(ReplayHandler):
    """Runs an internal flow on behalf of ``owner``.

    ``name`` is the prefix of the flow's log lines, and ``answered`` is called with each part of the response.
    """

    def __init__(
        self, flow: HTTPFlow, options: Options, name: str, owner: str, answered: Answered = lambda _: None
    ) -> None:
        super().__init__(flow, options)
        self._name = name
        self._owner = owner
        self._reported: set[asyncio.Task[Any]] = set()  # The failed tasks that have been logged.
        self._read_bytes = 0  # The number of bytes that were read since the last wait.
        self.reading = asyncio.Event()
        """An event that is cleared while the consumer of the answer is too slow. Meanwhile, no data is read."""
        self.reading.set()
        self.layer.connections[self.client] = _OwnClient(flow, self.layer.context.fork(), answered)

    @override
    def log(self, message: str, level: int = logging.INFO, exc_info: Any = None) -> None:
        _connections.log(level, "[%s] %s", self._name, message, exc_info=exc_info)

    async def run(self) -> None:
        """Run the flow until it ends."""
        try:
            await TURNS.wait(self._owner)
            if self.client.connected:  # ``leave`` might have been called during the wait.
                replaying = asyncio.create_task(self.replay())
                while not (await asyncio.wait([replaying], timeout=CHECK_SECONDS))[0]:
                    self._report_failures()
                await replaying
        finally:
            for timer in list(self.wakeup_timer):
                timer.cancel()

    def _report_failures(self) -> None:
        """Log each exception that ended a connection's task. ``Net`` (``guarded.py``) then ends the flow."""
        for transport in list(self.transports.values()):
            task = transport.handler
            if task is None or not task.done() or task.cancelled() or task in self._reported:
                continue
            if (problem := task.exception()) is not None:
                self._reported.add(task)
                _connections.error("a connection failed: %r", problem, exc_info=problem)

    @override
    async def server_event(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            self._read_bytes += len(event.data)
        await super().server_event(event)

    @override
    async def drain_writers(self) -> None:
        await super().drain_writers()  # type: ignore[no-untyped-call]
        await self.reading.wait()
        if self._read_bytes > LARGE_BYTES:
            self._read_bytes = 0
            await TURNS.wait(self._owner)

    async def leave(self) -> None:
        """End the flow as if the client had disconnected, which stops the backend."""
        self.reading.set()
        try:
            await TURNS.wait(self._owner)
        finally:
            await self._end()

    async def _end(self) -> None:
        self.client.state = ConnectionState.CLOSED
        await self.server_event(ConnectionClosed(self.client))
        with suppress(TimeoutError):
            await asyncio.wait_for(self.done.wait(), LEAVE_SECONDS)
            return
        # The flow may still be open because it is intercepted, or because its connection is being opened.
        if self.flow.killable:
            self.flow.kill()  # type: ignore[no-untyped-call]
        for transport in list(self.transports.values()):
            if transport.handler:
                transport.handler.cancel("client disconnected")
        self.done.set()


class _OwnClient(MockServer):
    """The simulated client of an internal flow.

    Unlike mitmproxy's ``MockServer``, it can disconnect, and it passes the response to ``answered``.
    """

    def __init__(self, flow: HTTPFlow, context: Context, answered: Answered) -> None:
        super().__init__(flow, context)
        self._answered = answered

    @override
    def _handle_event(self, event: Event) -> CommandGenerator[None]:
        match event:
            case ConnectionClosed():
                yield ReceiveHttp(RequestProtocolError(1, "The client disconnected.", ErrorCode.CLIENT_DISCONNECTED))
            case ResponseHeaders(response=response):
                self._answered(response)
            case ResponseData(data=data):
                self._answered(data)
            case ResponseEndOfMessage() | ResponseProtocolError():
                self._answered(None)
            case _:
                yield from super()._handle_event(event)
