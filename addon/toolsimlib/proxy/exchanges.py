"""The exchanges in flight, by their flows."""

from __future__ import annotations

from mitmproxy.connection import Client
from mitmproxy.http import HTTPFlow

from toolsimlib.proxy.exchange import Exchange


class Exchanges:
    """From the head of a request to the end of its answer."""

    def __init__(self) -> None:
        self._open: dict[str, Exchange] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, flow: HTTPFlow, exchange: Exchange) -> None:
        """Begin an exchange."""
        self._open[flow.id] = exchange

    def of(self, flow: HTTPFlow) -> Exchange | None:
        """Return the exchange of a flow, None if toolsim has nothing to do with it."""
        return self._open.get(flow.id)

    def close(self, flow: HTTPFlow, status: int | None) -> None:
        """End the exchange of a flow; ``status``: of its answer, None if none reached the client."""
        if (exchange := self._open.pop(flow.id, None)) is not None:
            exchange.close(flow, status)

    def close_of(self, client: Client) -> None:
        """End all exchanges of a client that has left, in case no other hook did."""
        for flow_id, exchange in list(self._open.items()):
            if exchange.client_id == client.id:
                del self._open[flow_id]
                exchange.close(None, None)

    def turns(self) -> int:
        """Return how many of them ask a model."""
        return sum(exchange.is_turn for exchange in self._open.values())

    def forget(self) -> None:
        """Drop all, without an end."""
        self._open.clear()
