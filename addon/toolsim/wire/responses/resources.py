"""Access to stored data through the API: responses with their input items, and conversations with their items.

Each request refers to one record. ``respond`` receives the record's value, and returns the HTTP response and the new
value. If the record has been changed in the meantime, the caller can discard the result and call ``respond`` again.

| path                              | methods           |
|-----------------------------------|-------------------|
| ``responses/ID``                  | GET, DELETE       |
| ``responses/ID/input_items``      | GET               |
| ``responses/ID/cancel``           | POST              |
| ``conversations``                 | POST              |
| ``conversations/ID``              | GET, POST, DELETE |
| ``conversations/ID/items``        | GET, POST         |
| ``conversations/ID/items/ITEM``   | GET, DELETE       |
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qs

from toolsim.core.errors import ApiError, BadRequest
from toolsim.wire.json_codec import dump, parse_object, unreadable
from toolsim.wire.json_fields import mapping, mappings, optional, required, string
from toolsim.wire.responses.background import PENDING, is_in_background, response_now, with_response
from toolsim.wire.responses.history import read_history
from toolsim.wire.responses.operations import ACTIONS
from toolsim.wire.responses.stored import NotStored, items_of, stored_item

Kind = Literal["response", "input_items", "cancel", "conversations", "conversation", "items", "item"]

METHODS: Mapping[Kind, tuple[str, ...]] = {
    "response": ("GET", "DELETE"),
    "input_items": ("GET",),
    "cancel": ("POST",),
    "conversations": ("POST",),
    "conversation": ("GET", "POST", "DELETE"),
    "items": ("GET", "POST"),
    "item": ("GET", "DELETE"),
}

_RESPONSE = re.compile(r"/responses/(?P<id>[^/]+)(?:/(?P<of>input_items|cancel))?/?$")
_CONVERSATION = re.compile(r"/conversations(?:/(?P<id>[^/]+)(?P<items>/items(?:/(?P<item>[^/]+))?)?)?/?$")
MAX_NEW_ITEMS = 20
_MAX_PAGE = 100
_DEFAULT_PAGE = 20


@dataclass(frozen=True, slots=True)
class Resource:
    """The resource that a path identifies."""

    kind: Kind
    id: str = ""
    """ID of the stored response or conversation; "" for a new conversation."""
    item: str = ""
    """ID of one item of the stored data; "" for all items."""


@dataclass(frozen=True, slots=True)
class ResourceCall:
    """A request for a resource."""

    resource: Resource
    method: str
    query: str = ""
    """Query string of the URL; "" if the URL has none."""
    body: bytes = b""
    state: str = ""
    """State of an unfinished background answer, as reported by its producer; "" if the producer is gone."""


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a resource request, and the change to the store."""

    body: dict[str, Any]
    id: str = ""
    """ID of the stored response or conversation to change; "" to change nothing."""
    value: bytes = b""
    """New content of the stored response or conversation; b"" to delete it."""


def resource_of(path: str) -> Resource | None:
    """Return the resource that a path (which can include a query) identifies, or None if it identifies none."""
    plain = path.partition("?")[0]
    if (found := _RESPONSE.search(plain)) is not None:
        if found["id"] in ACTIONS:  # Paths such as ``responses/input_tokens`` name an action rather than a response.
            return None
        kinds: Mapping[str | None, Kind] = {None: "response", "input_items": "input_items", "cancel": "cancel"}
        return Resource(kinds[found["of"]], found["id"])
    if (found := _CONVERSATION.search(plain)) is not None:
        kind: Kind = "item" if found["item"] else "items" if found["items"] else "conversation"
        return Resource(kind if found["id"] else "conversations", found["id"] or "", found["item"] or "")
    return None


def wrong_method(call: ResourceCall) -> ApiError | None:
    """Return the error for a method that a resource does not support, or None if the method is supported."""
    allowed = METHODS[call.resource.kind]
    if call.method in allowed:
        return None
    message = f"{call.method} is not allowed: expected {' or '.join(allowed)}."
    return ApiError(message, "invalid_request_error", "method_not_allowed", status=405)


def respond(call: ResourceCall, value: bytes | None) -> Response:
    """Return the response to a resource request. ``value`` is the stored value, or None if nothing is stored under the
    ID.

    Raises BadRequest if the request is invalid or, with the status 404, if nothing is stored under the ID.
    """
    resource = call.resource
    record = parse_object(value) if value is not None else None
    if resource.kind == "conversations":
        return _new_conversation(call)
    is_response = resource.kind in ("response", "input_items", "cancel")
    if record is None or ("response" in record) is not is_response:
        noun = "Response" if is_response else "Conversation"
        raise _missing(f"{noun} with id '{resource.id}' not found.")
    if is_response:
        return _of_response(call, record)
    conversation, items = dict(mapping(record.get("conversation"))), items_of(record)
    match resource.kind, call.method:
        case "conversation", "GET":
            return Response(conversation)
        case "conversation", "DELETE":
            return Response({"id": resource.id, "object": "conversation.deleted", "deleted": True}, resource.id)
        case "conversation", _:
            conversation["metadata"] = required(_object(call.body), "metadata", dict)
            return Response(conversation, resource.id, _value(conversation, items))
        case "items", "GET":
            return Response(page(items, call.query))
        case "items", _:
            new = _new_items(_object(call.body), needed=True)
            return Response(_listed(new), resource.id, _value(conversation, [*items, *new]))
    found = next((item for item in reversed(items) if item.get("id") == resource.item), None)
    if found is None:
        raise _missing(f"Item with id '{resource.item}' not found.")
    if call.method == "GET":
        return Response(found)
    remaining = [item for item in items if item.get("id") != resource.item]
    return Response(conversation, resource.id, _value(conversation, remaining))


def page(items: Sequence[Mapping[str, Any]], query: str) -> dict[str, Any]:
    """Return the page of items that a ``query`` selects. The newest item is first unless ``order=asc``.

    Raises BadRequest if a parameter of the query is invalid.
    """
    asked = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
    limit, order, after = asked.get("limit", str(_DEFAULT_PAGE)), asked.get("order", "desc"), asked.get("after")
    if not re.fullmatch(r"[0-9]{1,3}", limit) or not 1 <= int(limit) <= _MAX_PAGE:
        message = f"Invalid 'limit': expected an integer from 1 to {_MAX_PAGE}, but got {limit[:20]!r}."
        raise BadRequest(message, "limit", "invalid_value")
    if order not in ("asc", "desc"):
        raise BadRequest(f"Invalid 'order': expected asc or desc, but got {order[:20]!r}.", "order", "invalid_value")
    # A client can send an item twice. With duplicate IDs, the next page would always start after the first occurrence.
    unique = list({string(item.get("id")) or index: item for index, item in enumerate(items)}.values())
    ordered = unique if order == "asc" else unique[::-1]
    start = 0
    if after is not None:
        places = [index for index, item in enumerate(ordered) if item.get("id") == after]
        if not places:
            raise BadRequest(f"Invalid 'after': there is no item with id '{after[:80]}'.", "after", "invalid_value")
        start = places[0] + 1
    return _listed(ordered[start : start + int(limit)], has_more=len(ordered) > start + int(limit))


def _of_response(call: ResourceCall, record: Mapping[str, Any]) -> Response:
    id, response = call.resource.id, dict(mapping(record["response"]))
    match call.resource.kind, call.method:
        case "input_items", _:
            return Response(page(mappings(record.get("input")), call.query))
        case "cancel", _ if not is_in_background(record):
            raise BadRequest("Cannot cancel a synchronous response.")
        case _, "DELETE":
            return Response({"id": id, "object": "response", "deleted": True}, id)
    if is_in_background(record):
        now = response_now(response, call.state, cancel=call.resource.kind == "cancel")
        is_changed = now["status"] not in (*PENDING, response.get("status"))
        return Response(now, id, with_response(record, now)) if is_changed else Response(now)
    if parse_qs(call.query).get("stream", [""])[-1] == "true":
        message = "This response cannot be streamed again, because it was not created with 'background' and 'stream'."
        raise BadRequest(message, "stream", "invalid_value")
    return Response(response)


def _new_conversation(call: ResourceCall) -> Response:
    body = _object(call.body) if call.body.strip() else {}
    items = _new_items(body, needed=False)
    id = f"conv_{secrets.token_hex(24)}"
    metadata = optional(body, "metadata", dict) or {}
    conversation = {"id": id, "object": "conversation", "created_at": int(time.time()), "metadata": metadata}
    return Response(conversation, id, _value(conversation, items))


def _new_items(body: Mapping[str, Any], *, needed: bool) -> list[dict[str, Any]]:
    items = required(body, "items", list) if needed else optional(body, "items", list) or []
    if len(items) > MAX_NEW_ITEMS:
        message = f"Invalid 'items': expected at most {MAX_NEW_ITEMS}, but got {len(items)}."
        raise BadRequest(message, "items", "array_above_max_length")
    # An unreadable item would cause an error in every turn of the conversation.
    read_history(items, "items")
    return [stored_item(item) for item in items]


def _object(data: bytes) -> dict[str, Any]:
    body = parse_object(data)
    if body is None:
        raise BadRequest(unreadable(data))
    return body


def _listed(items: Sequence[Mapping[str, Any]], *, has_more: bool = False) -> dict[str, Any]:
    ids = [string(item.get("id")) for item in items]
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return {"object": "list", "data": list(items), "first_id": first, "last_id": last, "has_more": has_more}


def _value(conversation: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> bytes:
    return dump({"conversation": conversation, "items": items}).encode()


def _missing(message: str) -> NotStored:
    return NotStored(ApiError(message, "invalid_request_error", status=404))
