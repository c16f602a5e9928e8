"""Tests for compiled schemas, which return the same verdicts as jsonschema. Checks are limited in time, and references
are never fetched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.schema import MAX_SCHEMA_BYTES, SchemaError, compile_schema
from toolsim.schema.errors import MAX_MESSAGE

DRAFT7 = "http://json-schema.org/draft-07/schema#"
DRAFT4 = "http://json-schema.org/draft-04/schema#"
DRAFT2019 = "https://json-schema.org/draft/2019-09/schema"

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, 2.0]) | st.text("ab", max_size=3)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
)
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.booleans()
    | st.builds(
        lambda key, value: {key: value},
        st.just("type"),
        st.sampled_from(["string", "integer", "number", "array", "object", "boolean", "null"]),
    )
    | st.builds(lambda values: {"enum": values}, st.lists(SCALARS, min_size=1, max_size=3))
    | st.builds(lambda text: {"pattern": text}, st.sampled_from(["^a", "b$", "a+b", ""]))
    | st.builds(lambda number: {"multipleOf": number}, st.sampled_from([1, 2, 0.5])),
    lambda inner: (
        st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
                "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=2),
                "additionalProperties": inner,
                "items": inner,
                "prefixItems": st.lists(inner, min_size=1, max_size=2),
                "uniqueItems": st.booleans(),
                "required": st.lists(st.text("ab", max_size=2), unique=True, max_size=2),
            },
        )
        | st.builds(
            lambda key, schemas: {key: schemas},
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=2),
        )
        | st.builds(lambda schema: {"not": schema}, inner)
    ),
    max_leaves=6,
)


@given(SCHEMAS.filter(lambda schema: isinstance(schema, dict)), VALUES)
def test_agrees_with_jsonschema(schema: dict[str, Any], value: Any) -> None:
    """For any schema and value, a compiled schema accepts the value if and only if jsonschema does."""
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    validator = compile_schema(schema)
    assert (validator.check(value) is None) == expected


@each(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, 1.0, 1.5),
        ({"$schema": DRAFT7, "items": [{"type": "string"}], "additionalItems": False}, ["a"], ["a", "b"]),
        ({"$schema": DRAFT4, "minimum": 3, "exclusiveMinimum": True}, 4, 3),
        ({"$schema": DRAFT2019, "properties": {"a": {"$recursiveRef": "#"}}, "type": "object"}, {"a": {}}, {"a": 1}),
        ({"$schema": "urn:something-else", "prefixItems": [{"type": "string"}]}, ["a"], [1]),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, "a", 1),
        ({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "string"}}}, "a", 1),
        ({"$id": "https://x.test/a", "$ref": "b", "$defs": {"b": {"$id": "b", "type": "string"}}}, "a", 1),
        ({"$ref": "#/elsewhere/a", "elsewhere": {"a": {"type": "string"}}}, "a", 1),
        ({"properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, {"a": {"a": {}}}, {"a": {"b": {}}}),
        ({"properties": {"a": {"$schema": DRAFT4, "pattern": "^a"}}}, {"a": "ab"}, {"a": "b"}),
        ({"properties": {"$schema": {"type": "string"}}}, {"$schema": "x"}, {"$schema": 1}),
        ({"const": {"$schema": "x"}}, {"$schema": "x"}, {}),
        ({"pattern": r"^\p{Lu}"}, "É", "é"),
        ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}, {"a": True}], [{"a": [1, 2]}, {"a": [1.0, 2]}]),
        ({"multipleOf": 0.01}, 19.99, 19.999),
        ({"multipleOf": 0.1}, 10**400, 0.05),
        ({"unevaluatedProperties": False, "properties": {"a": {}}}, {"a": 1}, {"b": 1}),
        ({"items": {"$id": "https://x.test/i", "type": "string"}}, ["a"], [1]),
        (
            {"items": {"$id": "https://x.test/i", "$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}},
            ["a"],
            [1],
        ),
    ],
)
def test_dialects_and_references(schema: dict[str, Any], good: Any, bad: Any) -> None:
    """``$schema`` selects the JSON Schema dialect. References within the schema are resolved, and numbers are compared
    as decimals.
    """
    validator = compile_schema(schema)
    assert validator.check(good) is None
    assert validator.check(bad) is not None


@each(
    "schema",
    [
        {"type": "nonsense"},
        {"properties": []},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$schema": DRAFT7, "$ref": DRAFT7},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#nowhere"},
        {"anyOf": [{"properties": {"a": {"items": {"$ref": "other.json"}}}}]},
        {"allOf": [{"$ref": "#/$defs/missing"}, {"$ref": "#"}]},
        {"$ref": "#/elsewhere", "elsewhere": {"type": 5}},
        {"$ref": "#/elsewhere", "elsewhere": "a"},
        {"pattern": "("},
        {"pattern": "(?:(?:a{1000}){1000}){1000}"},
        {"patternProperties": {"[": {}}},
        {"$schema": 5},
        {"$schema": "http://[bad"},
        {"a": {1, 2}},
        {"a": 10**5000},
    ],
)
def test_unusable_schemas(schema: dict[str, Any]) -> None:
    """An invalid schema, or a schema with an external reference, is rejected with a one-line message when it is
    compiled.
    """
    with pytest.raises(SchemaError) as caught:
        compile_schema(schema)
    assert "\n" not in str(caught.value)
    assert 0 < len(str(caught.value)) <= MAX_MESSAGE


def test_first_error_is_reported() -> None:
    """If a schema contains several errors, the first error by position is reported, so that all processes report the
    same error.
    """
    broken = {"properties": {name: {"minimum": name} for name in "gbfaced"}, "required": "a"}
    with pytest.raises(SchemaError, match=r"^/properties/a/minimum: got string, expected number$"):
        compile_schema(broken)


def test_deep_nesting_is_rejected_or_unsettled() -> None:
    """A schema that is nested too deeply is rejected. If a value is nested too deeply, the result of its check is
    unsettled, and no exception is raised.
    """
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(50_000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(SchemaError):
        compile_schema(schema)
    value: dict[str, Any] = {}
    for _ in range(5_000):
        value = {"a": value}
    assert not compile_schema({"properties": {"a": {"$ref": "#"}}}).examine(value).settled


def test_references_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling a schema does not open connections or files to resolve its references."""
    compile_schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {}}}
    )  # The first compilation imports modules, which opens files.
    opened: list[object] = []

    def forbidden(*given: Any, **_: Any) -> None:
        opened.append(given)
        raise OSError

    for name in ("socket.socket.connect", "socket.create_connection", "urllib.request.urlopen", "builtins.open"):
        monkeypatch.setattr(name, forbidden)
    for reference in ("http://127.0.0.1:9/x", "file:///etc/passwd", "https://example.com/schema.json#/a"):
        with pytest.raises(SchemaError, match="does not resolve"):
            compile_schema({"properties": {"a": {"$ref": reference}}})
    assert opened == []


def test_equal_schemas_share_a_validator() -> None:
    """Equal schemas share one validator. It is not affected if the client's schema object is changed later."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    validator = compile_schema(schema)
    assert compile_schema({"properties": {"a": {"type": "integer"}}, "type": "object"}) is validator
    schema["properties"]["a"]["type"] = "string"  # type: ignore[index]
    assert validator.check({"a": 1}) is None
    assert compile_schema(schema) is not validator


@pytest.mark.parametrize("char", ["a", "\x7f", "\u2028", "\U0001f600"])
def test_size_limit_applies_to_the_ascii_form(char: str) -> None:
    """The size limit applies to the schema as ASCII JSON, regardless of how the client encoded it."""
    room = MAX_SCHEMA_BYTES - len(json.dumps({"description": ""}))
    size = len(json.dumps(char)) - 2
    fits = char * (room // size)
    compile_schema({"description": fits})
    with pytest.raises(SchemaError, match="too large"):
        compile_schema({"description": fits + char})


def test_schema_is_compiled_without_jsonschema() -> None:
    """jsonschema is imported only for the first check, not for compiling a schema, because most tools in a catalog are
    never called.
    """
    code = (
        "import sys; from toolsim.schema import compile_schema; "
        "schema = compile_schema({'properties': {'a': {'type': 'integer'}}}); "
        "assert 'jsonschema' not in sys.modules; assert schema.check({'a': 'x'}); assert 'jsonschema' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": os.pathsep.join(sys.path)})
