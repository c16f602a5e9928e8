"""Structured output: ``text.format`` (Responses, flat) and ``response_format`` (chat, nested) say the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolsimlib.conversation import ClientRequest


def output_format(request: ClientRequest) -> Mapping[str, Any] | None:
    """Return the JSON that the client demands in the flat Responses shape, or None if plain text will do."""
    if request.dialect == "chat":
        wanted = request.body.get("response_format")
    else:
        text = request.body.get("text")
        wanted = text.get("format") if isinstance(text, dict) else None
    if not isinstance(wanted, dict) or wanted.get("type") not in ("json_schema", "json_object"):
        return None
    nested = wanted.get("json_schema")
    return {"type": wanted["type"], **nested} if isinstance(nested, dict) else wanted


def nested_format(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the flat shape into chat's ``response_format``."""
    if flat["type"] != "json_schema":
        return {"type": flat["type"]}
    return {"type": "json_schema", "json_schema": {key: value for key, value in flat.items() if key != "type"}}
