from __future__ import annotations

import pytest
from toolsimlib.schema import compile_schema
from toolsimlib.schema.errors import MAX_MESSAGE


def test_mismatch_says_where_and_why() -> None:
    """A message begins with the path and keeps the reason, however long the value; it can always be encoded."""
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
    ("value", "told"),
    [
        (None, "null"),
        (True, "boolean"),
        (1.5, "number"),
        ([1], "array"),
        ({"a": 1}, "object"),
    ],
)
def test_types_are_named_as_json_names_them(value: object, told: str) -> None:
    """Both types are told in the schema's words, several with "or"; a path's own slashes are escaped."""
    validator = compile_schema({"properties": {"a/b": {"type": ["string", "integer"]}}})
    assert validator.check({"a/b": value}) == f"/a~1b: got {told}, expected string or integer"
    assert compile_schema({"type": "object"}).check([]) == "/: got array, expected object"
