"""Structured output: ``text.format`` (Responses, flat) and ``response_format`` (chat, nested) are equivalent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

type Demand = Mapping[str, Any] | Literal["as sent"] | None
"""The structured output to request from a backend: a flat format, the client's own, or none."""


def flat_format(wanted: object) -> Mapping[str, Any] | None:
    """Return the JSON format that a client demands, in the flat shape of ``text.format``, None for plain text.

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
