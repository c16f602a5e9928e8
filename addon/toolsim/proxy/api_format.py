"""Converts errors and model lists to the format of a client's API, if that is not OpenAI's format.

toolsim and nearly every backend use OpenAI's format, but clients of the Messages API expect the format of that API. For
example, Claude Code interprets an error in any other format as an unsupported feature.
"""

from __future__ import annotations

from typing import override

from mitmproxy.http import HTTPFlow, Response

from toolsim.proxy.exchange import Exchange, Feature
from toolsim.wire.api import Api


def convert(response: Response, client: Api | None) -> None:
    """Convert an error response to the format of a client's API, if that is not OpenAI's format."""
    if client is not None and client.has_own_errors and response.status_code >= 400:
        response.content = client.error_answer(response.status_code, response.get_content(strict=False) or b"")
        response.headers["content-type"] = "application/json"


class ApiFormat(Feature):
    """Converts errors and model lists to the format of a client's API."""

    def __init__(self, client: Api) -> None:
        self._client = client

    @override
    def on_response_start(self, exchange: Exchange, flow: HTTPFlow) -> bool:
        response = flow.response
        if response is None or (exchange.is_turn and response.status_code < 400):
            return False
        # The body is not streamed, because only a complete body can be converted.
        response.stream = False
        return True

    @override
    def on_close(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        response = flow.response if flow is not None else None
        if response is None or response.raw_content is None or response.stream:
            return
        convert(response, self._client)
        if response.status_code < 400 and not exchange.is_turn:
            response.content = self._client.model_list(response.get_content(strict=False) or b"")
