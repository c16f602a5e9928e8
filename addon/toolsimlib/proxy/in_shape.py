"""Answers in the shape of the client's API, where it is not the one in which they were made.

Errors are written, by toolsim and by nearly every backend, in OpenAI's shape, and so are lists of models.
A client of an API with a shape of its own (``Api.shape``) decides by that: Claude Code takes any other
error for a feature that it has to do without, and tries again.
"""

from __future__ import annotations

from typing import override

from mitmproxy.http import HTTPFlow, Response

from toolsimlib.proxy.exchange import Exchange, Feature
from toolsimlib.wire.api import OwnShape


def reshape(response: Response, shape: OwnShape) -> None:
    """Write an error in the shape of a client's API."""
    if response.status_code >= 400:
        response.content = shape.error_answer(response.status_code, response.get_content(strict=False) or b"")
        response.headers["content-type"] = "application/json"


class InShape(Feature):
    """Gives a client errors and lists of models in the shape of its API."""

    def __init__(self, shape: OwnShape) -> None:
        self._shape = shape

    @override
    def begins(self, exchange: Exchange, flow: HTTPFlow) -> bool:
        response = flow.response
        assert response is not None
        if exchange.is_turn and response.status_code < 400:
            return False
        # It has to be whole to be rewritten.
        response.stream = False
        return True

    @override
    def closed(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        response = flow.response if flow is not None else None
        if response is None or response.raw_content is None or response.stream:
            return
        if response.status_code >= 400:
            reshape(response, self._shape)
        elif not exchange.is_turn:
            response.content = self._shape.model_list(response.get_content(strict=False) or b"")
