from __future__ import annotations

from typing import Any

import pytest
from toolsim.schema import compile_schema
from toolsim.schema.errors import MAX_MESSAGE, MAX_OUTLINE


def test_mismatch_names_path_and_reason() -> None:
    """A mismatch message begins with the path, has a maximum length, and can always be encoded as UTF-8. It states the
    reason even if the value is long.
    """
    validator = compile_schema({"properties": {"a": {"items": {"type": "integer"}}, "b": {"enum": [1]}}})
    assert validator.check({"a": [1, "x"]}) == "/a/1: got string, expected integer"
    long = validator.check({"b": "x" * 10_000})
    assert long is not None
    assert len(long) == MAX_MESSAGE
    assert long.startswith("/b: 'xx")
    assert long.endswith("is not one of [1]")
    odd = compile_schema({"additionalProperties": {"type": "integer"}}).check({"\ud800": "\udfff"})
    assert odd is not None
    odd.encode()


@pytest.mark.parametrize(
    ("value", "types"),
    [
        (None, "null"),
        (True, "boolean"),
        (1.5, "number"),
        ([1], "array"),
        ({"a": 1}, "object"),
    ],
)
def test_types_have_json_names(value: object, types: str) -> None:
    """Mismatch messages use the JSON names of types and join several expected types with "or". A slash in a property
    name is escaped.
    """
    validator = compile_schema({"properties": {"a/b": {"type": ["string", "integer"]}}})
    assert validator.check({"a/b": value}) == f"/a~1b: got {types}, expected string or integer"
    assert compile_schema({"type": "object"}).check([]) == "/: got array, expected object"


@pytest.mark.parametrize(
    ("schema", "value", "outline"),
    [
        ({"properties": {"days": {"type": "integer"}}}, {"days": "secret"}, "/days: got string, expected integer"),
        (
            {"properties": {"days": {"type": ["integer", "null"]}}},
            {"days": "s"},
            "/days: got string, expected integer or null",
        ),
        ({"required": ["a", "b", "c"]}, {"b": "secret"}, "/: lacks a, c"),
        ({"properties": {"a": {"items": {"enum": [1]}}}}, {"a": [1, "s"]}, "/a/1: is not one of the allowed values"),
        ({"additionalProperties": False}, {"secret": 1}, "/: has an unexpected property"),
        ({"properties": {"a": {"maxLength": 1}}}, {"a": "secret"}, "/a: breaks maxLength"),
        ({"unevaluatedProperties": False}, {"secret": 1}, "/: has an unexpected property"),
        ({"not": {}}, "secret", "/: breaks not"),
        ({"properties": {"a~/b": {"not": {}}}}, {"a~/b": "secret"}, "/a~0~1b: breaks not"),
    ],
)
def test_outline_quotes_no_value(schema: Any, value: Any, outline: str) -> None:
    """The outline of a mismatch contains its location and the expected type, but never a value."""
    found = compile_schema(schema).examine(value)
    assert found.outline == outline
    assert "secret" not in found.outline


def test_outline_has_a_maximum_length() -> None:
    """The outline of a mismatch does not exceed its maximum length and can always be encoded as UTF-8, regardless of
    the property names.
    """
    fits = "x" * (MAX_OUTLINE - len("/: breaks not"))
    assert compile_schema({"properties": {fits: {"not": {}}}}).examine({fits: 1}).outline == f"/{fits}: breaks not"
    found = compile_schema({"additionalProperties": {"type": "integer"}}).examine({"\ud800" + "x" * 1000: "y"})
    assert len(found.outline) == MAX_OUTLINE
    found.outline.encode()
