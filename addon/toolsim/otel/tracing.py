"""The addon that attaches ``Spans`` to each exchange, and informs them of mitmproxy's events.

The addon is listed after ``ToolSim``, so that each hook runs after the core's hook.
"""

from __future__ import annotations

from collections.abc import Awaitable

from mitmproxy.http import HTTPFlow

from toolsim.otel.export import Export
from toolsim.otel.spans import Spans
from toolsim.proxy.addon import ToolSim


class Tracing:
    """An addon that attaches spans to toolsim's exchanges."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._open: set[Spans] = set()  # The spans of the exchanges in progress.

    def requestheaders(self, flow: HTTPFlow) -> None:
        """Attach spans to an exchange with a client, or to one of its rounds."""
        exchange = ToolSim.exchanges.of(flow)
        if exchange is None or not flow.live:
            return
        if exchange.action == "input_tokens":
            return
        if exchange.is_turn or exchange.round is not None:
            spans = Spans(self._export, self._open.discard, flow, exchange)
            self._open.add(spans)
            exchange.attach(spans)

    def request(self, flow: HTTPFlow) -> None:
        """If a request is about to be sent to the model, begin its span."""
        exchange = ToolSim.exchanges.of(flow)
        spans = exchange.find(Spans) if exchange is not None else None
        if exchange is not None and spans is not None and flow.response is None and not exchange.is_delegated:
            spans.ask(flow, exchange)

    def toolsim_resend(self, flow: HTTPFlow) -> None:
        """End the span of a rejected request, and begin a span for the request without the rejected feature."""
        exchange = ToolSim.exchanges.of(flow)
        if exchange is not None and (spans := exchange.find(Spans)) is not None:
            spans.resend(flow, exchange)

    def responseheaders(self, flow: HTTPFlow) -> None:
        """Record the HTTP status of a backend's response."""
        exchange = ToolSim.exchanges.of(flow)
        if exchange is not None and (spans := exchange.find(Spans)) is not None and flow.response is not None:
            spans.answers(flow.response.status_code)

    def done(self) -> Awaitable[None]:
        """Export the remaining spans.

        This method is not async, because a reload of the script calls it without awaiting.
        """
        for spans in self._open:
            spans.end("proxy_stopped")
        self._open.clear()
        return self._export.end()
