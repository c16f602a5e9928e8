"""A stream that fails closed (see ``proxy/guard.py``), and a safety net for exceptions outside of streams.

``GuardedStream._handle_event`` catches any exception that occurs while a stream's event is handled, and ends the
exchange:

1. If the response headers have not been sent, the client receives the error as its complete answer, after its request
   has been read. A request without an exchange is answered with mitmproxy's own plain 502, and its connection is
   closed.
2. If the headers have been sent and toolsim is still writing the answer, the client receives its API's error event. Any
   other answer is cut off, so that an incomplete answer never appears complete.

An exception outside of any stream (in the reader of a body, in the fast path, or in this guard itself) reaches
mitmproxy's event loop, which logs it and continues. The event is lost, and the client would wait forever. ``Net``
filters that log and ends the streams of the connection.

Relies on these internals of mitmproxy 12.2:

1. Layers yield commands, including hooks. A stream's generator is resumed when the hook that it yielded has completed.
2. ``ConnectionHandler.server_event`` logs exceptions with the logger ``mitmproxy.proxy.server``, ``AddonManager`` logs
   exceptions in hooks with ``mitmproxy.addonmanager``, and ``Master`` logs exceptions that ended a task with
   ``mitmproxy.master``. Tornado, which runs the internal servers, logs exceptions in its handlers with
   ``tornado.application``. All include the traceback, and a filter can still change the record.
3. ``HttpLayer.command_sources`` maps each command to the stream that receives its completion.
4. On a ``ResponseProtocolError``, an HTTP/1 client is sent a 502 if no headers were sent, and its connection is closed.
5. ``NextLayer`` stores its events until it knows the next layer. After an exception, it would pass all of them on
   again.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from types import TracebackType
from typing import Any, ClassVar, override

from mitmproxy.addons.clientplayback import ReplayHandler
from mitmproxy.flow import Error
from mitmproxy.http import Response
from mitmproxy.proxy.commands import CloseConnection, Command, RequestWakeup, StartHook
from mitmproxy.proxy.events import Event, Wakeup
from mitmproxy.proxy.layer import CommandGenerator, NextLayer
from mitmproxy.proxy.layers.http import DropStream, HttpLayer, SendHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestEndOfMessage,
    RequestProtocolError,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._hooks import (
    HttpConnectHook,
    HttpErrorHook,
    HttpRequestHeadersHook,
    HttpRequestHook,
    HttpResponseHeadersHook,
    HttpResponseHook,
)
from mitmproxy.proxy.layers.http._http1 import Http1Server
from mitmproxy.proxy.server import ConnectionHandler

from toolsim.core.errors import FAILED
from toolsim.core.tasks import spawn
from toolsim.proxy.api_format import convert
from toolsim.proxy.exchange import Exchange
from toolsim.proxy.guard import Guard
from toolsim.proxy.mitmproxy12.exchange_stream import ExchangeStream
from toolsim.proxy.mitmproxy12.fallback_resend import ToolsimResendHook
from toolsim.proxy.mitmproxy12.response_pump import ToolsimAskHook, ToolsimStoreHook
from toolsim.wire.apis import api_named

CHECKED: tuple[type[StartHook], ...] = (
    HttpConnectHook,
    HttpRequestHeadersHook,
    HttpRequestHook,
    HttpResponseHeadersHook,
    HttpResponseHook,
    ToolsimAskHook,
    ToolsimResendHook,
    ToolsimStoreHook,
)
"""The hooks after which data is forwarded only if all addons have handled the hook (see ``Guard``)."""

_SERVER = "mitmproxy.proxy.server"
_LOGGERS = (_SERVER, "mitmproxy.addonmanager", "mitmproxy.master", "tornado.application")
_CONTINUE = 100


class GuardedStream(ExchangeStream):
    """A stream that ends its exchange on any exception, and forwards nothing without clearance."""

    guard: ClassVar = Guard()
    """The guard, which all streams share. ``patches.install`` sets this attribute."""
    carried: Exchange | None = None
    """The exchange of this stream, even after it has ended, or None if toolsim does not handle the request."""
    is_failed = False
    has_request = False
    """Whether the request has been read completely."""
    has_head = False
    """Whether the response headers have been sent to the client."""
    has_end = False
    """Whether the end of the answer has been sent to the client."""
    failure: Response | None = None
    """The error response that still has to be sent, or None if there is none."""
    rescue: RequestWakeup | None = None
    """The command that ``Net`` uses to wake a stream that has lost an event. None before that."""

    @override
    def _handle_event(self, event: Event) -> CommandGenerator[None]:
        if isinstance(event, RequestEndOfMessage):
            self.has_request = True
        try:
            if isinstance(event, Wakeup) and event.command is self.rescue:
                yield from self.fail(is_rescued=True)
            elif self.is_failed:
                yield from self.after_failure(event)
            else:
                yield from self.watched(super()._handle_event(event))
        except Exception as problem:
            self.guard.note(problem)
            yield from self.ending(event)

    def watched(self, commands: CommandGenerator[None]) -> CommandGenerator[None]:
        """Pass on the stream's ``commands`` for an event, and check that each hook among them has completed.

        Raises NotCleared if an addon did not complete a hook.
        """
        reply: Any = None
        while True:
            try:
                command: Command = commands.send(reply)
            except StopIteration:
                return
            if isinstance(command, SendHttp):
                head = command.event
                if isinstance(head, ResponseHeaders) and head.response.status_code != _CONTINUE:
                    self.has_head = True
                elif isinstance(head, ResponseEndOfMessage):
                    self.has_end = True
                reply = yield command
            elif isinstance(command, CHECKED):
                self.guard.forget(self.flow)
                reply = yield command
                if (exchange := self.exchanges.of(self.flow)) is not None:
                    self.carried = exchange
                if not (isinstance(command, HttpResponseHook) and self.is_delivered):
                    self.guard.check(self.flow, command.name)
            else:
                reply = yield command
                if isinstance(command, DropStream):
                    self.exchanges.drop(self.flow)

    @override
    def make_server_connection(self) -> CommandGenerator[bool]:
        connected = yield from super().make_server_connection()
        if connected:
            self.guard.check_server(self.context.server)
        return connected

    # -- ending the exchange --

    def ending(self, event: Event) -> CommandGenerator[None]:
        """End the exchange after an exception, even if sending the error raises another exception."""
        try:
            if isinstance(event, RequestProtocolError):
                yield from self.break_off()
            else:
                yield from self.fail()
        except Exception as problem:
            self.guard.note(problem)
            yield from self.break_off()

    def fail(self, *, is_rescued: bool = False) -> CommandGenerator[None]:
        """End the exchange with an error.

        ``is_rescued`` is true if the stream has lost an event. In this case, the connection of an HTTP/1 client is
        closed, because it cannot be reused.
        """
        if self.is_failed:
            yield from self.break_off()
            return
        self.is_failed = True
        if self.has_head:
            yield from self.fail_streamed()
        elif self.carried is None:
            yield from self.break_off()
        else:
            if self.has_backend:
                yield self.stop_backend()
            self.failure = self.refusal(self.carried)
            if self.has_request or is_rescued:
                yield from self.send_failure()
            elif self.flow.request.headers.get("expect", "").lower() == "100-continue":
                # The client sends the body of its request only after it has received the status 100 (Continue).
                head = Response.make(_CONTINUE)
                head.headers.clear()
                yield SendHttp(ResponseHeaders(self.stream_id, head), self.context.client)
        if is_rescued and type(self.layer.connections.get(self.context.client)) is Http1Server:
            yield CloseConnection(self.context.client)

    def after_failure(self, event: Event) -> CommandGenerator[None]:
        """Read the rest of the request, then send the error."""
        if self.failure is None:
            return
        if isinstance(event, RequestEndOfMessage):
            yield from self.send_failure()
        elif isinstance(event, RequestProtocolError):
            yield from self.break_off()

    def refusal(self, exchange: Exchange) -> Response:
        """End the exchange, and return the error in the format of the client's API."""
        self.flow.response = exchange.refuse(FAILED)
        if not self.exchanges.close(self.flow, FAILED.status):
            convert(self.flow.response, api_named(exchange.report.client))
        return self.flow.response

    def send_failure(self) -> CommandGenerator[None]:
        """Send the pending error response."""
        response, self.failure = self.failure, None
        assert response is not None
        self.client_state = self.state_done
        yield from self.answer(response)
        self.exchanges.drop(self.flow)

    def fail_streamed(self) -> CommandGenerator[None]:
        """End an answer whose head has already been sent to the client."""
        answer = self.carried.streamed if self.carried is not None else None
        is_streaming = self.server_state == self.state_stream_response_body
        if not self.is_delivered:
            frames = answer.crash(FAILED) if answer is not None and is_streaming else None
            if frames is None:
                yield from self.break_off()
                return
            yield from map(self.sending, frames)
            self.is_delivered = True
        if is_streaming:
            yield from self.end()
        elif not self.has_end:
            self.flow.live = False
            yield DropStream(self.stream_id)
            yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)
        self.exchanges.drop(self.flow)

    def break_off(self) -> CommandGenerator[None]:
        """Cut off the client's answer or, if it has not been started, answer the request with mitmproxy's own 502."""
        self.is_failed = self.ended = True
        self.failure = None
        self.stop_feeding()
        if self.has_backend:
            yield self.stop_backend()
        flow = getattr(self, "flow", None)
        if flow is not None and flow.live:
            flow.error = flow.error or Error(FAILED.message)
            flow.live = False
            yield HttpErrorHook(flow)
            self.exchanges.drop(flow)
        error = ResponseProtocolError(self.stream_id, FAILED.message, ErrorCode.GENERIC_SERVER_ERROR)
        yield SendHttp(error, self.context.client)
        self.client_state = self.server_state = self.state_errored
        yield DropStream(self.stream_id)


class Net(logging.Filter):
    """Replaces log messages about exceptions in toolsim, and ends the streams that have lost an event.

    The new message names the function in which the exception was raised.
    """

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard
        self._tasks: set[asyncio.Task[None]] = set()

    def install(self) -> None:
        """Start filtering the logs of mitmproxy and tornado."""
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)

    def uninstall(self) -> None:
        """Stop filtering the logs of mitmproxy and tornado."""
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self)

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        problem = record.exc_info[1] if record.exc_info else None
        if named := self._guard.note_logged(problem):
            record.msg, record.args = named, ()
            if record.name == _SERVER and problem is not None:
                self._rescue(problem.__traceback__)
        return True

    def _rescue(self, raised: TracebackType | None) -> None:
        """End the stream in which an exception was raised, or all streams of the connection if the stream is unknown.

        The stream is determined from the exception's traceback.
        """
        through = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(raised)]
        handler = next((owner for owner in through if isinstance(owner, ConnectionHandler)), None)
        if handler is None:
            return
        for layer in through:
            if isinstance(layer, NextLayer):
                _settle(layer)
        layers = [layer for layer in handler.layer.context.layers if isinstance(layer, HttpLayer)]
        streams = [owner for owner in through if isinstance(owner, GuardedStream)][-1:]
        streams = streams or [stream for layer in layers for stream in layer.streams.values()]  # type: ignore[misc]
        spawn(_end(handler, [stream for stream in streams if isinstance(stream, GuardedStream)]), self._tasks)


def _settle(above: NextLayer) -> None:
    """If a ``NextLayer`` already knows the next layer, make it pass further events directly to that layer.

    mitmproxy normally does this itself, but an exception prevented it.
    """
    if above.layer is not None:
        above.events.clear()
        above.handle_event = above._handle_event = above._handle = above.layer.handle_event  # type: ignore[method-assign]


async def _end(handler: ConnectionHandler, streams: list[GuardedStream]) -> None:
    """End the given streams of a connection.

    If no streams are given, or if a stream has been upgraded to a WebSocket connection or a tunnel, close the
    connection.
    """
    for stream in streams:
        if stream.child_layer is not None:
            break
        stream.unpause()
        command = stream.rescue = RequestWakeup(0)
        stream.layer.command_sources[command] = stream
        await handler.server_event(Wakeup(command))
    else:
        if streams:
            return
    if handler.client in handler.transports:
        handler.close_connection(handler.client)
    elif isinstance(handler, ReplayHandler):  # An internal flow has no connection to a client.
        handler.done.set()
