from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.core.plan import Tool
from toolsim.response.checker import SchemaChecker
from toolsim.response.parsed_call import Json
from toolsim.response.value_types import ElementTypes

TYPED = Tool(
    "f",
    "f",
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "flag": {"type": "boolean"},
            "maybe": {"type": ["integer", "null"]},
            "list": {"type": "array", "items": {"type": "integer"}},
            "words": {"type": "array", "items": {"type": "string"}},
            "either": {"type": ["integer", "array"], "items": {"type": "integer"}},
            "unit": {"enum": ["km", "mi"]},
            "place": {"type": "object", "properties": {"lat": {"type": "number"}}},
        },
    },
)


def typed(*elements: tuple[str, str], repair: bool = True) -> Json | None:
    checker = SchemaChecker(lambda code, name: None)
    return ElementTypes(checker, repair=repair).object(elements, checker.schema(TYPED))


@each(
    ("elements", "expected"),
    [
        ([("text", "7")], {"text": "7"}),
        ([("count", " 7 ")], {"count": 7}),
        ([("flag", "True")], {"flag": True}),
        ([("maybe", "None")], {"maybe": None}),
        ([("list", "1"), ("list", "2")], {"list": [1, 2]}),
        ([("list", "1")], {"list": [1]}),
        ([("list", "[1,2]")], {"list": [1, 2]}),
        ([("count", "many")], {"count": "many"}),
        ([("other", "{}")], {"other": "{}"}),
        ([("either", "1")], {"either": 1}),
        ([("either", "1"), ("either", "2")], {"either": [1, 2]}),
        ([("unit", " km ")], {"unit": "km"}),
        ([("place", "<lat>1.5</lat>")], {"place": {"lat": 1.5}}),
        ([("count", "<lat>1.5</lat>")], {"count": "<lat>1.5</lat>"}),
        ([("text", "a &lt; b")], {"text": "a < b"}),
        ([("text", "\n  two\nlines\n")], {"text": "  two\nlines"}),
        ([("count", "1"), ("count", "2")], None),
        ([("place", " {'lat': 1.5, 'at': True,} ")], {"place": {"lat": 1.5, "at": True}}),
        ([("list", "['7', '8']")], {"list": "['7', '8']"}),
        ([("words", "['7', '8']")], {"words": ["7", "8"]}),
        ([("words", "[draft]")], {"words": ["[draft]"]}),
        ([("list", "[7, 8,]")], {"list": [7, 8]}),
        ([("place", "{'lat': 'north'}")], {"place": "{'lat': 'north'}"}),
        ([("place", "{'lat': 1.5} and more")], {"place": "{'lat': 1.5} and more"}),
        ([("text", "{'lat': 1.5}")], {"text": "{'lat': 1.5}"}),
        ([("other", "{'lat': 1.5}")], {"other": "{'lat': 1.5}"}),
    ],
)
def test_elements_are_typed_by_the_schema(elements: list[tuple[str, str]], expected: Any) -> None:
    """The text of an XML element is converted to the type of its property. If the schema allows strings, the text
    remains a string.
    """
    got = typed(*elements)
    assert (got and got.value) == expected
    assert got is None or json.loads(got.source) == expected


@pytest.mark.parametrize("element", [("place", "{'lat': 1.5}"), ("list", "[7,]")])
def test_value_with_a_slip_stays_text_without_repairs(element: tuple[str, str]) -> None:
    """With repairs turned off, a value with a syntax error remains text, but Python literals such as ``True`` are still
    converted.
    """
    assert typed(element, repair=False) == Json("{" + ":".join(map(json.dumps, element)) + "}", dict([element]))
    assert typed(("flag", "True"), repair=False) == Json('{"flag":true}', {"flag": True})


# Text that ends in a carriage return is excluded: it would become part of a line ending, which is stripped.
@given(st.dictionaries(st.sampled_from(["text", "other"]), st.text().filter(lambda text: not text.endswith("\r"))))
def test_string_elements_are_unchanged(values: dict[str, str]) -> None:
    """If an element is of type string, its text reaches the client unchanged."""
    elements = tuple((key, text.replace("&", "&amp;").replace("<", "&lt;")) for key, text in values.items())
    got = typed(*((key, f"\n{text}\n") for key, text in elements))
    assert got is not None
    assert json.loads(got.source) == values


def test_non_ascii_text_is_not_escaped() -> None:
    """Non-ASCII characters reach the client as they are, rather than as escapes."""
    for element in (("text", "é"), ("unit", " é ")):
        got = typed(element)
        assert got is not None
        assert "é" in got.source


def test_values_are_converted_without_time_for_checks() -> None:
    """Values are converted to their declared types even if no time is left for schema checks."""
    spent = SchemaChecker(lambda code, name: None, seconds=0.0)
    elements = (("text", "5"), ("count", "5"), ("flag", "true"))
    got = ElementTypes(spent, repair=True).object(elements, spent.schema(TYPED))
    assert got is not None
    assert got.value == {"text": "5", "count": 5, "flag": True}
