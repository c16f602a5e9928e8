"""Resends a request without a feature that its backend has rejected, or to another path if the path was rejected.

Relies on these internals of ``mitmproxy.proxy.layers.http`` 12.2:

1. Over HTTP/1, a stream can send a second request in the next iteration of the event loop after the complete response
   to the first one. The second request uses a new connection, because many servers disconnect after an error without
   announcing it, and the FIN might still be in flight.
2. Over HTTP/2, a stream can send only one request, so the client receives the error. The rejection is remembered for
   later requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import override

from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.commands import RequestWakeup, StartHook
from mitmproxy.proxy.events import Event
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http import SendHttp
from mitmproxy.proxy.layers.http._events import (
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    ResponseEndOfMessage,
)

from toolsim.proxy.attempt import Attempt
from toolsim.proxy.exchange import Exchange
from toolsim.proxy.mitmproxy12.stream import OwnStream


@dataclass
class ToolsimResendHook(StartHook):  # type: ignore[no-untyped-call]
    """The hook for a flow whose request has to be rewritten again before it is resent."""

    flow: HTTPFlow


class Resending(OwnStream):
    """A stream that can resend a request after its backend has rejected it."""

    @override
    def state_consume_response_body(self, event: Event) -> CommandGenerator[None]:
        exchange = self.exchange
        is_whole = isinstance(event, ResponseEndOfMessage)
        if exchange is not None and is_whole and self.is_refused(exchange):
            self.server_state = self.state_resending
            yield ToolsimResendHook(self.flow)
            # The request is resent in the next iteration of the event loop, because the connection is free only after
            # this event.
            yield RequestWakeup(0)
        else:
            yield from super().state_consume_response_body(event)

    def is_refused(self, exchange: Exchange) -> bool:
        """Return whether the backend's response is a rejection that the client must not receive.

        This is the case if the request will be resent, or if a different error will be sent.
        """
        attempt = exchange.find(Attempt)
        assert self.flow.response is not None
        if attempt is None or 200 <= self.flow.response.status_code < 300:
            return False
        self.flow.response.data.content = bytes(self.response_body_buf)
        if not attempt.is_refused(exchange, self.flow, can_resend=self.context.server.alpn != b"h2"):
            return False
        self.response_body_buf.clear()  # type: ignore[no-untyped-call]
        return True

    def state_resending(self, event: Event) -> CommandGenerator[None]:
        """Ignore events that arrive after the rejection and before the request is resent."""
        yield from ()

    @override
    def wake(self) -> CommandGenerator[None]:
        if self.server_state != self.state_resending:
            yield from super().wake()
        elif self.flow.response is not None:
            # The response is toolsim's own error, because the request could not be rewritten again.
            yield from self.answer(self.flow.response)
        else:
            yield from self.resend()

    def resend(self) -> CommandGenerator[None]:
        """Send the flow's current request in place of the rejected request (rule 1)."""
        self.server_state = self.state_wait_for_response_headers
        if self.context.server.connected:
            yield self.stop_backend()
        if (yield from self.make_server_connection()):
            request, server = self.flow.request, self.context.server
            yield SendHttp(RequestHeaders(self.stream_id, request, end_stream=False), server)
            yield SendHttp(RequestData(self.stream_id, request.raw_content or b""), server)
            yield SendHttp(RequestEndOfMessage(self.stream_id), server)
