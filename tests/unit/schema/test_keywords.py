from __future__ import annotations

from typing import Any

import pytest
from toolsim.schema import compile_schema


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"pattern": "^a"}, 1, "b"),
        ({"patternProperties": {"^a": {"type": "string"}}}, {"a": "x", "b": 1}, {"ab": 1}),
        ({"additionalProperties": {"type": "string"}}, {"a": "x"}, {"a": 1}),
        ({"additionalProperties": False, "patternProperties": {"^a": {}}}, {"a": 1}, {"b": 1}),
        # Here, ``unevaluatedProperties`` is the name of a property. The keyword of this name is removed from schemas
        # with patterns.
        (
            {
                "properties": {"unevaluatedProperties": {"type": "string"}},
                "patternProperties": {"^a": {}},
                "additionalProperties": False,
            },
            {"unevaluatedProperties": "x"},
            {"unevaluatedProperties": 1},
        ),
        ({"uniqueItems": True}, [1, "1", True], [1, 1.0]),
        ({"multipleOf": 0.01}, 19.99, 19.995),
        ({"items": {"type": "integer"}}, [1, 2], [1, "2"]),
        ({"items": {"type": "integer"}, "prefixItems": [{"type": "string"}]}, ["a", 1], ["a", "b"]),
        ({"items": {"type": "integer"}}, {"a": "no array"}, ["a"]),
    ],
)
def test_replaced_keyword_follows_the_specification(schema: dict[str, Any], good: Any, bad: Any) -> None:
    """The keywords that toolsim reimplements behave as defined in the JSON Schema specification."""
    validator = compile_schema(schema)
    assert validator.check(good) is None
    assert validator.check(bad) is not None


@pytest.mark.parametrize(
    ("schema", "member"),
    [
        ({"contains": {"type": "integer"}, "unevaluatedItems": False}, 0),
        ({"unevaluatedItems": {"type": "integer"}}, 0),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "unevaluatedItems": {"type": "integer"}}, 0),
    ],
)
def test_unevaluated_items_of_a_long_array_are_not_searched(schema: dict[str, Any], member: Any) -> None:
    """For a long array, ``unevaluatedItems`` is not checked, because jsonschema would compare all pairs of items."""
    validator = compile_schema(schema)
    assert validator.check([member] * 100) is None
    assert validator.check(["x"] * 100) is not None
    finding = validator.examine([member] * 100_000, 30)
    assert (finding.mismatch, finding.settled) == (None, False)


def test_unevaluated_properties_of_a_large_object_are_not_searched() -> None:
    """``unevaluatedProperties`` is checked for a small object, but not for a large one."""
    validator = compile_schema({"properties": {"a": {}}, "unevaluatedProperties": False})
    assert validator.check({"a": 1}) is None
    assert validator.check({"a": 1, "b": 1}) is not None
    finding = validator.examine(dict.fromkeys(map(str, range(10_000))), 30)
    assert (finding.mismatch, finding.settled) == (None, False)


def test_unique_items_are_not_compared_in_pairs() -> None:
    """Checking the uniqueness of 20,000 items takes much less time than comparing all pairs would."""
    validator = compile_schema({"uniqueItems": True})
    assert validator.examine([{"a": n} for n in range(20_000)], 30).settled
