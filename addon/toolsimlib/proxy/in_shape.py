"""Answers in the shape of the client's API, where it is not the one in which they were made.

Errors are written, by toolsim and by nearly every backend, in OpenAI's shape, and so are lists of models.
A client of the Messages API decides by its own: Claude Code takes any other error for a feature that it
has to do without, and tries again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import override

from mitmproxy.http import HTTPFlow, Response

from toolsimlib.proxy import head
from toolsimlib.proxy.exchange import Exchange, Feature
from toolsimlib.proxy.jobs import Done
from toolsimlib.wire.dialect import MESSAGES, Api
from toolsimlib.wire.messages.models import model_list

KEY = "x-api-key"
"""The header in which clients of the Messages API send their key."""
_VERSION = "anthropic-version"
# They mean nothing to a backend of another API.
_OWN_HEADERS = (KEY.encode(), _VERSION.encode(), b"anthropic-beta", b"anthropic-dangerous-direct-browser-access")


def shape_of(api: Api | None, headers: Mapping[str, str]) -> InShape | None:
    """Return what an exchange needs, None if its answers are in the client's shape as they are.

    ``api``: of the request, None for a list of models. ``headers``: the request's, by their lower-case names.
    """
    is_needed = api is MESSAGES if api is not None else _VERSION in headers
    return InShape() if is_needed else None


def reshape(response: Response, api: Api | None) -> None:
    """Write an error in the shape of a client's API."""
    if api is not None and api.error_answer is not None and response.status_code >= 400:
        response.content = api.error_answer(response.status_code, response.get_content(strict=False) or b"")
        response.headers["content-type"] = "application/json"


class InShape(Feature):
    """Gives a client of the Messages API errors and lists of models in its shape, and a backend its own headers."""

    @override
    def rewritten(self, exchange: Exchange, flow: HTTPFlow, done: Done) -> None:
        if exchange.plan is None or exchange.plan.backend == exchange.plan.client:
            return
        headers = flow.request.headers
        key = headers.get(KEY)
        head.change(headers, without=_OWN_HEADERS, given={})
        if key and "authorization" not in headers:
            headers["authorization"] = f"Bearer {key}"

    @override
    def begins(self, exchange: Exchange, flow: HTTPFlow) -> bool:
        response = flow.response
        assert response is not None
        if exchange.is_turn and response.status_code < 400:
            return False
        # It has to be whole to be written anew.
        response.stream = False
        return True

    @override
    def closed(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        response = flow.response if flow is not None else None
        if response is None or response.raw_content is None or response.stream:
            return
        if response.status_code >= 400:
            reshape(response, MESSAGES)
        elif not exchange.is_turn:
            response.content = model_list(response.get_content(strict=False) or b"")
