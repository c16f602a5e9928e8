from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.pages.signature import signature

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "items", "enum", "anyOf", "$ref", "const", "x"]), inner
        )
    ),
    max_leaves=20,
)


@each(
    ("schema", "shown"),
    [
        ({"type": "string"}, "p?: string"),
        ({"enum": ["a", "b"]}, 'p?: "a" | "b"'),
        ({"enum": [1, 2, 3, 4, 5]}, "p?: 1 | 2 | 3 | 4 | …"),
        ({"const": None}, "p?: null"),
        ({"type": ["string", "null"]}, "p?: string | null"),
        ({"type": "array", "items": {"type": "integer"}}, "p?: integer[]"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, 'p?: ("a" | "b")[]'),
        ({"type": "array"}, "p?: any[]"),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, "p?: number | null"),
        ({"$ref": "#/$defs/Point"}, "p?: Point"),
        ({"properties": {"x": {}, "y": {}}}, "p?: {x, y}"),
        ({"type": "object"}, "p?: object"),
        ({}, "p?: any"),
        (True, "p?: any"),
    ],
)
def test_types(schema, shown):
    """JSON Schema types are shown in a notation that resembles TypeScript."""
    assert signature({"type": "object", "properties": {"p": schema}}) == shown


def test_required_and_many():
    """In a signature, optional parameters are marked with a question mark. A long list of parameters ends with an
    ellipsis.
    """
    schema = {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", 1, []]}
    assert signature(schema) == "a: string, b?: string"
    assert signature({"properties": {str(n): {} for n in range(20)}}).endswith(", …")
    assert signature(None) == signature({"type": "object"}) == ""
    assert signature({"anyOf": []}) == "…"


@given(JSON)
def test_any_schema(schema):
    """The signature for any schema, even an invalid one, is a single line."""
    assert "\n" not in signature({"properties": {"p": schema}, "required": schema})
    assert isinstance(signature(schema if isinstance(schema, dict) else None), str)
