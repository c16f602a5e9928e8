"""A Responses body as Codex takes it, without I/O.

The conversation becomes message items, each with its role, for ``thread/inject_items``. What Codex has no parameter
for is left out (``temperature``, ``top_p``, ``max_output_tokens``, …) or, as a ``text.format`` of type
``json_object``, asked for in words. What the answer would be wrong without is a 400 instead: a history that is stored
elsewhere, images by URL, files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolsimlib.errors import BadRequest
from toolsimlib.wire.lenient import mapping, string


@dataclass(frozen=True, slots=True)
class CodexRequest:
    """A conversation as message items; parameters for ``thread/start``, for its ``config`` and for ``turn/start``."""

    items: tuple[Mapping[str, Any], ...]
    thread: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    turn: Mapping[str, Any] = field(default_factory=dict)


def read_request(body: Mapping[str, Any]) -> CodexRequest:
    """Read a Responses body; items other than messages are left out. Raises BadRequest for what Codex cannot do."""
    if body.get("previous_response_id"):
        message = "The codex backend keeps no responses: send the whole conversation as input."
        raise BadRequest(message, "previous_response_id", "previous_response_not_found")
    for key in ("conversation", "background"):
        if body.get(key):
            raise BadRequest(f"The codex backend does not support '{key}'.", key, "unsupported_parameter")
    given = body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise BadRequest("Invalid type for 'input': expected a string or an array.", "input", "invalid_type")
    items = [_text_item("developer", text)] if (text := string(body.get("instructions"))) else []
    for index, item in enumerate(given):
        if isinstance(item, dict) and item.get("type", "message") == "message":
            items.append(_item(item, f"input[{index}]"))
    items = [item for item in items if item["content"]]
    answer_format = mapping(mapping(body.get("text")).get("format"))
    turn: dict[str, Any] = {}
    if answer_format.get("type") == "json_schema":
        turn["outputSchema"] = answer_format.get("schema")
    elif answer_format.get("type") == "json_object":
        items.append(_text_item("developer", "Answer with one JSON object and nothing else, without a code fence."))
    reasoning = mapping(body.get("reasoning"))
    if effort := string(reasoning.get("effort")):
        turn["effort"] = effort
    if summary := string(reasoning.get("summary")):
        turn["summary"] = summary
    verbosity = string(mapping(body.get("text")).get("verbosity"))
    model = string(body.get("model"))
    return CodexRequest(
        tuple(items),
        thread={"model": model} if model else {},
        config={"model_verbosity": verbosity} if verbosity else {},
        turn=turn,
    )


def _item(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = string(item.get("role")) or "user"
    # Codex silently drops system messages.
    role = "developer" if role == "system" else role
    content = item.get("content")
    if isinstance(content, str):
        return _text_item(role, content)
    parts = []
    for index, part in enumerate(content if isinstance(content, list) else []):
        parts.append(_part(role, mapping(part), f"{where}.content[{index}]"))
    return {"type": "message", "role": role, "content": parts}


def _text_item(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}] if text else []}


def _part(role: str, part: Mapping[str, Any], where: str) -> dict[str, Any]:
    match part:
        case {"text": str(text)} | {"refusal": str(text)}:
            return {"type": "output_text" if role == "assistant" else "input_text", "text": text}
        case {"type": "input_image", "image_url": str(url)} if url.startswith("data:"):
            detail = part.get("detail")
            return {"type": "input_image", "image_url": url, **({"detail": detail} if detail else {})}
        case {"type": "input_image"}:
            raise BadRequest("The codex backend takes images as data URLs only.", f"{where}.image_url", "invalid_value")
        case _:
            kind = part.get("type")
            raise BadRequest(f"The codex backend takes text and images, but got '{kind}'.", where, "invalid_value")
