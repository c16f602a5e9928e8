"""Builds small example values of the required types from a JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolsim.wire.json_fields import array, mapping

# Limits for an example, which only has to show the form of a call. The number of values is limited because schemas can
# refer to themselves.
_MAX_DEPTH = 6
_MAX_VALUES = 60
_MAX_TEXT = 200
_MAX_NUMBER = 10**15


def example_arguments(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return example arguments for a tool with the schema ``parameters``: the required arguments, or the first argument
    if none is required.

    Constants, enums, defaults, types, bounds and local references are respected. ``pattern`` and conditions are not.
    """
    value = _Builder(parameters).build(parameters or {}, "value", 0)
    return value if isinstance(value, dict) else {}


class _Builder:
    def __init__(self, root: Mapping[str, Any] | None) -> None:
        self._root = root
        self._left = _MAX_VALUES

    def build(self, schema: object, name: str, depth: int) -> Any:
        self._left -= 1
        if not isinstance(schema, dict):
            return name
        if "const" in schema:
            return schema["const"]
        for keyword in ("enum", "examples"):
            values = schema.get(keyword)
            if isinstance(values, list) and values:
                return values[0]
        if "default" in schema:
            return schema["default"]
        if depth < _MAX_DEPTH and self._left > 0:
            inner = self._inner(schema)
            if inner is not None:
                return self.build(inner, name, depth + 1)
        match _type(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, name, depth)
            case "integer":
                return int(_number(schema))
            case "number":
                return _number(schema)
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return _string(schema, name)

    def _inner(self, schema: Mapping[str, Any]) -> object:
        """Return the schema that a ``$ref`` points to, or the first alternative other than null in an ``anyOf``,
        ``oneOf`` or ``allOf``. Return None if the schema has none of these keywords.
        """
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return referred(self._root, reference)
        for keyword in ("anyOf", "oneOf", "allOf"):
            options = schema.get(keyword)
            if isinstance(options, list) and options and "properties" not in schema:
                return next((option for option in options if option != {"type": "null"}), options[0])
        return None

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = mapping(schema.get("properties"))
        names = array(schema.get("required")) or list(properties)[:1]
        value: dict[str, Any] = {}
        for name in names:
            if depth >= _MAX_DEPTH or self._left <= 0:
                break
            if isinstance(name, str):
                value[name] = self.build(properties.get(name), name, depth + 1)
        return value

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        if depth >= _MAX_DEPTH or self._left <= 0 or schema.get("maxItems") == 0:
            return []
        return [self.build(schema.get("items"), name, depth + 1)]


def referred(root: Mapping[str, Any] | None, reference: str) -> Any:
    """Return the part of the schema ``root`` that a local reference points to, or None if there is no such part."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _type(schema: Mapping[str, Any]) -> object:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    if kind is None and "properties" in schema:
        return "object"
    return kind


def _number(schema: Mapping[str, Any]) -> int | float:
    number: int | float = 1
    for keyword, shift in (("minimum", 0), ("exclusiveMinimum", 1)):
        if (bound := _bound(schema, keyword)) is not None:
            number = max(number, bound + shift)
    for keyword, shift in (("maximum", 0), ("exclusiveMaximum", 1)):
        if (bound := _bound(schema, keyword)) is not None:
            number = min(number, bound - shift)
    return number


def _bound(schema: Mapping[str, Any], keyword: str) -> int | float | None:
    """Return a keyword's bound, or None if the bound is missing or too large for an example."""
    bound = schema.get(keyword)
    number = isinstance(bound, int | float) and not isinstance(bound, bool) and abs(bound) < _MAX_NUMBER
    return bound if number else None


def _string(schema: Mapping[str, Any], name: str) -> str:
    shortest, longest = schema.get("minLength"), schema.get("maxLength")
    text = name[:_MAX_TEXT]
    if isinstance(shortest, int):
        text = text.ljust(max(min(shortest, _MAX_TEXT), 0), ".")
    return text[: max(longest, 0)] if isinstance(longest, int) else text
