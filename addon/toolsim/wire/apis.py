"""The APIs, and functions that determine the API to which a path, body or event belongs.

Each API is one object (``api.py``) with its own folder. To add an API, add an object to ``APIS`` and a name to
``policy.ApiName``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from toolsim.core.policy import ApiName
from toolsim.wire.api import Api
from toolsim.wire.chat.api import CHAT
from toolsim.wire.json_fields import string
from toolsim.wire.messages.api import MESSAGES
from toolsim.wire.responses.api import RESPONSES

__all__ = ("APIS", "CHAT", "MESSAGES", "RESPONSES")

# The order matters: a body or event belongs to the first API that recognizes it.
APIS: Mapping[ApiName, Api] = {api.name: api for api in (RESPONSES, MESSAGES, CHAT)}


def api_of_path(path: str) -> Api | None:
    """Return the API that uses ``path`` (which can include a query) for its requests, or None if no API uses it."""
    plain = path.partition("?")[0].rstrip("/")
    return _first(lambda api: plain.endswith(api.path_marker))


def api_named(name: str) -> Api | None:
    """Return the API with this name, or None if no API has it."""
    return _first(lambda api: api.name == name)


def api_of_headers(headers: Mapping[str, str]) -> Api | None:
    """Return the API that a request's headers (with lower-case names) identify, or None if they identify no API."""
    return _first(lambda api: any(name in headers for name in api.headers))


def api_of_request(body: Mapping[str, Any]) -> Api:
    """Return the API of a request's ``body``. A body that no API recognizes counts as a Responses request."""
    return _first(lambda api: api.is_request(body)) or RESPONSES


def api_of_answer(body: Mapping[str, Any]) -> Api | None:
    """Return the API of a non-streamed answer. Return None if the body contains only an error, or if no API recognizes
    it.
    """
    return _first(lambda api: api.is_answer(body))


def api_of_event(event: str, data: Mapping[str, Any]) -> Api | None:
    """Return the API to which a stream's event belongs, or None if no API recognizes it. ``event`` is the event's name,
    or "" if it has no name.
    """
    kind = string(data.get("type") or event)
    return _first(lambda api: api.is_event(kind, data))


def backends_of(client: Api) -> tuple[ApiName, ...]:
    """Return the backend APIs to try, in order, for a client if the operator has not configured a backend API."""
    return tuple(dict.fromkeys((client.backend, CHAT.name, RESPONSES.name, MESSAGES.name)))


NO_API = f"has none of the endpoints {', '.join(api.path_suffix for api in (CHAT, RESPONSES, MESSAGES))}"
"""Message about a server that supports none of the APIs."""


def apis_line(found: Iterable[ApiName], missing: Collection[ApiName]) -> str:
    """Return a description of a server's APIs, such as "chat (no responses, no messages)"."""
    without = ", ".join(f"no {name}" for name in APIS if name in missing)
    return ", ".join(found) + (f" ({without})" if without else "")


def backend_of(client: Api, chosen: ApiName | Literal["auto"]) -> Api:
    """Return the API of the backend for a client. ``chosen`` is the API that the operator has configured."""
    return APIS[client.backend if chosen == "auto" else chosen]


def translated_path(path: str, client: Api, backend: Api) -> str:
    """Convert the path and query of a client's request for a backend with another API.

    ``path`` is the path to which the client sent the request, and ``client`` is the client's API.
    """
    plain, _, query = path.partition("?")
    query = "&".join(part for part in query.split("&") if part != client.own_query)
    return f"{plain.rstrip('/').removesuffix(client.path_suffix)}{backend.path_suffix}{'?' if query else ''}{query}"


def _first(fits: Callable[[Api], bool]) -> Api | None:
    return next(filter(fits, APIS.values()), None)
