"""Messages that we rewrite lose their trailers, which belong to the bytes that we replace.

A proxy may drop trailers (RFC 9110, 6.5.1), and no API that we know sends any. Over HTTP/1
``chunks`` drops them before they get here: mitmproxy's layer crashes on them.
"""

from __future__ import annotations

from typing import override

from mitmproxy.proxy.events import Event
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http._events import RequestTrailers, ResponseTrailers

from toolsimlib.proxy.mitmproxy12.stream import OwnStream


class WithoutTrailers(OwnStream):
    """Drops the trailers of requests and answers that are ours."""

    @override
    def state_consume_request_body(self, event: Event) -> CommandGenerator[None]:
        if not (isinstance(event, RequestTrailers) and self.exchange is not None):
            yield from super().state_consume_request_body(event)

    @override
    def state_consume_response_body(self, event: Event) -> CommandGenerator[None]:
        if not (isinstance(event, ResponseTrailers) and self.exchange is not None):
            yield from super().state_consume_response_body(event)

    @override
    def state_stream_response_body(self, event: Event) -> CommandGenerator[None]:
        exchange = self.exchange
        is_rewritten = exchange is not None and exchange.streamed is not None
        if not (isinstance(event, ResponseTrailers) and is_rewritten):
            yield from super().state_stream_response_body(event)
