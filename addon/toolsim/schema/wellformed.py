"""Checks in a single traversal whether a schema is well-formed.

jsonschema validates a schema against its meta-schema, which takes 7 ms per kilobyte: a client's catalog of 100 kB would
block all other clients for most of a second. The meta-schemas mainly define which type of value each keyword has. This
module has a table with this information, and checks a schema in a thirtieth of the time.

1. jsonschema accepts every schema that this module accepts. All other schemas are checked by jsonschema, which reports
   any errors. Therefore, one table is enough for all dialects. The table may reject a value of a keyword that a dialect
   does not define, because jsonschema then checks the schema and accepts it.
2. Unknown keywords accept any value. ``format``, ``pattern`` and ``$ref`` accept any string.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_ANCHOR = re.compile(r"[A-Za-z][-A-Za-z0-9._]*")
_ID = re.compile(r"[^#]*#?")

# The type of a function that checks the value of a keyword. The function returns whether the value is valid, and
# appends the schemas that the value contains to the function's second argument.
_Shape = Callable[[Any, list[Any]], bool]


def _any(value: Any, below: list[Any]) -> bool:
    return True


def _never(value: Any, below: list[Any]) -> bool:
    return False


def _instance(kind: type, value: Any, below: list[Any]) -> bool:
    return isinstance(value, kind)


def _text_like(pattern: re.Pattern[str], value: Any, below: list[Any]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _schema(value: Any, below: list[Any]) -> bool:
    below.append(value)
    return True


def _schemas(value: Any, below: list[Any]) -> bool:
    if isinstance(value, list) and value:
        below += value
        return True
    return False


def _schema_or_schemas(value: Any, below: list[Any]) -> bool:
    return _schemas(value, below) if isinstance(value, list) else _schema(value, below)


def _schemas_by_name(value: Any, below: list[Any]) -> bool:
    if isinstance(value, dict):
        below += value.values()
        return True
    return False


def _map_of(shape: _Shape, value: Any, below: list[Any]) -> bool:
    return isinstance(value, dict) and all(shape(member, below) for member in value.values())


def _names(value: Any, below: list[Any]) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _schema_or_names(value: Any, below: list[Any]) -> bool:
    return _names(value, below) if isinstance(value, list) else _schema(value, below)


def _type(value: Any, below: list[Any]) -> bool:
    if isinstance(value, str):
        return value in _TYPES
    return bool(value) and _names(value, below) and _TYPES.issuperset(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any, below: list[Any]) -> bool:
    return _is_number(value)


def _positive(value: Any, below: list[Any]) -> bool:
    return _is_number(value) and value > 0


def _count(value: Any, below: list[Any]) -> bool:
    return _is_number(value) and value >= 0 and (isinstance(value, int) or value.is_integer())


_text, _switch, _list = partial(_instance, str), partial(_instance, bool), partial(_instance, list)


SCHEMAS_BY_NAME = "properties patternProperties definitions $defs dependentSchemas"
"""The keywords whose value is an object that contains a schema for each name."""

_SHAPES: dict[str, _Shape] = {
    keyword: shape
    for shape, keywords in (
        (_text, "$schema $ref $recursiveRef $dynamicRef $comment title description pattern format"),
        (_text, "contentMediaType contentEncoding"),
        (partial(_text_like, _ID), "$id"),
        (partial(_text_like, _ANCHOR), "$anchor $dynamicAnchor"),
        (_any, "default const"),
        (_list, "enum examples"),
        (_switch, "readOnly writeOnly uniqueItems deprecated"),
        (_number, "maximum exclusiveMaximum minimum exclusiveMinimum"),
        (_positive, "multipleOf"),
        (_count, "maxLength minLength maxItems minItems maxContains minContains maxProperties minProperties"),
        (_names, "required"),
        (_type, "type"),
        (_schema, "items additionalItems unevaluatedItems contains additionalProperties unevaluatedProperties"),
        (_schema, "propertyNames contentSchema if then else not"),
        (_schemas, "allOf anyOf oneOf prefixItems"),
        (_schemas_by_name, SCHEMAS_BY_NAME),
        (partial(_map_of, _schema_or_names), "dependencies"),
        (partial(_map_of, _names), "dependentRequired"),
        (partial(_map_of, _switch), "$vocabulary"),
        # Dialects differ in the values of this keyword, so jsonschema checks it.
        (_never, "$recursiveAnchor"),
    )
    for keyword in keywords.split()
}
"""The function that checks the value of each keyword. If dialects differ, it accepts only values that are valid in all
of them.
"""

_WITH_LISTS = _SHAPES | {"items": _schema_or_schemas}
_DIALECTS: Mapping[str, Mapping[str, _Shape]] = {
    "http://json-schema.org/draft-06/schema": _WITH_LISTS,
    "http://json-schema.org/draft-07/schema": _WITH_LISTS,
    "https://json-schema.org/draft/2019-09/schema": _WITH_LISTS,
    "https://json-schema.org/draft/2020-12/schema": _SHAPES,
}
"""Maps the URI of each dialect's meta-schema to the dialect's keywords and the functions that check their values.
Before 2020-12, ``items`` could be an array.
"""


def are_plainly_wellformed(schemas: Iterable[Any], dialect: str) -> bool:
    """Return whether all of these schemas are certainly well-formed. ``dialect``: the URI of their meta-schema."""
    shapes = _DIALECTS.get(dialect.rstrip("#"))
    if shapes is None:
        return False
    below = list(schemas)
    # The list grows during the loop, because subschemas are appended to it.
    for schema in below:
        if not isinstance(schema, dict):
            if not isinstance(schema, bool):
                return False
            continue
        for keyword, value in schema.items():
            shape = shapes.get(keyword)
            if shape is not None and not shape(value, below):
                return False
    return True


def is_plain(text: str) -> bool:
    """Return whether a schema contains neither references nor patterns. ``text``: the schema as JSON."""
    return '"$' not in text and '"pattern' not in text
