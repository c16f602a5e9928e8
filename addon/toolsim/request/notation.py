"""Writes a tool's schema as the JSON object of a call's arguments, with a slot in place of each value.

    {"city": <string>, "unit": <"celsius" | "fahrenheit", optional>, "stops": [{"name": <string>}, ...]}

A model only has to fill in the slots to write its arguments. This notation is shorter than a JSON schema, and safer to
copy than a signature: if shown ``get_weather(city: string)``, weak models write ``get_weather(city: "Bonn")``.

    object := "{" [pair ("," pair)*] "}"          an object with known properties
    pair   := JSON string ":" value
    value  := object | "[" value ", ...]" | slot
    slot   := "<" type ("," keyword JSON)* [", optional"] ">"
    type   := name | JSON ("|" …)* | type "[]"    types by name, the values of an enum or const as JSON

Descriptions are the client's own text, on separate lines (see ``SlotNotation``). Slots cannot express everything in a
JSON schema, such as references, conditions and pattern properties (see ``SlotNotation.is_all``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

from toolsim.wire.json_fields import array, mapping, string

# Maximum depth of a template. Deeper schemas are shown as JSON schemas, because a deeply nested template is hard to
# read.
MAX_DEPTH = 8

TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_STRUCTURE = frozenset({"type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "description"})
# Keywords that are useless to a model.
_UNINFORMATIVE = frozenset(
    {"title", "$schema", "$comment", "examples", "additionalProperties", "strict", "optional"} | {"encrypted"}
)
_LIST = frozenset({"type", "items", "description", "title"})
_SCALAR = frozenset({"type", "enum", "const", "description", "title"})
_CHOICES = frozenset({"enum", "const", "anyOf", "oneOf"})
# Keywords that a slot does not show.
_NAMELESS = _STRUCTURE | _UNINFORMATIVE
# Keywords that a template can ignore, because they are shown elsewhere or a model does not need them.
_FREE = _NAMELESS - {"type", "properties", "items", "anyOf", "oneOf", "additionalProperties"}
_KEYWORD = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_WHITESPACE = re.compile(r"\s")


class SlotNotation:
    """An object's schema as shown to a model. Parts that neither slots nor notes can express are missing.

    ``template`` is the object with slots. ``notes`` has a line ``  path: description`` for each property with a
    description, and for each optional property that has no slot, such as an object or a list of objects. ``is_all``
    states whether template and notes express the entire schema, except for titles and additionalProperties.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.notes: list[str] = []
        self.template = self._unnamed(schema, "", 0) if "properties" in schema else "{}"
        self.is_all = _is_expressible(schema)

    # Each method returns a part of the template. ``prefix`` is prepended to the paths of the schema's properties.

    def _unnamed(self, schema: Mapping[str, Any], prefix: str, depth: int) -> str:
        """Write the outermost object, or a list's items. An object without a template is written as a slot, with notes
        on its properties.
        """
        if not _is_object(schema, depth) and depth <= MAX_DEPTH and isinstance(schema.get("properties"), dict):
            self._object(schema, prefix, depth)
        return self._value(schema, prefix, depth, optional=False)

    def _value(self, schema: Mapping[str, Any], prefix: str, depth: int, *, optional: bool) -> str:
        if _is_object(schema, depth):
            return self._object(schema, prefix, depth)
        if _is_list_of_objects(schema, depth):
            return f"[{self._unnamed(schema['items'], f'{prefix[:-1]}[].', depth + 1)}, ...]"
        return _slot(schema, depth, optional=optional)

    def _object(self, schema: Mapping[str, Any], prefix: str, depth: int) -> str:
        needed = array(schema.get("required"))
        pairs = []
        for name, inner in schema["properties"].items():
            optional = name not in needed
            shown = mapping(inner)
            if _is_nested(shown, depth + 1):
                path = self._note(prefix, name, shown, optional=optional)
                value = self._value(shown, f"{path}.", depth + 1, optional=optional)
            else:
                if "description" in shown:
                    self._note(prefix, name, shown)
                value = _slot(shown, depth + 1, optional=optional)
            pairs.append(f"{encode_basestring(name)}: {value}")
        return f"{{{', '.join(pairs)}}}"

    def _note(self, prefix: str, name: str, schema: Mapping[str, Any], *, optional: bool = False) -> str:
        """Add the note on a property, if any, and return the property's path.

        ``optional`` specifies whether the note marks the property as optional. This is needed if the property has no
        slot.
        """
        path = prefix + (name if name.isidentifier() else _WHITESPACE.sub("_", name))
        words = indented(string(schema.get("description")))
        if optional:
            self.notes.append(f"  {path} (optional): {words}" if words else f"  {path} (optional):")
        elif words:
            self.notes.append(f"  {path}: {words}")
        return path


def _slot(schema: Mapping[str, Any], depth: int, *, optional: bool) -> str:
    slot = slot_type(schema, depth)
    for keyword, value in schema.items():
        if keyword not in _NAMELESS and _is_constraint(keyword, value):
            slot += f", {keyword} {_json(value)}"
    return f"<{slot}, optional>" if optional else f"<{slot}>"


def _is_expressible(schema: object, depth: int = 0) -> bool:
    """Return whether slots and notes can express the entire schema."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return False
    for keyword, value in schema.items():
        if keyword not in _FREE and not _is_expressible_keyword(keyword, value, depth):
            return False
    return True


def _is_expressible_keyword(keyword: str, value: Any, depth: int) -> bool:
    match keyword:
        case "type":
            types = value if isinstance(value, list) else [value]
            return bool(types) and all(isinstance(name, str) and name in TYPES for name in types)
        case "additionalProperties":
            return isinstance(value, bool)
        case "items":
            return _is_item(value, depth + 1)
        case "anyOf" | "oneOf":
            return isinstance(value, list) and all(_is_plain(branch) for branch in value)
        case "properties":
            return isinstance(value, dict) and all(_is_expressible(inner, depth + 1) for inner in value.values())
        case _:
            return keyword == "default" or _is_constraint(keyword, value)


def _is_constraint(keyword: str, value: object) -> bool:
    return not isinstance(value, dict | list) and _KEYWORD.fullmatch(keyword) is not None


def _has_properties(schema: object) -> bool:
    return isinstance(schema, dict) and "properties" in schema


def _is_item(schema: object, depth: int) -> bool:
    """Return whether a template can express the entire schema of a list's items, either as ``type[]`` in a slot or as a
    nested object.
    """
    if not isinstance(schema, dict):
        return False
    if "properties" in schema:
        return _is_expressible(schema, depth)
    if "items" not in schema:
        return _is_plain(schema)
    items = schema["items"]
    is_list = _LIST.issuperset(schema) and depth <= MAX_DEPTH
    return is_list and not _has_properties(items) and _is_item(items, depth + 1)


def _is_plain(schema: object) -> bool:
    return isinstance(schema, dict) and _SCALAR.issuperset(schema) and _is_expressible(schema)


def _is_nested(schema: Mapping[str, Any], depth: int) -> bool:
    """Return whether a schema is shown as a nested template rather than a slot."""
    if "properties" not in schema and "items" not in schema:
        return False  # Most properties are neither objects nor lists.
    return _is_object(schema, depth) or _is_list_of_objects(schema, depth)


def _is_object(schema: Mapping[str, Any], depth: int) -> bool:
    if depth > MAX_DEPTH or not isinstance(schema.get("properties"), dict):
        return False
    return schema.get("type", "object") == "object" and _CHOICES.isdisjoint(schema)


def _is_list_of_objects(schema: Mapping[str, Any], depth: int) -> bool:
    if depth > MAX_DEPTH or not _has_properties(schema.get("items")):
        return False
    return schema.get("type", "array") == "array" and _CHOICES.isdisjoint(schema)


def slot_type(schema: Mapping[str, Any], depth: int = 0) -> str:
    """Return a schema's type in slot notation, without properties."""
    if not _CHOICES.isdisjoint(schema):
        if "const" in schema:
            return _json(schema["const"])
        if isinstance(choices := schema.get("enum"), list) and choices:
            return " | ".join([encode_basestring(one) if type(one) is str else _json(one) for one in choices])
        for keyword in ("anyOf", "oneOf"):
            if isinstance(choices := schema.get(keyword), list) and choices:
                return " | ".join(map(_option, choices))
    kind = schema.get("type")
    if type(kind) is str and kind != "array":
        return kind
    if kind == "array":
        items = schema.get("items")
        item = slot_type(items, depth + 1) if isinstance(items, dict) and depth <= MAX_DEPTH else "any"
        return f"({item})[]" if " | " in item else f"{item}[]"
    return " | ".join(map(str, kind)) if isinstance(kind, list) else "any"


def _option(schema: object) -> str:
    return slot_type(schema, MAX_DEPTH) if isinstance(schema, dict) else "any"


def indented(text: str) -> str:
    """Return a client's ``text`` with all lines but the first indented, so that the text remains inside its entry."""
    # Newlines are not printable, so printable text is a single line.
    return text if text.isprintable() else "\n    ".join(text.splitlines())


_encode = json.JSONEncoder(ensure_ascii=False).encode


def _json(value: object) -> str:
    return encode_basestring(value) if isinstance(value, str) else _encode(value)
