"""Adds the operator's fields to a backend's body: defaults, and overrides that replace the client's fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

RESERVED = frozenset(
    {"model", "messages", "input", "instructions", "tools", "functions", "tool_choice", "function_call"}
    | {"parallel_tool_calls", "stream", "stream_options", "n", "store", "background", "prompt", "text"}
    | {"response_format", "previous_response_id", "conversation"}
)
"""Fields that the operator cannot set, because they would change the question or the format of the answer."""


def read_fields(text: str) -> Mapping[str, Any]:
    """Parse an option's value as fields. The value is a JSON object, or "" for no fields.

    Raises ValueError if the value is neither, or if it contains a field in ``RESERVED``.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"got {text[:60]!r}, expected a JSON object: {problem}") from problem
    if not isinstance(value, dict):
        raise ValueError(f"got {text[:60]!r}, expected a JSON object")
    if taken := sorted(RESERVED & value.keys()):
        raise ValueError(f"got {', '.join(taken)}, which only the client or toolsim can set")
    return value


def with_fields(body: dict[str, Any], *, defaults: str, overrides: str) -> dict[str, Any]:
    """Return a body with the operator's fields added. An override with the value null removes the client's field."""
    more = read_fields(overrides)
    whole = {**read_fields(defaults), **body, **more}
    return {name: value for name, value in whole.items() if not (name in more and value is None)}
