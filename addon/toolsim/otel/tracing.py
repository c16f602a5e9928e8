"""The addon: attaches ``Spans`` to each exchange that queries a model, and reports events that they cannot observe.

It is listed after ``ToolSim``, so each hook runs after the core's.
"""

from __future__ import annotations

from collections.abc import Awaitable

from mitmproxy.http import HTTPFlow

from toolsim.otel.export import Export
from toolsim.otel.spans import Spans
from toolsim.proxy.addon import ToolSim


class Tracing:
    """Observes the exchanges of the core."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._open: set[Spans] = set()  # Exchanges whose spans have not ended.

    def requestheaders(self, flow: HTTPFlow) -> None:
        """Begin the turn of a client, or one of its rounds."""
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
        """Begin a model turn, if a model is queried now."""
        exchange = ToolSim.exchanges.of(flow)
        spans = exchange.find(Spans) if exchange is not None else None
        if exchange is not None and spans is not None and flow.response is None and not exchange.is_delegated:
            spans.ask(flow, exchange)

    def toolsim_resend(self, flow: HTTPFlow) -> None:
        """Begin the model turn again, without the feature that the backend rejected."""
        exchange = ToolSim.exchanges.of(flow)
        if exchange is not None and (spans := exchange.find(Spans)) is not None:
            spans.resend(flow, exchange)

    def responseheaders(self, flow: HTTPFlow) -> None:
        """Record the status of a backend's answer."""
        exchange = ToolSim.exchanges.of(flow)
        if exchange is not None and (spans := exchange.find(Spans)) is not None and flow.response is not None:
            spans.answers(flow.response.status_code)

    def done(self) -> Awaitable[None]:
        """Export the remaining spans. Not async, because a reload of the script calls it without awaiting."""
        for spans in self._open:
            spans.end("proxy_stopped")
        self._open.clear()
        return self._export.end()
