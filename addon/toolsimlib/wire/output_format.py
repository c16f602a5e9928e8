"""Structured output: ``text.format`` (Responses, flat) and ``response_format`` (chat, nested) say the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

type Demand = Mapping[str, Any] | Literal["as sent"] | None
"""The structured output for a backend: a flat format, what the client itself sent, or none."""


def flat_format(wanted: object) -> Mapping[str, Any] | None:
    """Return the JSON that a client demands in the flat shape of ``text.format``, None if plain text will do.

    Either shape is read on either endpoint, since clients mix them.
    """
    if not isinstance(wanted, dict) or wanted.get("type") not in ("json_schema", "json_object"):
        return None
    nested = wanted.get("json_schema")
    return {"type": wanted["type"], **nested} if isinstance(nested, dict) else wanted


def nested_format(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the flat shape into chat's ``response_format``."""
    if flat["type"] != "json_schema":
        return dict(flat)
    return {"type": "json_schema", "json_schema": {key: value for key, value in flat.items() if key != "type"}}
