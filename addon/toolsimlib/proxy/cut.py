"""Ending an answer on our own terms, with a subclass of mitmproxy's HTTP stream.

mitmproxy's hooks can rewrite an answer, but they can neither end it, nor send anything while the backend is silent, nor
save it when the backend dies: then ``HttpStream`` closes the client's connection. So new streams are of a subclass,
which asks the ``Exchange`` that it carries, and its ``StreamedAnswer``. It relies on these internals of
``mitmproxy.proxy.layers.http`` 12.2:

1. ``HttpLayer.make_stream`` creates streams by the module's global name ``HttpStream``.
2. ``state_stream_response_body`` given ``ResponseEndOfMessage`` runs the ``response`` hook and ends the client's answer
   with its connection kept; ``send_response`` does the same for a whole answer in ``flow.response``.
3. ``SendHttp(RequestProtocolError)`` stops the backend: HTTP/1 closes the connection, HTTP/2 resets the one stream. It
   must precede the end of the client's answer, or the client's next request might go down the dying connection.
4. ``RequestWakeup`` is routed back to the stream that yielded it, and ``HttpStream`` itself never uses it.
5. ``HttpLayer.connections`` holds failed connections with their ``error``, and repeats it to later requests for the
   same address. We keep the client's connection open after such a failure, so we have to clear the error.
6. While a hook runs, the stream is paused and its events queue up; so they may still arrive after it has ended. A hook
   runs in its own task: everything else that is ready runs before what follows the hook.
7. Over HTTP/1 a stream may send a second request once it has the whole answer to the first and the event loop has
   turned. It uses a new connection: many servers hang up after an error without announcing it, and the FIN may still be
   in flight. Over HTTP/2 each stream is one request: there we only remember a refusal, and pass it on to the client.
8. ``state_stream_response_body`` given ``ResponseData`` only calls ``flow.response.stream`` and sends on what that
   returns, and ``Http1Server.send`` given it only frames it as a chunk. Nearly all events of a stream are of this kind,
   so we do both in one step, which saves half of mitmproxy's own work.
9. A hook asks every addon for a handler, and once more for ``update`` if its argument is a flow: 0.1 ms each time. So
   the hooks during an answer take the answer as their argument.

A stream keeps its class until it ends: loading and unloading the addon only affects new ones.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import override

from mitmproxy.connection import Server
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy.commands import Command, RequestWakeup, SendData, StartHook
from mitmproxy.proxy.events import Event, Wakeup
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import http
from mitmproxy.proxy.layers.http import HttpLayer, HttpStream, SendHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    RequestProtocolError,
    RequestTrailers,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
    ResponseTrailers,
)
from mitmproxy.proxy.layers.http._http1 import Http1Server

from toolsimlib.proxy.direct import DirectWay, direct_way
from toolsimlib.proxy.exchange import OPEN, Exchange
from toolsimlib.proxy.head import by_name
from toolsimlib.proxy.jobs import answer_too_large
from toolsimlib.proxy.streamed import StreamedAnswer

logger = logging.getLogger(__name__)


LINGER_SECONDS = 0.5
"""How long a backend may take to hang up after its last word, as most do at once, before we hang up on it."""


@dataclass
class ToolsimPauseHook(StartHook):  # type: ignore[no-untyped-call]
    """A stream pauses between two slices, to let other work run."""

    answer: StreamedAnswer


@dataclass
class ToolsimAgainHook(StartHook):  # type: ignore[no-untyped-call]
    """A request has to be rewritten once more."""

    flow: HTTPFlow


@dataclass
class ToolsimKeepHook(StartHook):  # type: ignore[no-untyped-call]
    """A streamed answer has to be stored."""

    answer: StreamedAnswer


class EndableStream(HttpStream):
    """A stream whose answer we can end: early, in time, and when the backend dies."""

    ended = False
    lingering = False
    is_unwatched = False
    """Whether the silence of a connected backend is not watched yet: we send the request before we start the timer."""
    fed: StreamedAnswer | None = None
    """The answer that is being streamed, None before and after."""
    frames_chunks = False
    """Whether we frame the chunks of HTTP/1 ourselves (rule 8)."""
    stores = False
    """Whether mitmproxy stores the bytes of the answer; as set when the answer began."""
    direct: DirectWay | None = None
    """The fast path past the layers for the answer that is being streamed, if there is one."""

    @property
    def exchange(self) -> Exchange | None:
        """The exchange that this stream carries, None if its answer is not ours to make."""
        exchange = OPEN.get(self.flow.id)
        return exchange if exchange is not None and exchange.ours else None

    @override
    def _handle_event(self, event: Event) -> CommandGenerator[None]:
        if self.fed is not None and type(event) is ResponseData:
            fed, data = self.fed, event.data
            # An empty HTTP/2 frame is not the end of input.
            if not data:
                return
            chunks = self.direct.taken(data) if self.direct is not None else fed.at_once(data)
            if chunks is None or fed.finished or fed.cut:
                yield from self.feed(fed, data, chunks)
            else:
                for chunk in chunks:
                    yield self.sending(chunk)
            return
        if isinstance(event, Wakeup):
            yield from self.wake()
            return
        if isinstance(event, ResponseHeaders | ResponseData) and (exchange := self.exchange) is not None:
            exchange.clocks.backend_active()
        yield from super()._handle_event(event)
        if self.is_unwatched:
            self.is_unwatched = False
            if (exchange := self.exchange) is not None:
                yield RequestWakeup(exchange.clocks.next_tick())

    @override
    def make_server_connection(self) -> CommandGenerator[bool]:
        connected = yield from super().make_server_connection()
        if not connected:
            self.forget_failed_connections()
        elif (exchange := self.exchange) is not None:
            # Silence counts from now on: someone may have intercepted the request to inspect it.
            exchange.clocks.connected()
            self.is_unwatched = True
        return connected

    @override
    def start_response_stream(self) -> CommandGenerator[None]:
        yield from super().start_response_stream()
        exchange, response = self.exchange, self.flow.response
        answer = exchange.streamed if exchange is not None else None
        if answer is None or response is None or response.stream != answer.feed:
            return
        self.fed = answer
        self.stores = self.context.options.store_streamed_bodies
        is_chunked = "chunked" in by_name(response.headers).get("transfer-encoding", "").lower()
        layer = self.layer
        self.frames_chunks = is_chunked and type(layer.connections.get(self.context.client)) is Http1Server
        if self.frames_chunks:
            self.direct = direct_way(self, answer, layer, self.sending)

    @override
    def state_stream_response_body(self, event: Event) -> CommandGenerator[None]:
        if isinstance(event, ResponseData) and not event.data:
            # An empty HTTP/2 frame: for an HTTP/1 client it would be the last chunk.
            return
        if isinstance(event, ResponseTrailers) and self.fed is not None:
            # They belong to the bytes that we replace.
            return
        if isinstance(event, ResponseEndOfMessage):
            answer = self.fed
            self.stop_feeding()
            if answer is not None and answer.memory is not None:
                for chunks in answer.slices(b""):
                    yield from map(self.sending, chunks or ())
                yield from self.keep(answer)
        yield from super().state_stream_response_body(event)

    def feed(self, answer: StreamedAnswer, data: bytes, ready: list[bytes] | None) -> CommandGenerator[None]:
        """Feed the answer data from the backend, and send the resulting chunks, or those that are ``ready``."""
        for chunks in answer.slices(data) if ready is None else (ready,):
            if chunks is None:
                yield ToolsimPauseHook(answer)
            else:
                yield from map(self.sending, chunks)
        yield from self.keep(answer)
        if answer.cut:
            yield from self.end()
        elif answer.finished and not self.lingering:
            self.lingering = True
            yield RequestWakeup(LINGER_SECONDS)

    def stop_feeding(self) -> None:
        """Stop reading the backend's answer."""
        self.fed = None
        if self.direct is not None:
            self.direct.close()
            self.direct = None

    def keep(self, answer: StreamedAnswer) -> CommandGenerator[None]:
        """Have an answer that is over stored before the client gets its end."""
        if answer.end:
            yield ToolsimKeepHook(answer)
            yield from map(self.sending, answer.release(answer.end))

    @override
    def check_body_size(self, request: bool) -> CommandGenerator[bool]:
        options = self.context.options
        # If mitmproxy began to stream in the middle of a body, it would pass on what only we should read.
        if self.exchange is not None and (not options.body_size_limit or options.stream_large_bodies):
            return False
        return (yield from super().check_body_size(request))

    @override
    def state_consume_request_body(self, event: Event) -> CommandGenerator[None]:
        exchange = self.exchange
        if exchange is not None and isinstance(event, RequestData):
            size = len(self.request_body_buf) + len(event.data)
            if exchange.is_request_too_large or size > exchange.limits.max_request_bytes:
                # Still read it to the end: many clients miss an answer that arrives in the middle of their request.
                exchange.is_request_too_large = True
                self.request_body_buf.clear()  # type: ignore[no-untyped-call]
                return
        if isinstance(event, RequestTrailers) and exchange is not None:
            return
        yield from super().state_consume_request_body(event)

    @override
    def state_consume_response_body(self, event: Event) -> CommandGenerator[None]:
        exchange = self.exchange
        if exchange is None:
            yield from super().state_consume_response_body(event)
        elif isinstance(event, ResponseEndOfMessage) and self.is_refused(exchange):
            self.server_state = self.state_asking_again
            yield ToolsimAgainHook(self.flow)
            # Not at once: the connection is free only after this event.
            yield RequestWakeup(0)
        elif isinstance(event, ResponseData) and (
            len(self.response_body_buf) + len(event.data) > exchange.limits.max_answer_bytes
        ):
            yield self.stop_backend()
            yield from self.answer(exchange.refuse(answer_too_large(exchange.limits.max_answer_bytes)))
        elif not isinstance(event, ResponseTrailers):
            yield from super().state_consume_response_body(event)

    def is_refused(self, exchange: Exchange) -> bool:
        """Return whether the error that has arrived only requires a request without what was attempted."""
        assert self.flow.response is not None
        self.flow.response.data.content = bytes(self.response_body_buf)
        if not exchange.ask_again(self.flow, possible=self.context.server.alpn != b"h2"):
            return False
        self.response_body_buf.clear()  # type: ignore[no-untyped-call]
        return True

    def state_asking_again(self, event: Event) -> CommandGenerator[None]:
        """Wait between an error that refuses what was attempted and the request without it."""
        yield from ()

    @override
    def send_response(self, already_streamed: bool = False) -> CommandGenerator[None]:
        assert self.flow.response is not None
        if self.flow.request.method == "HEAD" and not already_streamed:
            # mitmproxy would send the body of our own answer, and the client read it as the beginning of the next one.
            self.flow.response.raw_content = b""
        yield from super().send_response(already_streamed)

    @override
    def state_done(self, event: Event) -> CommandGenerator[None]:
        if not self.ended:
            yield from super().state_done(event)

    @override
    def handle_protocol_error(self, event: RequestProtocolError | ResponseProtocolError) -> CommandGenerator[None]:
        exchange = self.exchange
        by_client = isinstance(event, RequestProtocolError) or self.client_state == self.state_errored
        if self.ended and not by_client:
            # We closed this connection ourselves.
            return
        if exchange is None or by_client:
            yield from super().handle_protocol_error(event)
        elif self.server_state == self.state_stream_response_body:
            self.ended = True
            self.stop_feeding()
            yield from super().state_stream_response_body(ResponseEndOfMessage(self.stream_id))
        elif self.server_state in (self.state_wait_for_response_headers, self.state_consume_response_body):
            yield from self.answer(exchange.refuse(exchange.clocks.unreachable(event.message)))
        else:
            yield from super().handle_protocol_error(event)

    def wake(self) -> CommandGenerator[None]:
        """Let the exchange send a keep-alive or give up, if the backend is silent; or send the request again."""
        exchange = self.exchange
        if exchange is None or self.ended:
            return
        if self.server_state == self.state_asking_again:
            if self.flow.response is not None:
                yield from self.answer(self.flow.response)
            else:
                yield from self.send_again()
            return
        if self.server_state == self.state_stream_response_body and exchange.streamed is not None:
            yield from map(self.sending, exchange.streamed.tick())
            if exchange.streamed.cut:
                yield from self.end()
                return
        elif self.server_state in (self.state_wait_for_response_headers, self.state_consume_response_body):
            if (overdue := exchange.overdue()) is not None:
                yield self.stop_backend()
                yield from self.answer(overdue)
                return
        else:
            return
        yield RequestWakeup(exchange.clocks.next_tick())

    def send_again(self) -> CommandGenerator[None]:
        """Send the flow's request in place of the one that was refused (rule 7)."""
        self.server_state = self.state_wait_for_response_headers
        if self.context.server.connected:
            yield self.stop_backend()
        if (yield from self.make_server_connection()):
            content = self.flow.request.raw_content or b""
            yield SendHttp(RequestHeaders(self.stream_id, self.flow.request, end_stream=False), self.context.server)
            yield SendHttp(RequestData(self.stream_id, content), self.context.server)
            yield SendHttp(RequestEndOfMessage(self.stream_id), self.context.server)

    def sending(self, data: bytes) -> Command:
        """Return the command that sends a part of a streamed answer to the client."""
        if self.stores:
            self.response_body_buf += data
        if self.frames_chunks:
            return SendData(self.context.client, b"%x\r\n%s\r\n" % (len(data), data))
        return SendHttp(ResponseData(self.stream_id, data), self.context.client)

    def forget_failed_connections(self) -> None:
        """Let the next request of this client connection try again; mitmproxy would repeat the old error for ever."""
        for connection in (*self.layer.connections, self.context.server):
            if isinstance(connection, Server) and not connection.connected:
                connection.error = None

    @property
    def layer(self) -> HttpLayer:
        """The layer of the client's connection, which holds this stream."""
        layer = self.context.layers[self.context.layers.index(self) - 1]
        assert isinstance(layer, HttpLayer)
        return layer

    def stop_backend(self) -> SendHttp:
        """Return the command that stops what the backend is sending."""
        reason = RequestProtocolError(self.stream_id, "the answer is over", ErrorCode.CANCEL)
        return SendHttp(reason, self.context.server)

    def end(self) -> CommandGenerator[None]:
        """End the answer that is being streamed, and stop the backend."""
        self.ended = True
        self.stop_feeding()
        yield self.stop_backend()
        yield from super().state_stream_response_body(ResponseEndOfMessage(self.stream_id))

    def answer(self, response: Response) -> CommandGenerator[None]:
        """Answer with a whole response in place of the backend's, none of which the client has received yet."""
        self.ended = True
        self.response_body_buf.clear()  # type: ignore[no-untyped-call]
        self.flow.response = response
        yield from self.send_response()


def install() -> None:
    """Make new streams endable. Without the internals that this needs, answers are drained instead: one warning."""
    missing = [name for name in _NEEDED if not callable(getattr(HttpStream, name, None))]
    if missing or getattr(http, "HttpStream", None) not in (HttpStream, EndableStream):
        logger.warning("This mitmproxy is not one that toolsim knows (%s): backends cannot be cut off.", missing)
        return
    http.HttpStream = EndableStream  # type: ignore[misc]


def uninstall() -> None:
    """Restore mitmproxy's own streams for new requests."""
    if http.HttpStream is EndableStream:
        http.HttpStream = HttpStream  # type: ignore[misc]


_NEEDED = (
    "_handle_event",
    "check_body_size",
    "make_server_connection",
    "handle_protocol_error",
    "send_response",
    "start_response_stream",
    "state_consume_request_body",
    "state_consume_response_body",
    "state_done",
    "state_errored",
    "state_stream_response_body",
    "state_wait_for_response_headers",
)
