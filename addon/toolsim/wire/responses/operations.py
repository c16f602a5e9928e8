"""Operations on a turn: counting its tokens, and compacting its conversation.

Both operations depend on the prompt that the model sees: the history with its calls as text, and the tool manifest. No
backend could derive this prompt from the client's own request.

1. *Counting* is based on the request that toolsim would send to the backend for the turn. If the backend has an
   endpoint that counts tokens, toolsim sends it the fields that the endpoint supports. Otherwise, toolsim estimates the
   count, and marks it as ``estimated``.
2. *Compacting* is a turn that requests a summary (``compaction.py``). The answer contains the messages that the model
   did not write, unchanged, followed by an item with the summary, which replaces all other items.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from toolsim.core.errors import ApiError
from toolsim.wire.api import Api
from toolsim.wire.apis import APIS
from toolsim.wire.errors import rejects_path
from toolsim.wire.json_codec import dump, parse_object
from toolsim.wire.json_fields import mappings, optional, required
from toolsim.wire.responses.compaction import ITEM, NO_SUMMARY, TRIGGER, remains
from toolsim.wire.responses.history import input_items
from toolsim.wire.responses.stored import stored_item

Action = Literal["input_tokens", "compact"]
ACTIONS: tuple[Action, ...] = ("input_tokens", "compact")

# Fields of a compaction request that apply to the turn that writes the summary. The specification does not list
# ``tools``, but Codex sends them. With the tools, the prompt begins like the prompt of the previous turn.
_TURN_FIELDS = ("model", "instructions", "previous_response_id", "prompt_cache_key", "prompt_cache_retention", "tools")


@lru_cache(maxsize=64)
def action_of(path: str) -> Action | None:
    """Return the action that a path names, such as ``compact``, or None if it names none. The path can include a
    query.
    """
    plain = path.partition("?")[0].rstrip("/")
    if any(plain.endswith(api.path_marker + api.token_count.path_suffix) for api in APIS.values() if api.token_count):
        return "input_tokens"
    return "compact" if plain.endswith("/responses/compact") else None


def turn_path(path: str) -> str:
    """Return the path of the turn to which the action at ``path`` applies."""
    plain, mark, query = path.partition("?")
    return plain.rstrip("/").rpartition("/")[0] + mark + query


def action_path(path: str, action: Action, api: Api | None) -> str:
    """Return the path for an action on a turn, such as ``…/responses/compact``.

    ``path`` is the path for the turn itself. ``api`` is the server's API, or None if it is unknown.
    """
    plain, mark, query = path.partition("?")
    ending = api.token_count.path_suffix if action == "input_tokens" and api and api.token_count else f"/{action}"
    return f"{plain.rstrip('/')}{ending}{mark}{query}"


def count_body(body: Mapping[str, Any], api: Api) -> dict[str, Any]:
    """Return the fields of a turn's body that the endpoint for counting tokens supports."""
    return {key: value for key, value in body.items() if api.token_count and key in api.token_count.fields}


def count_answer(tokens: object, **more: bool) -> bytes:
    """Return a response with a token count, for clients of any API. ``more`` is either empty or contains ``estimated:
    true``.
    """
    return dump({"object": "response.input_tokens", "input_tokens": tokens, **more}).encode()


def has_counted(status: int, body: bytes, model: str) -> bool | None:
    """Return whether a backend's response contains a token count. For an error response, return False if the backend
    has no counting endpoint, or None if the client has to see the error.
    """
    answer = parse_object(body) or {}
    if status == 200:
        count = answer.get("input_tokens")
        return isinstance(count, int) and not isinstance(count, bool)
    return False if rejects_path(status, answer, model) else None


def summary_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a compaction request to the request for the turn that writes the summary.

    Raises BadRequest if ``model`` is missing, or a field has the wrong type.
    """
    required(body, "model", str)
    optional(body, "instructions", str)
    turn = {key: body[key] for key in _TURN_FIELDS if body.get(key) is not None}
    asked = body.get("input") or []
    if isinstance(asked, str | list):  # Input of any other type is reported when the turn's request is read.
        asked = [*input_items(body), {"type": TRIGGER}]
    return {**turn, "input": asked, "stream": False, "store": False}


def remaining(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the items of a request that compaction leaves unchanged."""
    return [stored_item(item) for item in mappings(input_items(body)) if remains(item)]


def compaction(answer: bytes, messages: bytes) -> bytes | ApiError:
    """Return the response to a compaction request: the remaining ``messages`` followed by the summary.

    ``answer`` is the turn's Response, which contains the summary. ``messages`` is a JSON array.
    """
    response = parse_object(answer) or {}
    items = [item for item in mappings(response.get("output")) if item.get("type") == ITEM]
    if not items:
        return NO_SUMMARY
    output = b",".join(filter(None, [messages.strip()[1:-1].strip(), dump(items[0]).encode()]))
    head = {
        "id": f"resp_{secrets.token_hex(24)}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "usage": response.get("usage") or _NOT_COUNTED,
    }
    return dump(head).encode()[:-1] + b',"output":[' + output + b"]}"


# Clients require the ``usage`` object, even if a backend reports no counts.
_NOT_COUNTED: Mapping[str, Any] = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
