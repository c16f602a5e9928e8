"""A stream whose exchange can answer in place of the backend.

mitmproxy's hooks can rewrite an answer. However, they cannot end it early, send anything while the backend is silent,
or save the answer when the backend fails, since ``HttpStream`` then closes the client's connection. So new streams use
a subclass, ``exchange_stream.ExchangeStream``, which calls the ``Exchange`` of its flow. The subclass has one base
class per concern. All of these are derived from the class in this module.

Relies on these internals of ``mitmproxy.proxy.layers.http`` 12.2:

1. ``HttpLayer.make_stream`` creates streams of the class in the module's global variable ``HttpStream``.
2. ``send_response`` sends the complete response in ``flow.response`` without closing the client's connection.
3. ``SendHttp(RequestProtocolError)`` stops the backend: HTTP/1 closes the connection, and HTTP/2 resets the stream.
   This command must precede the end of the client's answer. Otherwise, the client's next request might use the closing
   connection.
4. ``flow_done`` creates the layer for an upgraded connection, and ``passthrough`` passes all further events to it.
5. While a hook runs, the stream is paused and its events queue up, so events can still arrive after the stream has
   ended. A hook runs in a separate task, so all other tasks that are ready run before the stream continues.

A stream keeps its class until it ends, so loading and unloading the addon only affects new streams.
"""

from __future__ import annotations

from typing import ClassVar, override

from mitmproxy.http import Response
from mitmproxy.proxy.events import Event, Start
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http import HttpLayer, HttpStream, SendHttp
from mitmproxy.proxy.layers.http._events import ErrorCode, RequestProtocolError, ResponseEndOfMessage

from toolsim.proxy.exchange import Exchange, Exchanges
from toolsim.proxy.metadata import SOCKET
from toolsim.proxy.mitmproxy12.relay import Relay


class OwnStream(HttpStream):
    """The common base class of toolsim's stream classes."""

    exchanges: ClassVar = Exchanges()
    """All exchanges in progress. ``patches.install`` sets this attribute."""
    ended = False
    """Whether toolsim has ended the answer. If so, a later failure of the backend is not an error."""
    has_backend = False
    """Whether there is a connection to a backend."""

    @property
    def exchange(self) -> Exchange | None:
        """The exchange of this stream, or None if toolsim does not handle the answer."""
        exchange = self.exchanges.of(self.flow)
        return exchange if exchange is not None and exchange.is_ours else None

    @property
    def layer(self) -> HttpLayer:
        """The HTTP layer of the client's connection, which contains this stream."""
        layer = self.context.layers[self.context.layers.index(self) - 1]
        assert isinstance(layer, HttpLayer)
        return layer

    def unpause(self) -> None:
        """Stop waiting for the completion of a command, which might have been lost, and discard the queued events."""
        if self._paused is not None:
            self._paused.generator.close()
            self._paused = None
            self._paused_event_queue.clear()

    def stop_backend(self) -> SendHttp:
        """Return the command that stops the backend."""
        reason = RequestProtocolError(self.stream_id, "the answer has ended", ErrorCode.CANCEL)
        return SendHttp(reason, self.context.server)

    def answer(self, response: Response) -> CommandGenerator[None]:
        """Send a complete response in place of the backend's. The client must not have received anything yet."""
        self.ended = True
        self.response_body_buf.clear()  # type: ignore[no-untyped-call]
        self.flow.response = response
        yield from self.send_response()

    def wake(self) -> CommandGenerator[None]:
        """Handle the wake-up that the stream has requested."""
        yield from ()

    @override
    def send_response(self, already_streamed: bool = False) -> CommandGenerator[None]:
        assert self.flow.response is not None
        if self.flow.request.method == "HEAD" and not already_streamed:
            # The response to a HEAD request must not have a body. mitmproxy would nevertheless send the body, and the
            # client would interpret it as the beginning of the next response.
            self.flow.response.raw_content = b""
        yield from super().send_response(already_streamed)

    @override
    def flow_done(self) -> CommandGenerator[None]:
        if SOCKET not in self.flow.metadata or self.flow.websocket is None:
            yield from super().flow_done()
            return
        self.child_layer = Relay(self.context, self.flow)
        self._handle_event = self.passthrough
        yield from self.child_layer.handle_event(Start())
        # The relay has to be ready before the end of the upgrade response is sent, because mitmproxy then passes on the
        # client's first bytes.
        yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)

    @override
    def state_done(self, event: Event) -> CommandGenerator[None]:
        # mitmproxy expects no events in this state, but a stopped backend can still cause some.
        if not self.ended:
            yield from super().state_done(event)
