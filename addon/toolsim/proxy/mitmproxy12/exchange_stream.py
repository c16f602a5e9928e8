"""The stream of an exchange. It can end an answer early, for example on a timeout or when the backend fails.

The stream has one class per concern; the class in this module monitors the backend. This module relies on these
internals of ``mitmproxy.proxy.layers.http`` 12.2, in addition to those listed in ``stream``:

1. ``RequestWakeup`` is routed back to the stream that yielded it, and ``HttpStream`` itself never uses it.
2. ``HttpLayer.connections`` keeps failed connections with their ``error``, and later requests to the same address fail
   with that error. toolsim keeps the client's connection open after a failure, so it has to clear the error.
"""

from __future__ import annotations

from typing import override

from mitmproxy.connection import Server
from mitmproxy.proxy.commands import RequestWakeup
from mitmproxy.proxy.events import Event, Wakeup
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http._events import (
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)

from toolsim.proxy.mitmproxy12.bodies import BoundedBodies
from toolsim.proxy.mitmproxy12.early import EarlyStart
from toolsim.proxy.mitmproxy12.fallback_resend import Resending


class ExchangeStream(EarlyStart, Resending, BoundedBodies):
    """A stream that monitors its backend, and ensures that the client's answer always ends."""

    is_unwatched = False
    """Whether the backend is connected, but its timer has not started, because the request has not been sent yet."""

    @override
    def _handle_event(self, event: Event) -> CommandGenerator[None]:
        if self.fed is not None and type(event) is ResponseData:
            yield from self.receive(self.fed, event.data)
            return
        if isinstance(event, Wakeup):
            if self.fed is not None and self.fast_path is not None and event.command is self.fast_path.resumption:
                yield from self.feed(self.fed, self.fast_path.take_rest())
            else:
                yield from self.poll(self.fed) if event.command is self.next_look else self.wake()
            return
        if isinstance(event, ResponseHeaders | ResponseData) and (exchange := self.exchange) is not None:
            exchange.timeouts.backend_active()
        yield from super()._handle_event(event)
        if self.is_unwatched:
            self.is_unwatched = False
            if (exchange := self.exchange) is not None:
                yield RequestWakeup(exchange.timeouts.next_tick())

    @override
    def make_server_connection(self) -> CommandGenerator[bool]:
        connected = yield from super().make_server_connection()
        if not connected:
            self.forget_failed_connections()
            return False
        self.has_backend = True
        if (exchange := self.exchange) is not None:
            # The timeouts for the backend start now, because the operator might have intercepted the request and
            # kept it for a long time.
            exchange.timeouts.connected()
            self.is_unwatched = True
        return True

    def forget_failed_connections(self) -> None:
        """Forget failed connections, so that the client's next request reconnects to the backend (rule 2)."""
        for connection in (*self.layer.connections, self.context.server):
            if isinstance(connection, Server) and not connection.connected:
                connection.error = None

    @override
    def wake(self) -> CommandGenerator[None]:
        """Send a keep-alive while the backend is silent, or end the answer once it is overdue."""
        exchange, is_resending = self.exchange, self.server_state == self.state_resending
        if self.ended or (exchange is None and not is_resending):
            return
        if exchange is None or is_resending:
            # The base class resends the request. If the request could not be rewritten, it sends the client an error.
            yield from super().wake()
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
            yield from self.keep_waiting(exchange)
        else:
            yield from super().wake()
            return
        yield RequestWakeup(exchange.timeouts.next_tick())

    @override
    def handle_protocol_error(self, event: RequestProtocolError | ResponseProtocolError) -> CommandGenerator[None]:
        exchange = self.exchange
        by_client = isinstance(event, RequestProtocolError) or self.client_state == self.state_errored
        if self.ended and not by_client:
            # An error is expected here, because the stream itself closed this connection.
            return
        if exchange is None or by_client:
            yield from super().handle_protocol_error(event)
        elif self.server_state == self.state_stream_response_body:
            if self.fed is not None and self.fed.waits:
                # toolsim has started another round, so the backend's answer was already complete. The failure of the
                # backend's connection does not matter.
                self.has_backend_ended = True
                return
            # The backend has failed, so the answer ends after the data received so far.
            self.ended = True
            self.stop_feeding()
            yield from super().state_stream_response_body(ResponseEndOfMessage(self.stream_id))
        elif self.server_state in (self.state_wait_for_response_headers, self.state_consume_response_body):
            yield from self.answer(exchange.refuse(exchange.timeouts.unreachable(event.message)))
        else:
            yield from super().handle_protocol_error(event)
