"""Sends one HTTP request to an unknown server, which might be down, serve a web page, or require a key."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from toolsim.proxy.address import is_loopback, parse_url
from toolsim.proxy.reporting.connect_errors import explain
from toolsim.wire.errors import NO_WORDS, read_error
from toolsim.wire.json_fields import loaded

_MAX_BYTES = 4 * 1024 * 1024


class Unreachable(Exception):
    """Raised if a server does not answer over HTTP. The message contains the reason in one line."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's response. ``body`` is None if the response is not a JSON object."""

    status: int
    content_type: str
    body: Mapping[str, Any] | None

    @property
    def is_page(self) -> bool:
        """Whether the response is a web page. No API returns a web page."""
        return self.content_type.partition(";")[0].strip().lower() in ("text/html", "application/xhtml+xml")

    @property
    def problem(self) -> str:
        """The message in an error response, or "" for any other response."""
        if self.body is None:
            return ""
        message = read_error(self.body).message
        return "" if message == NO_WORDS.message else " ".join(message.split())


class _NoRedirect(HTTPRedirectHandler):
    """Returns redirects as responses, because urllib would follow a redirected POST with a GET."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, which means that the redirect is not followed."""


def ask(
    url: str,
    *,
    key: str = "",
    headers: Mapping[str, str] = MappingProxyType({}),
    json_body: object = None,
    seconds: float = 10.0,
) -> Answer:
    """Send a GET request, or a POST request if there is a ``json_body``, and return the response.

    ``key`` is sent as a Bearer token. For an API that uses another header, pass the key in ``headers``. Raises
    Unreachable if the server does not respond within ``seconds`` or its response cannot be read.
    """
    headers = {"accept": "application/json", "user-agent": "toolsim", **headers}
    if key:
        headers["authorization"] = f"Bearer {key}"
    data = None
    if json_body is not None:
        headers["content-type"] = "application/json"
        data = json.dumps(json_body).encode()
    # Proxies set in the environment are not used for loopback addresses.
    proxies = [ProxyHandler({})] if is_loopback(parse_url(url).host) else []
    opener = build_opener(_NoRedirect, HTTPHandler, HTTPSHandler, *proxies)
    try:
        with _opened(opener, Request(url, data=data, headers=headers), seconds) as response:
            text = response.read(_MAX_BYTES).decode("utf-8", "replace")
            return Answer(response.status, response.headers.get("content-type", ""), loaded(text))
    except URLError as error:
        raise Unreachable(explain(error.reason, seconds)) from error
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise Unreachable(explain(error, seconds)) from error


def _opened(opener: OpenerDirector, request: Request, seconds: float) -> Any:
    """Return the response, even if it is an HTTP error."""
    try:
        return opener.open(request, timeout=seconds)
    except HTTPError as error:
        return error
