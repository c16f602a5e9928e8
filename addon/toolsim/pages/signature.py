"""Formats a tool's parameters as a short signature, such as ``city: string, unit?: "c" | "f"``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolsim.pages.json_text import compact
from toolsim.pages.page import clip

_MAX_PARAMETERS = 12
_MAX_CHOICES = 4
_MAX_DEPTH = 3
_MAX_LENGTH = 60


def signature(parameters: Mapping[str, Any] | None) -> str:
    """Return the signature for an object's JSON schema. A question mark indicates an optional parameter."""
    properties = (parameters or {}).get("properties")
    if not isinstance(properties, dict):
        return "" if not parameters or parameters.get("type") == "object" else "…"
    required = (parameters or {}).get("required")
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    shown = [
        f"{clip(str(name), _MAX_LENGTH)}{'' if name in names else '?'}: {clip(_type(schema, 0), _MAX_LENGTH)}"
        for name, schema in list(properties.items())[:_MAX_PARAMETERS]
    ]
    more = ["…"] if len(properties) > _MAX_PARAMETERS else []
    return ", ".join(shown + more)


def _type(schema: object, depth: int) -> str:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return "any"
    if "const" in schema:
        return _literal(schema["const"])
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        shown = [_literal(choice) for choice in choices[:_MAX_CHOICES]]
        return " | ".join(shown + (["…"] if len(choices) > _MAX_CHOICES else []))
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return reference.rpartition("/")[2]
    for keyword in ("anyOf", "oneOf"):
        options = schema.get(keyword)
        if isinstance(options, list) and options:
            return " | ".join(_type(option, depth + 1) for option in options[:_MAX_CHOICES])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_plain(name, schema, depth) for name in kind[:_MAX_CHOICES])
    return _plain(kind, schema, depth)


def _plain(kind: object, schema: Mapping[str, Any], depth: int) -> str:
    if kind == "array":
        item = _type(schema.get("items"), depth + 1)
        return f"({item})[]" if " | " in item else f"{item}[]"
    if kind == "object" or (kind is None and "properties" in schema):
        properties = schema.get("properties")
        names = list(properties)[:_MAX_CHOICES] if isinstance(properties, dict) else []
        return "{" + ", ".join(map(str, names)) + "}" if names else "object"
    return kind if isinstance(kind, str) else "any"


def _literal(value: object) -> str:
    return clip(compact(value), _MAX_LENGTH)
