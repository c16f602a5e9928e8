"""One field of a backend's JSON, read leniently: a value of the wrong type counts as absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

from toolsimlib.wire.json_codec import dump_as_read


def string(value: object) -> str:
    """Return a string, else ""."""
    return value if isinstance(value, str) else ""


def json_text(value: object) -> str:
    """Return JSON text unchanged, an object (which some backends forget to encode) as JSON text, else ""."""
    return dump_as_read(value) if isinstance(value, dict) else string(value)


def loaded(text: str) -> Mapping[str, Any] | None:
    """Return the object in a JSON text, None if it is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def count(counts: Mapping[str, Any], key: str) -> int:
    """Return a number of tokens, or an index, else 0."""
    value = counts.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def seconds(value: object) -> int | None:
    """Return a time in whole seconds, else None; Python's JSON also reads NaN and Infinity."""
    if isinstance(value, float):
        return int(value) if isfinite(value) else None
    return value if isinstance(value, int) else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(values: object) -> list[Mapping[str, Any]]:
    """Return the objects of an array; anything else in it is ignored."""
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
