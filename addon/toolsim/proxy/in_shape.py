"""What an API spells in its own way (``Api.shape``): headers for backends, errors and lists of models for clients.

Errors are written, by toolsim and by nearly every backend, in OpenAI's shape, and so are lists of models. A client
decides by the shape that it knows: Claude Code takes any other error for a feature that it has to do without.
"""

from __future__ import annotations

from typing import override

from mitmproxy.http import Headers, HTTPFlow, Response

from toolsim.core.report import Report
from toolsim.proxy.exchange import Exchange, Feature
from toolsim.proxy.head import by_name, change
from toolsim.proxy.jobs import Done
from toolsim.wire.api import Api
from toolsim.wire.dialect import APIS


def for_backend(headers: Headers, client: Api, backend: Api) -> list[str]:
    """Change the headers of a client to those that its backend knows; return what was asked for in the others."""
    dropped: list[str] = []
    for api in {client.name: client, backend.name: backend}.values():
        if api.shape is None:
            continue
        found = (api.shape.for_own if api is backend else api.shape.for_others)(by_name(headers))
        change(headers, without=[name.encode() for name in found.without], given=found.given)
        dropped += found.dropped
    return dropped


def reshape(response: Response, client: Api | None) -> None:
    """Write an error in the shape of a client's API."""
    if client is not None and client.shape is not None and response.status_code >= 400:
        response.content = client.shape.error_answer(response.status_code, response.get_content(strict=False) or b"")
        response.headers["content-type"] = "application/json"


class InShape(Feature):
    """Gives a backend the headers that it knows, and a client errors and lists of models in the shape of its API."""

    def __init__(self, client: Api, report: Report) -> None:
        self._client = client
        # A round is for the runner, which knows OpenAI's.
        self._shape = None if report.part_of else client.shape

    @override
    def rewritten(self, exchange: Exchange, flow: HTTPFlow, done: Done) -> None:
        if done.error is None:
            backend = APIS[exchange.plan.backend] if exchange.plan is not None else self._client
            exchange.report.dropped += for_backend(flow.request.headers, self._client, backend)

    @override
    def begins(self, exchange: Exchange, flow: HTTPFlow) -> bool:
        response = flow.response
        if self._shape is None or response is None or (exchange.is_turn and response.status_code < 400):
            return False
        # It has to be whole to be rewritten.
        response.stream = False
        return True

    @override
    def closed(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        response = flow.response if flow is not None else None
        if self._shape is None or response is None or response.raw_content is None or response.stream:
            return
        reshape(response, self._client)
        if response.status_code < 400 and not exchange.is_turn:
            response.content = self._shape.model_list(response.get_content(strict=False) or b"")
