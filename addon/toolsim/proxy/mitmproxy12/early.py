"""Begins the client's stream before the backend has sent its response headers.

A model can take minutes to read a long prompt, but clients give up after receiving nothing for about 20 s. So a
streaming client that has received nothing for a while is sent the status 200, the first frames of its answer, and then
keep-alives (``Exchange.open_early``). When the backend answers, the answer is sent to the client in the stream that has
already started, even if the backend's own answer is not streamed. If the backend responds with an error, the client
receives the error event of its API.

Relies on these internals of ``mitmproxy.proxy.layers.http`` 12.2, in addition to those of ``response_pump``:

1. ``start_response_stream`` sends the head of ``flow.response`` and proceeds to ``state_stream_response_body``.
2. ``send_response`` ends every answer. With ``already_streamed``, it sends neither a head nor a body.
"""

from __future__ import annotations

from typing import override

from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http import SendHttp
from mitmproxy.proxy.layers.http._events import ResponseEndOfMessage, ResponseHeaders

from toolsim.proxy.exchange import Exchange
from toolsim.proxy.head import response_error
from toolsim.proxy.mitmproxy12.response_pump import ResponsePump
from toolsim.proxy.streamed import StreamedAnswer


class EarlyStart(ResponsePump):
    """Starts the client's stream before the backend has answered, and then sends the backend's answer in it."""

    opened: StreamedAnswer | None = None
    """The answer to the client, or None if it was not started before the backend answered."""

    def keep_waiting(self, exchange: Exchange) -> CommandGenerator[None]:
        """Send the client its first frames, or a keep-alive, while the backend's answer is incomplete."""
        if self.opened is None and (response := exchange.open_early(self.flow)) is not None:
            self.opened = exchange.streamed
            self.frame_chunks(response)
            yield SendHttp(ResponseHeaders(self.stream_id, response, end_stream=False), self.context.client)
        if self.opened is not None:
            yield from map(self.sending, self.opened.tick())

    @override
    def start_response_stream(self) -> CommandGenerator[None]:
        if self.opened is None:
            yield from super().start_response_stream()
            return
        self.server_state = self.state_stream_response_body
        self.begin_feeding()

    @override
    def send_response(self, already_streamed: bool = False) -> CommandGenerator[None]:
        answer, response = self.opened, self.flow.response
        if answer is None or already_streamed:
            yield from super().send_response(already_streamed)
            return
        assert response is not None
        exchange = self.exchange
        body = exchange.follow_whole(self.flow) if exchange is not None else None
        if body is None:
            yield from map(self.sending, answer.fail(response_error(response)))
            yield from super().send_response(already_streamed=True)
            return
        self.fed, self.server_state = answer, self.state_stream_response_body
        yield from self.feed(answer, answer.slices(body))
        if not self.ended:
            yield from self.state_stream_response_body(ResponseEndOfMessage(self.stream_id))
