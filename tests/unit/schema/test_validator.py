from __future__ import annotations

from typing import Any

import pytest
from toolsim.schema import compile_schema

DRAFT7 = "http://json-schema.org/draft-07/schema#"
DRAFT4 = "http://json-schema.org/draft-04/schema#"
ENDLESS = {"pattern": "^(a|a)*$"}
VICTIM = "a" * 60 + "!"


@pytest.mark.parametrize(
    ("schema", "value", "mismatch"),
    [
        ({"properties": {"a": ENDLESS}}, {"a": VICTIM}, False),
        ({"properties": {"a": ENDLESS, "b": {"type": "string"}}}, {"a": VICTIM, "b": 1}, True),
        ({"not": {"properties": {"a": ENDLESS}}}, {"a": VICTIM}, False),
        ({"patternProperties": {ENDLESS["pattern"]: False}, "additionalProperties": False}, {VICTIM: 1}, False),
        ({"patternProperties": {ENDLESS["pattern"]: True}, "unevaluatedProperties": False}, {VICTIM: 1}, False),
        (
            {"allOf": [{"patternProperties": {ENDLESS["pattern"]: True}, "unevaluatedProperties": False}]},
            {VICTIM: 1},
            False,
        ),
        ({"properties": {"a": {"$schema": DRAFT7, **ENDLESS}}}, {"a": VICTIM}, False),
        ({"$schema": DRAFT4, "items": ENDLESS}, [VICTIM] * 50, False),
    ],
)
def test_endless_patterns_are_unsettled(schema: dict[str, Any], value: Any, mismatch: bool) -> None:
    """If the search for a pattern backtracks endlessly, the value is assumed to match the pattern, and the result is
    unsettled.
    """
    finding = compile_schema(schema).examine(value, 0.6)
    assert not finding.settled
    assert (finding.mismatch is not None) == mismatch


def test_endless_references_are_unsettled() -> None:
    """If references grow exponentially, the check runs out of time. If they are endless, it runs out of stack. In both
    cases, the result is unsettled.
    """
    doubling = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**doubling, "d30": {"type": "string"}}}
    assert not compile_schema(schema).examine("a", 0.02).settled
    assert not compile_schema({"$ref": "#"}).examine(1).settled


def test_parts_of_a_schema_are_found() -> None:
    """The validator finds the schemas of properties and items, and their allowed types, through references and
    ``anyOf``. It returns None if there is no such schema.
    """
    validator = compile_schema(
        {
            "$ref": "#/$defs/root",
            "$defs": {
                "root": {"properties": {"a": {"$ref": "#/$defs/list"}}, "additionalProperties": {"type": "null"}},
                "list": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": ["string", "null"]}]},
            },
        }
    )
    a = validator.property("a")
    assert a is not None
    assert a.types() == {"array", "string", "null"}
    assert a.check([1]) is None
    assert a.check(1) is not None
    items = a.items()
    assert items is not None
    assert items.types() == {"integer"}
    assert items.items() is None
    assert items.property("x") is None
    other = validator.property("b")
    assert other is not None
    assert other.types() == {"null"}
    assert compile_schema({"properties": {"a": True}}).property("a").types() == frozenset()  # type: ignore[union-attr]
