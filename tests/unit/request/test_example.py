import json

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.each import each
from toolsim.request.example import example_arguments

SCHEMAS = [
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}}, "required": ["city"]},
    {"properties": {"n": {"type": "integer", "minimum": 3, "maximum": 9}}, "required": ["n"]},
    {"properties": {"x": {"type": "number", "exclusiveMaximum": 0}}, "required": ["x"]},
    {"properties": {"x": {"type": "integer", "exclusiveMinimum": 4}}, "required": ["x"]},
    {"properties": {"x": {"type": "string", "minLength": 20}}, "required": ["x"]},
    {"properties": {"x": {"type": "string", "maxLength": 0}}, "required": ["x"]},
    {"properties": {"tags": {"type": "array", "items": {"type": "string"}, "minItems": 1}}, "required": ["tags"]},
    {"properties": {"none": {"type": "array", "maxItems": 0}}, "required": ["none"]},
    {"properties": {"a": {"type": ["null", "boolean"]}, "b": {"type": "null"}}, "required": ["a", "b"]},
    {"properties": {"a": {"anyOf": [{"type": "null"}, {"type": "integer"}]}}, "required": ["a"]},
    {"properties": {"a": {"const": 7}, "b": {"default": [1]}, "c": {"examples": ["eg"]}}, "required": ["a", "b", "c"]},
    {"$defs": {"p/q": {"type": "object", "properties": {"z": {"type": "boolean"}}, "required": ["z"]}},
     "properties": {"p": {"$ref": "#/$defs/p~1q"}}, "required": ["p"]},
    {"properties": {"deep": {"type": "object", "properties": {"deeper": {"type": "string"}}, "required": ["deeper"]}},
     "required": ["deep"]},
]  # fmt: skip


@each("schema", SCHEMAS, ids=json.dumps)
def test_examples_conform(schema):
    """The example generated for a schema conforms to the schema's types, enums, constants, bounds and local
    references.
    """
    jsonschema.validate(example_arguments(schema), schema)


def test_first_property_when_none_is_required():
    """If no property is required, the generated example contains the first property, because an empty example would be
    useless.
    """
    schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    assert example_arguments(schema) == {"a": 1}


@pytest.mark.parametrize("schema", [None, {}, {"type": "string"}, {"enum": ["x"]}, {"const": 1}, {"$ref": "#/nowhere"}])
def test_non_object_schema_yields_no_arguments(schema):
    """The example arguments are empty for a schema that does not describe an object."""
    assert example_arguments(schema) == {}


def test_recursive_schema_has_a_small_example():
    """Even if a schema refers to itself many times, the generated example is small."""
    schema = {"properties": {name: {"$ref": "#"} for name in "abcdefghij"}, "required": list("abcdefghij")}
    assert len(json.dumps(example_arguments(schema))) < 2_000


KEYWORDS = [
    "type",
    "properties",
    "required",
    "items",
    "enum",
    "anyOf",
    "$ref",
    "const",
    "minimum",
    "maxLength",
    "minLength",
]
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers().map(lambda number: 10 ** abs(number % 4_000))
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["object", "array", "integer", "#", "#/properties/a", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYWORDS, "a"]), inner, max_size=5),
)


@given(st.dictionaries(st.sampled_from(KEYWORDS), junk))
@example({"minLength": -(2**63) - 1})
@example({"properties": {"a": {"minLength": 2**64, "maxLength": 2**64}}})
def test_any_schema_yields_a_json_object(schema):
    """Any schema that a client declares has an example that is an object and valid JSON."""
    json.dumps(example_arguments(schema), allow_nan=False)
    assert isinstance(example_arguments(schema), dict)
