"""Represents one exchange as spans.

    requestheaders ─▶ [SERVER span] ─▶ request: a CLIENT span ─┬─▶ closed
                                              ▲                │
                                              └── sent again ◀─┘ (a backend that rejected a feature)

The exchange with a client has a SERVER span. A round has no SERVER span. Its CLIENT span is a child of the client's
SERVER span, which the headers of the round's request identify. An exchange has no CLIENT span if it sends no request to
a backend itself, for example if its answer is generated in rounds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import override

from mitmproxy.http import Headers, HTTPFlow
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from toolsim.core.report import Report
from toolsim.mcp.outcome import ToolOutcome
from toolsim.mcp.servers import Server
from toolsim.otel import conventions
from toolsim.otel.export import Export
from toolsim.proxy.exchange import Exchange, Feature
from toolsim.proxy.upgrades import upgrade_of
from toolsim.rounds.hosted_calls import McpContext
from toolsim.wire.hosted_items import ServedCall


class Spans(Feature):
    """The spans of one exchange. ``over`` is called once the spans have ended."""

    def __init__(self, export: Export, over: Callable[[Spans], None], flow: HTTPFlow, exchange: Exchange) -> None:
        self._export = export
        self._over = over
        self._context = propagate.extract(flow.request.headers)
        """The parent context for new spans.

        At first, it is the context from the request's headers. Once the SERVER span has started, it is the context of
        that span.
        """
        self._server: Span | None = None
        self._chat: Span | None = None
        self._status: int | None = None
        """The HTTP status of the backend's response, or None before the response headers arrive."""
        if exchange.round is None:
            self._server = export.tracer.start_span(
                conventions.turn_name(flow),
                self._context,
                SpanKind.SERVER,
                conventions.turn_began(flow, is_websocket=upgrade_of(flow) is not None),
                start_time=int(flow.request.timestamp_start * 1e9),
            )
            self._context = trace.set_span_in_context(self._server, self._context)
            # Requests that are derived from this request, such as its rounds, become children of the SERVER span.
            _inject(flow.request.headers, self._context)

    # -- a request to the model --

    def ask(self, flow: HTTPFlow, exchange: Exchange) -> None:
        """Begin the span of the model request that is about to be sent."""
        model = exchange.plan.form.model if exchange.plan is not None else exchange.report.model
        self._status = None
        self._chat = self._export.tracer.start_span(
            conventions.chat_name(model),
            self._context,
            SpanKind.INTERNAL if exchange.backend.is_builtin else SpanKind.CLIENT,
            conventions.chat_began(flow, exchange, model),
        )
        _inject(flow.request.headers, trace.set_span_in_context(self._chat, self._context))

    def answers(self, status: int) -> None:
        """Record the HTTP status of a backend's response, whose headers have arrived."""
        self._status = status

    def resend(self, flow: HTTPFlow, exchange: Exchange) -> None:
        """End the span of a request that the backend has rejected because of a feature.

        Begin the span of the next attempt, unless the client receives the error instead.
        """
        if self._chat is not None:
            _end(self._chat, str(self._status))
            self._chat = None
        if flow.response is None:
            self.ask(flow, exchange)

    # -- calls to MCP tools --

    @override
    def on_mcp(self, mcp_context: McpContext) -> McpContext:
        return replace(mcp_context, watch=self._call)

    async def _call(self, server: Server, call: ServedCall, calling: Awaitable[ToolOutcome]) -> ToolOutcome:
        began = conventions.tool_began(server, call)
        span = self._export.tracer.start_span(conventions.tool_name(call), self._context, attributes=began)
        error = conventions.ABORTED
        try:
            # The code that calls the tool reads the span from the current context.
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                outcome = await calling
            span.set_attributes(found := conventions.tool_ended(outcome))
            error = str(found.get(conventions.ERROR, ""))
            self._export.content.of_call(span, call, outcome)
            return outcome
        finally:
            _end(span, error)

    # -- the end --

    @override
    def on_close(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        self._over(self)
        report = exchange.report
        self._end_chat(exchange, flow, report, conventions.failure(report, status and (self._status or status)))
        if self._server is not None:
            self._server.set_attributes(conventions.turn_ended(report, status))
            # According to the HTTP conventions, a 4xx status is not an error of the server.
            is_clients = status is not None and 400 <= status < 500
            _end(self._server, conventions.failure(report, status), is_failure=not is_clients)

    @override
    def on_retry(self, exchange: Exchange, flow: HTTPFlow, report: Report) -> None:
        self._end_chat(exchange, flow, report, "")

    def _end_chat(self, exchange: Exchange, flow: HTTPFlow | None, report: Report, error: str) -> None:
        chat, self._chat = self._chat, None
        if chat is None:
            return
        answer = exchange.recorder.received.content() if chat.is_recording() else b""
        chat.set_attributes(conventions.chat_ended(report, answer))
        if flow is not None:
            self._export.content.of_turn(chat, flow, answer)
        _end(chat, error)

    def end(self, error: str) -> None:
        """End all spans, because the proxy is exiting before the exchange has ended."""
        for span in (self._chat, self._server):
            if span is not None:
                _end(span, error)
        self._chat = self._server = None


def _inject(headers: Headers, context: Context) -> None:
    # The old headers are removed first, because an old tracestate must not remain next to a new traceparent.
    for name in propagate.get_global_textmap().fields:
        headers.pop(name, None)
    propagate.inject(headers, context)


def _end(span: Span, error: str, *, is_failure: bool = True) -> None:
    """End a span. ``error`` is the error class, or "" if there was no error."""
    if error:
        span.set_attribute(conventions.ERROR, error)
        if is_failure:
            span.set_status(Status(StatusCode.ERROR))
    span.end()
