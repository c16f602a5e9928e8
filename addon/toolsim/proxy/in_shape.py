"""Errors and lists of models in the format of a client's API, if that is not OpenAI's (``Api.has_own_errors``).

Errors are written, by toolsim and by nearly every backend, in OpenAI's shape, and so are lists of models. A client
decides by the shape that it knows: Claude Code takes any other error for a feature that it has to do without.
"""

from __future__ import annotations

from typing import override

from mitmproxy.http import HTTPFlow, Response

from toolsim.proxy.exchange import Exchange, Feature
from toolsim.wire.api import Api


def reshape(response: Response, client: Api | None) -> None:
    """Write an error in the shape of a client's API."""
    if client is not None and client.has_own_errors and response.status_code >= 400:
        response.content = client.error_answer(response.status_code, response.get_content(strict=False) or b"")
        response.headers["content-type"] = "application/json"


class InShape(Feature):
    """Gives a client errors and lists of models in the shape of its API."""

    def __init__(self, client: Api) -> None:
        self._client = client

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
            response.content = self._client.model_list(response.get_content(strict=False) or b"")
