"""What an API spells in its own way (``Api.shape``) for clients: errors and lists of models.

Errors are written, by toolsim and by nearly every backend, in OpenAI's shape, and so are lists of models. A client
decides by the shape that it knows: Claude Code takes any other error for a feature that it has to do without.
"""

from __future__ import annotations

from typing import override

from mitmproxy.http import HTTPFlow, Response

from toolsim.proxy.exchange import Exchange, Feature
from toolsim.wire.api import Api, OwnShape


def reshape(response: Response, client: Api | None) -> None:
    """Write an error in the shape of a client's API."""
    if client is not None and client.shape is not None and response.status_code >= 400:
        response.content = client.shape.error_answer(response.status_code, response.get_content(strict=False) or b"")
        response.headers["content-type"] = "application/json"


class InShape(Feature):
    """Gives a client errors and lists of models in the shape of its API."""

    def __init__(self, client: Api, shape: OwnShape) -> None:
        self._client = client
        self._shape = shape

    @override
    def begins(self, exchange: Exchange, flow: HTTPFlow) -> bool:
        response = flow.response
        if response is None or (exchange.is_turn and response.status_code < 400):
            return False
        # It has to be whole to be rewritten.
        response.stream = False
        return True

    @override
    def closed(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        response = flow.response if flow is not None else None
        if response is None or response.raw_content is None or response.stream:
            return
        reshape(response, self._client)
        if response.status_code < 400 and not exchange.is_turn:
            response.content = self._shape.model_list(response.get_content(strict=False) or b"")
