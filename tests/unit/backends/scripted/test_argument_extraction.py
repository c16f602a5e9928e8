"""Tests for the rules that extract call arguments from sentences, individually and in combination."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.backends.scripted.argument_extraction import fill, unanswered
from toolsim.core.plan import Tool

STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
UNIT = {"type": "string", "enum": ["celsius", "fahrenheit"]}


def tool(name: str, properties: dict[str, Any], required: list[str] | None = None) -> Tool:
    wanted = list(properties) if required is None else required
    return Tool(name, name, parameters={"type": "object", "properties": properties, "required": wanted})


WEATHER = tool("get_weather", {"city": STRING, "unit": UNIT, "days": INTEGER}, ["city"])
TAGGED = tool("f", {"city": STRING, "tags": {"type": "array", "items": STRING}}, ["city"])
LIGHTS = tool("turn_on_lights", {"room": STRING, "dimmed": BOOLEAN}, ["room"])
ADD = tool("add_numbers", {"a": NUMBER, "b": NUMBER})
SUM = tool("sum_all", {"numbers": {"type": "array", "items": NUMBER}})
TAG = tool("tag_note", {"tags": {"type": "array", "items": STRING}})
NOTE = tool("create_note", {"title": STRING, "content": STRING})
EMAIL = tool("send_email", {"to": STRING, "subject": STRING, "body": STRING})
TRANSLATE = tool("translate", {"target_language": STRING, "text": STRING})
FLIGHTS = tool("find_flights", {"from": STRING, "to": STRING, "date": {"type": "string", "format": "date"}})
SEARCH = tool("search_notes", {"query": STRING, "limit": INTEGER}, ["query"])
PAGE = tool("open_page", {"url": STRING})


@each(
    ("wanted", "text", "expected"),
    [
        pytest.param(WEATHER, "the weather in Bonn?", [{"city": "Bonn"}], id="a name"),
        pytest.param(
            WEATHER, "the weather in Bonn and in Paris?", [{"city": "Bonn"}, {"city": "Paris"}], id="two names"
        ),
        pytest.param(WEATHER, "weather in New York, Köln", [{"city": "New York"}, {"city": "Köln"}], id="long names"),
        pytest.param(WEATHER, "weather in Rio de Janeiro", [{"city": "Rio de Janeiro"}], id="a name with small words"),
        pytest.param(WEATHER, "Weather in Bonn. Be quick", [{"city": "Bonn"}], id="no name begins a sentence"),
        pytest.param(WEATHER, "New York weather", [{"city": "New York"}], id="but one of two words may"),
        pytest.param(WEATHER, "weather in bonn and paris", [{"city": "bonn"}, {"city": "paris"}], id="phrases"),
        pytest.param(WEATHER, "the weather in the city please", [{"city": "city"}], id="phrases without stop words"),
        pytest.param(WEATHER, "weather of 'st. ives'", [{"city": "st. ives"}], id="a quotation"),
        pytest.param(
            WEATHER,
            "weather in Bonn and Paris in Fahrenheit for 3 days",
            [{"city": city, "unit": "fahrenheit", "days": 3} for city in ("Bonn", "Paris")],
            id="what is said once is for all calls",
        ),
        pytest.param(WEATHER, "weather in Bonn for 2.5 days", [{"city": "Bonn"}], id="no fraction for an integer"),
        pytest.param(
            WEATHER, "weather in Bonn in C3PO and 10:30", [{"city": "Bonn"}, {"city": "C3PO"}], id="no number"
        ),
        pytest.param(WEATHER, "Weather!", [{"city": "city"}], id="the example where nothing is found"),
        pytest.param(TAGGED, "in Bonn and Paris", [{"city": "Bonn"}, {"city": "Paris"}], id="required slots first"),
        pytest.param(LIGHTS, "lights in the kitchen", [{"room": "kitchen"}], id="an optional boolean"),
        pytest.param(LIGHTS, "dim lights: kitchen", [{"room": "kitchen"}], id="a phrase behind a colon"),
        pytest.param(ADD, "Add 2 and 3.5", [{"a": 2, "b": 3.5}], id="numbers in order"),
        pytest.param(SUM, "the sum of 2, 3 and 5", [{"numbers": [2, 3, 5]}], id="an array of numbers is one call"),
        pytest.param(TAG, "tag it 'red' and 'blue'", [{"tags": ["red", "blue"]}], id="an array of strings"),
        pytest.param(NOTE, "note 'A' with 'b and c'", [{"title": "A", "content": "b and c"}], id="quotations in order"),
        pytest.param(
            EMAIL,
            "email ann@example.com saying 'hi 5'",
            [{"to": "ann@example.com", "subject": "subject", "body": "hi 5"}],
            id="a single quotation is the body",
        ),
        pytest.param(
            TRANSLATE,
            "Translate 'good morning' to French",
            [{"target_language": "French", "text": "good morning"}],
            id="a quotation is free text, a name is not",
        ),
        pytest.param(
            FLIGHTS,
            "flights from Bonn to Paris on 2026-12-24",
            [{"from": "Bonn", "to": "Paris", "date": "2026-12-24"}],
            id="names and dates in order",
        ),
        pytest.param(SEARCH, "notes about bees and honey", [{"query": "bees and honey"}], id="free text is one phrase"),
        pytest.param(SEARCH, "notes for the Bonn trip", [{"query": "the Bonn trip"}], id="free text takes no names"),
        pytest.param(SEARCH, "notes: bees, limit 5", [{"query": "bees, limit", "limit": 5}], id="a number beside it"),
        pytest.param(SEARCH, "search my notes", [{"query": "search my notes"}], id="else the sentence"),
        pytest.param(PAGE, "open https://example.com/a?b=1.", [{"url": "https://example.com/a?b=1"}], id="a URL"),
    ],
)
def test_expected_calls_are_extracted(wanted: Tool, text: str, expected: list[dict[str, Any]]) -> None:
    assert fill(wanted, text) == expected


def test_required_nullable_parameter_is_null() -> None:
    """In strict schemas, a required parameter can allow null. It is set to null if the sentence contains no value for
    it.
    """
    strict = tool("f", {"city": STRING, "note": {"type": ["string", "null"]}, "unit": {"type": ["string", "null"]}})
    assert fill(strict, "in Bonn") == [{"city": "Bonn", "note": None, "unit": None}]


def test_optional_pydantic_fields_are_filled() -> None:
    """Optional fields, which Pydantic declares with ``anyOf`` and null, are filled from the sentence."""
    optional = tool("f", {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, [])
    assert fill(optional, "take 5") == [{"n": 5}]


def test_unanswered_parameters_are_named() -> None:
    """``unanswered`` returns the name of a required parameter for which neither the sentence nor the schema provides a
    value, or None if there is no such parameter.
    """
    assert unanswered(WEATHER, "Weather!") == "city"
    assert unanswered(WEATHER, "Weather in celsius!") is None
    assert unanswered(tool("f", {"unit": UNIT}), "Go") is None
    assert unanswered(tool("f", {"unit": {"type": "string", "default": "x"}}), "Go") is None
    assert unanswered(Tool("f", "f"), "Go") is None


SCHEMAS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.sampled_from(["string", "array", "integer"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "required", "enum", "items", "anyOf", "format", "to", "n"]),
            inner,
            max_size=5,
        )
    ),
)


SENTENCES = st.lists(st.text(max_size=9) | st.sampled_from(["to", "n", "is", "5", "'a'", "Bonn", "and", ":"])).map(
    " ".join
)


@given(st.dictionaries(st.text(max_size=3) | st.just("n"), SCHEMAS, max_size=3), SCHEMAS, SENTENCES)
def test_any_schema_and_sentence_yield_an_object(properties: dict[str, Any], required: Any, text: str) -> None:
    """For any schema and any sentence, the arguments are an object, and no exception is raised."""
    schema = {"type": "object", "properties": properties, "required": required}
    calls = fill(Tool("f", "f", parameters=schema), text)
    unanswered(Tool("f", "f", parameters=schema), text)
    assert calls
    assert all(isinstance(call, dict) for call in calls)
