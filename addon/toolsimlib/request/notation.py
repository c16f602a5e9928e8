"""A tool's arguments as the JSON object that a call holds, with a slot in place of each value, and back.

    {"city": <string>, "unit": <"celsius" | "fahrenheit", optional>, "stops": [{"name": <string>}, ...]}

A model that fills in the slots has written its arguments. This notation is shorter than a JSON schema, and cannot be
miscopied as a signature can: shown ``get_weather(city: string)``, weak models write ``get_weather(city: "Bonn")``.

    object := "{" [pair ("," pair)*] "}"          an object whose properties are known
    pair   := JSON string ":" value
    value  := object | "[" value ", ...]" | slot
    slot   := "<" type ("," keyword JSON)* [", optional"] ">"
    type   := name | JSON ("|" …)* | type "[]"    types by name, the values of an enum or const as JSON

Descriptions are the client's own words and stand on lines of their own, see ``notes``. What JSON schema can say beyond
that (references, conditions, patterns of properties) is not for slots: ``is_expressible``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring
from typing import Any

# Deeper than this a template would be no help; such a schema is shown as it is.
_MAX_DEPTH = 8

_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_STRUCTURE = frozenset({"type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "description"})
# Nothing that a model could go by.
_IDLE = frozenset({"title", "$schema", "$comment", "examples", "additionalProperties", "strict", "optional"})
_PLAIN = frozenset({"type", "description"})
_LIST = frozenset({"type", "items", "description", "title"})
_SCALAR = frozenset({"type", "enum", "const", "description", "title"})
_CHOICES = frozenset({"enum", "const", "anyOf", "oneOf"})
# What a slot does not tell of a keyword by naming it.
_NAMELESS = _STRUCTURE | _IDLE
_KEYWORD = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_WHITESPACE = re.compile(r"\s")
_NOTE = re.compile(r"  (?P<path>\S+)(?P<optional> \(optional\))?:(?: (?P<text>.*))?")
"""A line of ``notes``; its further lines are indented deeper."""


def is_expressible(schema: object, depth: int = 0) -> bool:
    """Return whether a template says all that ``schema`` does (but for titles and additionalProperties)."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return False
    for keyword, value in schema.items():
        match keyword:
            case "type" if isinstance(value, str):
                if value not in _TYPES:
                    return False
            case "description":
                pass
            case "type":
                types = value if isinstance(value, list) else [value]
                if not types or not all(isinstance(each, str) and each in _TYPES for each in types):
                    return False
            case "properties":
                if not isinstance(value, dict):
                    return False
                for each in value.values():
                    if not is_expressible(each, depth + 1):
                        return False
            case "items":
                if not _is_item(value, depth + 1):
                    return False
            case "anyOf" | "oneOf":
                if not isinstance(value, list) or not all(_is_plain(each) for each in value):
                    return False
            case "default":
                pass  # It helps a model where it is short; nothing depends on it.
            case "additionalProperties":
                if not isinstance(value, bool):
                    return False
            case _ if keyword not in _NAMELESS:
                if not _is_constraint(keyword, value):
                    return False
    return True


def _is_constraint(keyword: str, value: object) -> bool:
    return not isinstance(value, dict | list) and _KEYWORD.fullmatch(keyword) is not None


def _is_item(schema: object, depth: int) -> bool:
    """Return whether a slot's ``type[]``, or a template of its own, says all of the items' schema."""
    if isinstance(schema, dict) and "items" in schema and schema.keys() <= _LIST:
        return depth <= _MAX_DEPTH and "properties" not in schema["items"] and _is_item(schema["items"], depth + 1)
    return _is_plain(schema) or (isinstance(schema, dict) and "properties" in schema and is_expressible(schema, depth))


def _is_plain(schema: object) -> bool:
    return isinstance(schema, dict) and schema.keys() <= _SCALAR and is_expressible(schema)


def template(schema: Mapping[str, Any]) -> str:
    """Return the template of an object's schema; what no slot can say of it is left out."""
    return _value(schema, optional=False, depth=0) if "properties" in schema else "{}"


def _value(schema: object, *, optional: bool, depth: int) -> str:
    if not isinstance(schema, dict):
        return _slot("any", {}, optional=optional)
    if _says_type_alone(schema) and isinstance(kind := schema.get("type"), str) and kind != "array":
        return f"<{kind}, optional>" if optional else f"<{kind}>"
    if "properties" in schema and _is_object(schema, depth):
        properties = schema["properties"]
        needed = schema.get("required")
        needed = needed if isinstance(needed, list) else []
        pairs = [
            f"{encode_basestring(name)}: {_value(each, optional=name not in needed, depth=depth + 1)}"
            for name, each in properties.items()
        ]
        return f"{{{', '.join(pairs)}}}"
    if _is_list_of_objects(schema, depth):
        return f"[{_value(schema['items'], optional=False, depth=depth + 1)}, ...]"
    return _slot(slot_type(schema, depth), schema, optional=optional)


def _says_type_alone(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema holds a type and words: most properties say no more."""
    return len(schema) <= 2 and schema.keys() <= _PLAIN


def _is_object(schema: Mapping[str, Any], depth: int) -> bool:
    return isinstance(schema.get("properties"), dict) and depth <= _MAX_DEPTH and _is_a(schema, "object")


def _is_list_of_objects(schema: Mapping[str, Any], depth: int) -> bool:
    items = schema.get("items")
    return isinstance(items, dict) and "properties" in items and depth <= _MAX_DEPTH and _is_a(schema, "array")


def _is_a(schema: Mapping[str, Any], kind: str) -> bool:
    return schema.get("type", kind) == kind and _CHOICES.isdisjoint(schema)


def slot_type(schema: Mapping[str, Any], depth: int = 0) -> str:
    """Return the type of a schema in the words of a slot, without properties."""
    if not _CHOICES.isdisjoint(schema):
        if "const" in schema:
            return _json(schema["const"])
        for keyword, write in (("enum", _json), ("anyOf", _option), ("oneOf", _option)):
            choices = schema.get(keyword)
            if isinstance(choices, list) and choices:
                return " | ".join([write(choice) for choice in choices])
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        item = slot_type(items, depth + 1) if isinstance(items, dict) and depth <= _MAX_DEPTH else "any"
        return f"({item})[]" if " | " in item else f"{item}[]"
    if isinstance(kind, list):
        return " | ".join(map(str, kind))
    return kind if isinstance(kind, str) else "any"


def _option(schema: object) -> str:
    return slot_type(schema, _MAX_DEPTH) if isinstance(schema, dict) else "any"


def _slot(kind: str, schema: Mapping[str, Any], *, optional: bool) -> str:
    parts = [kind]
    for keyword, value in schema.items():
        if keyword not in _NAMELESS and _is_constraint(keyword, value):
            parts.append(f"{keyword} {_json(value)}")
    if optional:
        parts.append("optional")
    return f"<{', '.join(parts)}>"


def notes(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line ``  path: description`` for each described property, inner ones by their path.

    Objects and lists of objects have no slot to say that they are optional; their line says it.
    """
    yield from _notes(schema, "", 0)


def _notes(schema: Mapping[str, Any], prefix: str, depth: int) -> Iterator[str]:
    properties, needed = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or depth > _MAX_DEPTH:
        return
    for name, inner in properties.items():
        if not isinstance(inner, dict):
            continue
        path = prefix + (name if name.isidentifier() else _WHITESPACE.sub("_", name))
        slotless = not _says_type_alone(inner) and (
            _is_object(inner, depth + 1) or _is_list_of_objects(inner, depth + 1)
        )
        optional = slotless and not (isinstance(needed, list) and name in needed)
        description = inner.get("description")
        words = "\n    ".join(description.splitlines()) if isinstance(description, str) else ""
        if words or optional:
            yield f"  {path}{' (optional)' if optional else ''}:{f' {words}' if words else ''}"
        items = inner.get("items")
        if slotless and isinstance(items, dict):
            yield from _notes(items, f"{path}[].", depth + 1)
        elif slotless:
            yield from _notes(inner, f"{path}.", depth + 1)


_encode = json.JSONEncoder(ensure_ascii=False).encode


def _json(value: object) -> str:
    return encode_basestring(value) if isinstance(value, str) else _encode(value)


_SLOT = r'<(?:"(?:[^"\\]|\\.)*"|[^"<>])*>'
_TOKEN = re.compile(rf'\s*(?P<token>"(?:[^"\\]|\\.)*"|{_SLOT}|, \.\.\.\]|[{{}}\[:,])')
_PART = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^",])+')
_CHOICE = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^"|])+')


class _Malformed(ValueError):
    """A text is no template."""


def read_template(text: str) -> dict[str, Any] | None:
    """Return the schema that a template was written for, as far as the template tells it; None for other texts."""
    tokens = [found["token"] for found in _TOKEN.finditer(text)]
    tokens.reverse()
    try:
        schema, _ = _read_value(tokens, 0)
    except (_Malformed, IndexError, ValueError, RecursionError):
        return None
    return schema if not tokens else None


def _read_value(tokens: list[str], depth: int) -> tuple[dict[str, Any], bool]:
    """Return a value's schema and whether it is optional."""
    token = tokens.pop()
    if depth > _MAX_DEPTH + 2:
        raise _Malformed
    if token.startswith("<"):
        return _read_slot(token[1:-1])
    if token == "[":
        items, _ = _read_value(tokens, depth + 1)
        if tokens.pop() != ", ...]":
            raise _Malformed
        return {"type": "array", "items": items}, False
    if token != "{":
        raise _Malformed
    properties: dict[str, Any] = {}
    required: list[str] = []
    while (token := tokens.pop()) != "}":
        if token == "," and properties:
            token = tokens.pop()
        name = json.loads(token)
        if not isinstance(name, str) or tokens.pop() != ":":
            raise _Malformed
        properties[name], optional = _read_value(tokens, depth + 1)
        if not optional:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}, False


def _read_slot(text: str) -> tuple[dict[str, Any], bool]:
    kind, *further = (found.strip() for found in _PART.findall(text))
    optional = further[-1:] == ["optional"]
    schema = _read_type(kind)
    for part in further[: len(further) - optional]:
        keyword, _, value = part.partition(" ")
        schema[keyword] = json.loads(value)
    return schema, optional


def _read_type(text: str) -> dict[str, Any]:
    if text.endswith("[]"):
        return {"type": "array", "items": _read_type(text[:-2].removeprefix("(").removesuffix(")"))}
    choices = [choice.strip() for choice in _CHOICE.findall(text)]
    if choices == ["any"]:
        return {}
    if any(choice in _TYPES and choice != "null" for choice in choices):
        return {"type": choices[0] if len(choices) == 1 else choices}
    return {"enum": [json.loads(choice) for choice in choices]}
