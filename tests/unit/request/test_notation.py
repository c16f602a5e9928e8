"""Tests for the slot notation, in which a template such as ``{"city": <string>}`` describes the arguments. The template
is generated from a schema, and can be parsed.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.pages.read_prompt import read_template
from toolsim.request.notation import SlotNotation, slot_type


def an_object(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or []}


@each(
    ("schema", "written"),
    [
        ({}, "{}"),
        (an_object(), "{}"),
        (an_object(["city"], city={"type": "string"}), '{"city": <string>}'),
        (
            an_object(n={"type": "integer", "minimum": 1, "default": 3}),
            '{"n": <integer, minimum 1, default 3, optional>}',
        ),
        (an_object(["u"], u={"type": "string", "enum": ["c", "f"]}), '{"u": <"c" | "f">}'),
        (an_object(["u"], u={"const": None}), '{"u": <null>}'),
        (an_object(["a"], a={"type": "array", "items": {"type": "string"}}), '{"a": <string[]>}'),
        (an_object(["a"], a={"type": "array", "items": {"enum": [1, 2]}}), '{"a": <(1 | 2)[]>}'),
        (an_object(["a"], a={"type": "array"}), '{"a": <any[]>}'),
        (an_object(["a"], a={"type": ["string", "null"]}), '{"a": <string | null>}'),
        (an_object(["a"], a={"anyOf": [{"type": "string"}, {"type": "null"}]}), '{"a": <string | null>}'),
        (an_object(["a"], a=an_object(["b"], b={"type": "number"})), '{"a": {"b": <number>}}'),
        (an_object(["a"], a={"type": "array", "items": an_object(["b"], b={})}), '{"a": [{"b": <any>}, ...]}'),
        (an_object(["a"], a={"$ref": "#/$defs/x"}), '{"a": <any>}'),
        (an_object(['"']), "{}"),
        (an_object(['"'], **{'"': {"type": "string", "pattern": '^">$'}}), r'{"\"": <string, pattern "^\">$">}'),
    ],
)
def test_template(schema: dict[str, Any], written: str) -> None:
    """Each kind of schema is shown as a slot in the template, and the template is a single line."""
    assert SlotNotation(schema).template == written


@each(
    ("schema", "expressible"),
    [
        (an_object(city={"type": "string", "title": "City", "description": "x"}), True),
        (an_object(a={"type": "string", "default": {"any": "thing"}}) | {"additionalProperties": False}, True),
        (an_object(a={"$ref": "#/$defs/x"}) | {"$defs": {"x": {}}}, False),
        (an_object(a={"allOf": [{"type": "string"}]}), False),
        (an_object(a={"anyOf": [an_object(b={})]}), False),
        (an_object(a={"type": "array", "prefixItems": [{"type": "string"}]}), False),
        (an_object(a=True), False),
        (an_object(a={"type": "array", "items": {"type": "array", "items": None}}), False),
        (an_object(a={"anyOf": [{"properties": None}]}), False),
        (an_object(a={"type": "array", "items": an_object(b={"properties": None})}), False),
        (an_object() | {"patternProperties": {"x": {}}}, False),
        (an_object() | {"additionalProperties": {"type": "string"}}, False),
        ({"type": "nothing"}, False),
    ],
)
def test_inexpressible_schemas_are_reported(schema: dict[str, Any], expressible: bool) -> None:
    """Schemas with references, conditions or rules for property names are reported as inexpressible in the slot
    notation.
    """
    assert SlotNotation(schema).is_all is expressible


def test_descriptions_are_listed_below_by_path() -> None:
    """Below the template, there is a note for each property with a description and for each optional object. The note
    begins with the property's path.
    """
    inner = an_object(["q"], q={"type": "number", "description": "Quantity.\nWhole."})
    schema = an_object(
        ["city"],
        city={"type": "string", "description": "Name."},
        plain={"type": "string"},
        where=an_object(x={"type": "string", "description": "Far"}),
        lines={"type": "array", "items": inner, "description": "Order"},
    )
    assert SlotNotation(schema).notes == [
        "  city: Name.",
        "  where (optional):",
        "  where.x: Far",
        "  lines (optional): Order",
        "  lines[].q: Quantity.\n    Whole.",
    ]


def test_notes_follow_the_template() -> None:
    """The path at the beginning of each note exists in the template, even if the schema describes both an object and a
    list.
    """
    q = {"type": "number", "description": "Quantity"}
    shown = SlotNotation(an_object(["a"], a=an_object(["q"], q=q) | {"items": an_object(p=q)}))
    assert shown.template == '{"a": {"q": <number>}}'
    assert shown.notes == ["  a.q: Quantity"]


SCALARS = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer", "minimum": 2},
        {"type": ["number", "null"]},
        {"enum": ["a<b>", '"', 1, None]},
    ]
)
PLAIN = st.sampled_from([{"type": "string"}, {"type": "array", "items": {"type": "integer"}}, {"enum": [1, "|"]}])
SCHEMAS = st.recursive(
    st.one_of(SCALARS, PLAIN.map(lambda items: {"type": "array", "items": items})),
    lambda inner: st.one_of(
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(lambda fields: an_object(list(fields), **fields)),
        st.dictionaries(st.text(max_size=3), inner, max_size=2).map(
            lambda fields: {"type": "array", "items": an_object(list(fields), **fields)}
        ),
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=4), SCHEMAS, max_size=4), st.data())
def test_template_is_read_back(properties: dict[str, Any], data: st.DataObject) -> None:
    """If a schema contains only plain types, objects and lists, parsing its template returns an identical schema."""
    scalars = [
        name for name, schema in properties.items() if SlotNotation(an_object(a=schema)).template.startswith('{"a": <')
    ]
    optional = data.draw(st.sets(st.sampled_from(scalars))) if scalars else set()
    schema = an_object([name for name in properties if name not in optional], **properties)
    assert SlotNotation(schema).is_all
    written = SlotNotation(schema).template
    assert len(written.splitlines()) <= 1 or "\n" not in written
    assert read_template(written) == schema


@given(st.text(alphabet='{}[]<>":, .a|\\', max_size=40))
def test_any_line_is_parsed_without_an_exception(text: str) -> None:
    """Parsing an arbitrary line returns a schema or None, and never raises an exception."""
    assert read_template(text) is None or isinstance(read_template(text), dict)


@pytest.mark.parametrize("depth", [3, 50, 5000])
def test_depth_is_bounded(depth: int) -> None:
    """A template is generated for a schema of any depth, but a deeply nested template is not parsed."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(min(depth, 300)):
        schema = an_object(["a"], a=schema)
    assert SlotNotation(schema).template.startswith('{"a": ')
    assert SlotNotation(schema).is_all is (depth == 3)
    assert (read_template('{"a": ' * depth + "<string>" + "}" * depth) is None) is (depth > 3)


@pytest.mark.parametrize("schema", [{"type": 7}, {"type": ["string", 7]}, {"enum": []}, {"anyOf": [7]}, {"items": 7}])
def test_invalid_types_are_shown_as_slots(schema: dict[str, Any]) -> None:
    """Even an invalid type in a client's schema is shown as a slot."""
    assert re.fullmatch(r"[a-z0-9 |]+", slot_type(schema))
    assert json.dumps(SlotNotation(an_object(a=schema)).template)
