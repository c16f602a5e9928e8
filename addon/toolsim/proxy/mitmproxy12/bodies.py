"""Limits the size of bodies that are read completely, and drops the trailers of rewritten bodies.

A proxy is allowed to drop trailers (RFC 9110, 6.5.1), and no known API sends any. The trailers of a rewritten body are
dropped because they describe the original body. Over HTTP/1, ``chunks`` drops all trailers, because mitmproxy's layer
crashes on them.

Relies on these internals of ``mitmproxy.proxy.layers.http`` 12.2: the received part of a body is in
``request_body_buf`` or ``response_body_buf``, and ``check_body_size`` decides whether mitmproxy rejects or streams a
message because of its size.
"""

from __future__ import annotations

from typing import override

from mitmproxy.proxy.events import Event
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http._events import RequestData, RequestTrailers, ResponseData, ResponseTrailers

from toolsim.proxy.jobs import answer_too_large
from toolsim.proxy.mitmproxy12.stream import OwnStream


class BoundedBodies(OwnStream):
    """Limits the size of bodies that are read completely. The exchange determines the maximum size."""

    @override
    def check_body_size(self, request: bool) -> CommandGenerator[bool]:
        options = self.context.options
        # mitmproxy's own check is skipped, because it would start streaming in the middle of a body, and forward data
        # that only toolsim should read.
        if self.exchange is not None and (not options.body_size_limit or options.stream_large_bodies):
            return False
        return (yield from super().check_body_size(request))

    @override
    def state_consume_request_body(self, event: Event) -> CommandGenerator[None]:
        exchange = self.exchange
        if exchange is not None:
            if isinstance(event, RequestTrailers):
                return
            if isinstance(event, RequestData):
                size = len(self.request_body_buf) + len(event.data)
                if exchange.is_request_too_large or size > exchange.limits.max_request_bytes:
                    # The rest of the request is read and discarded, because many clients miss a response that arrives
                    # before they have sent the entire request.
                    exchange.is_request_too_large = True
                    self.request_body_buf.clear()  # type: ignore[no-untyped-call]
                    return
        yield from super().state_consume_request_body(event)

    @override
    def state_consume_response_body(self, event: Event) -> CommandGenerator[None]:
        exchange = self.exchange
        if exchange is not None:
            if isinstance(event, ResponseTrailers):
                return
            limit = exchange.limits.max_answer_bytes
            if isinstance(event, ResponseData) and len(self.response_body_buf) + len(event.data) > limit:
                yield self.stop_backend()
                yield from self.answer(exchange.refuse(answer_too_large(limit)))
                return
        yield from super().state_consume_response_body(event)

    @override
    def state_stream_response_body(self, event: Event) -> CommandGenerator[None]:
        exchange = self.exchange
        is_rewritten = exchange is not None and exchange.streamed is not None
        if not (isinstance(event, ResponseTrailers) and is_rewritten):
            yield from super().state_stream_response_body(event)
