"""The APIs, and which of them a path, a body or an event belongs to.

Each is one object (``api.py``) with a folder of its own. Another API is one more object in ``APIS`` and a name in
``plan.ApiName``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from toolsim.core.plan import ApiName
from toolsim.wire.api import Api
from toolsim.wire.chat.api import CHAT
from toolsim.wire.json_fields import string
from toolsim.wire.messages.api import MESSAGES
from toolsim.wire.responses.api import RESPONSES

__all__ = ("APIS", "CHAT", "MESSAGES", "RESPONSES")

# In the order in which they are asked what is theirs.
APIS: Mapping[ApiName, Api] = {api.name: api for api in (RESPONSES, MESSAGES, CHAT)}


def api_of_path(path: str) -> Api | None:
    """Return the API whose requests are sent to ``path`` (query included), None if there is none."""
    plain = path.partition("?")[0].rstrip("/")
    return _first(lambda api: plain.endswith(api.path_marker))


def api_named(name: str) -> Api | None:
    """Return an API by its name, None if there is none."""
    return _first(lambda api: api.name == name)


def api_of_headers(headers: Mapping[str, str]) -> Api | None:
    """Return the API that a request names in its headers (by their lower-case names), None if in none of them."""
    return _first(lambda api: any(name in headers for name in api.headers))


def api_of_request(body: Mapping[str, Any]) -> Api:
    """Return the API in which a request's ``body`` is written; one that could be either counts as Responses."""
    return _first(lambda api: api.is_request(body)) or RESPONSES


def api_of_answer(body: Mapping[str, Any]) -> Api | None:
    """Return the API in which a whole answer is written, None if it is not an answer, or a bare error."""
    return _first(lambda api: api.is_answer(body))


def api_of_event(event: str, data: Mapping[str, Any]) -> Api | None:
    """Return the API whose stream holds this event (``event``: its name, "" for none), None if it could be either."""
    kind = string(data.get("type") or event)
    return _first(lambda api: api.is_event(kind, data))


def backends_of(client: Api) -> tuple[ApiName, ...]:
    """Return the APIs in which a backend is tried for a client if the operator names none, in this order."""
    return tuple(dict.fromkeys((client.backend, CHAT.name, RESPONSES.name, MESSAGES.name)))


NO_API = f"has none of {', '.join(api.path_suffix for api in (CHAT, RESPONSES, MESSAGES))}"
"""What is said of a server without any API."""


def apis_line(found: Iterable[ApiName], missing: Collection[ApiName]) -> str:
    """Return which APIs a server has, for people: "chat (no responses, no messages)"."""
    without = ", ".join(f"no {name}" for name in APIS if name in missing)
    return ", ".join(found) + (f" ({without})" if without else "")


def backend_of(client: Api, chosen: ApiName | Literal["auto"]) -> Api:
    """Return the API of the backend for a client; ``chosen``: what the operator says of it."""
    return APIS[client.backend if chosen == "auto" else chosen]


def translated_path(path: str, client: Api, backend: Api) -> str:
    """Return the path (query included) at a backend of another API."""
    plain, _, query = path.partition("?")
    query = "&".join(part for part in query.split("&") if part != client.own_query)
    return f"{plain.rstrip('/').removesuffix(client.path_suffix)}{backend.path_suffix}{'?' if query else ''}{query}"


def _first(fits: Callable[[Api], bool]) -> Api | None:
    return next(filter(fits, APIS.values()), None)
