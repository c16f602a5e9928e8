"""The APIs, and the assignment of paths, bodies and events to them.

Each API is one object (``api.py``) with its own folder. To add an API, add an object to ``APIS`` and a name to
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

# In the order in which they are checked.
APIS: Mapping[ApiName, Api] = {api.name: api for api in (RESPONSES, MESSAGES, CHAT)}


def api_of_path(path: str) -> Api | None:
    """Return the API whose requests are sent to ``path`` (query included), or None."""
    plain = path.partition("?")[0].rstrip("/")
    return _first(lambda api: plain.endswith(api.path_marker))


def api_named(name: str) -> Api | None:
    """Return an API by its name, or None if there is none."""
    return _first(lambda api: api.name == name)


def api_of_headers(headers: Mapping[str, str]) -> Api | None:
    """Return the API that a request's headers identify (by their lower-case names), or None."""
    return _first(lambda api: any(name in headers for name in api.headers))


def api_of_request(body: Mapping[str, Any]) -> Api:
    """Return the API in which a request's ``body`` is written; an ambiguous body counts as Responses."""
    return _first(lambda api: api.is_request(body)) or RESPONSES


def api_of_answer(body: Mapping[str, Any]) -> Api | None:
    """Return the API of a non-streamed answer; None for a bare error or anything else."""
    return _first(lambda api: api.is_answer(body))


def api_of_event(event: str, data: Mapping[str, Any]) -> Api | None:
    """Return the API whose stream this event belongs to (``event``: its name or ""), or None if it is ambiguous."""
    kind = string(data.get("type") or event)
    return _first(lambda api: api.is_event(kind, data))


def backends_of(client: Api) -> tuple[ApiName, ...]:
    """Return the order in which a backend's APIs are tried for a client if the operator has not configured one."""
    return tuple(dict.fromkeys((client.backend, CHAT.name, RESPONSES.name, MESSAGES.name)))


NO_API = f"has none of {', '.join(api.path_suffix for api in (CHAT, RESPONSES, MESSAGES))}"
"""The text for a server without any API."""


def apis_line(found: Iterable[ApiName], missing: Collection[ApiName]) -> str:
    """Return a description of a server's APIs: "chat (no responses, no messages)"."""
    without = ", ".join(f"no {name}" for name in APIS if name in missing)
    return ", ".join(found) + (f" ({without})" if without else "")


def backend_of(client: Api, chosen: ApiName | Literal["auto"]) -> Api:
    """Return the API of the backend for a client; ``chosen``: the operator's setting."""
    return APIS[client.backend if chosen == "auto" else chosen]


def translated_path(path: str, client: Api, backend: Api) -> str:
    """Return the path (query included) at a backend of another API."""
    plain, _, query = path.partition("?")
    query = "&".join(part for part in query.split("&") if part != client.own_query)
    return f"{plain.rstrip('/').removesuffix(client.path_suffix)}{backend.path_suffix}{'?' if query else ''}{query}"


def _first(fits: Callable[[Api], bool]) -> Api | None:
    return next(filter(fits, APIS.values()), None)
