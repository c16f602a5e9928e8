"""Tests for the argument formats of function tools and custom tools. The formats are listed in a table in
``arguments.py``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.each import each
from toolsim.core.plan import Tool
from toolsim.response.arguments import Arguments, custom_input, function_arguments
from toolsim.response.checker import SchemaChecker
from toolsim.response.parsed_call import Elements, Json, ParsedCall, Values

TYPED = Tool(
    "f",
    "f",
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "list": {"type": "array", "items": {"type": "integer"}},
        },
    },
)


def value(source: str) -> Json:
    return Json(source, json.loads(source))


def found(written: ParsedCall, *, repair: bool = True) -> Arguments | None:
    return function_arguments(written, TYPED, SchemaChecker(lambda code, name: None), repair=repair)


@each(
    ("written", "expected"),
    [
        (ParsedCall("", "f", given=value('{ "count" : 1.0 }')), Arguments('{ "count" : 1.0 }', {"count": 1.0})),
        (ParsedCall("", "f", given=value('"{\\"count\\": 1}"')), Arguments('{"count": 1}', {"count": 1})),
        (ParsedCall("", "f", given=value("null")), Arguments("{}", {})),
        (ParsedCall("", "f", given=value('""')), Arguments("{}", {})),
        (ParsedCall("", "f"), Arguments("{}", {})),
        (ParsedCall("", "f", given=value('{"a":1}'), key="args"), Arguments('{"a":1}', {"a": 1}, ("ARGUMENTS_KEY",))),
        (ParsedCall("", "f", given=value("{}"), key=""), None),
        (ParsedCall("", "f", given=value("[1]")), None),
        (ParsedCall("", "f", given=value('"words"')), None),
        (ParsedCall("", "f", broken=True), None),
        (
            ParsedCall("", "f", given=Json("", json.dumps('{"a":1}'))),
            Arguments('{"a":1}', {"a": 1}, lossy_repairs=("DOUBLE_ENCODED",)),
        ),
        (
            ParsedCall("", "f", given=Json("", '{"a":1,}')),
            Arguments('{"a":1}', {"a": 1}, lossy_repairs=("TRAILING_COMMA",)),
        ),
        (
            ParsedCall("", "f", given=Json("", '{"a":1}}')),
            Arguments('{"a":1}', {"a": 1}, lossy_repairs=("EXTRA_BRACE",)),
        ),
        (ParsedCall("", "f", given=Json("", '{"a":1,} X')), None),
        (
            ParsedCall("", "f", given=Json("", ' {"a":1,}')),
            Arguments('{"a":1}', {"a": 1}, lossy_repairs=("TRAILING_COMMA",)),
        ),
    ],
)
def test_json_object_is_verbatim(written: ParsedCall, expected: Arguments | None) -> None:
    """Arguments that are an object are returned verbatim, and missing arguments become ``{}``. For any other value, the
    result is None.
    """
    assert found(written) == expected


def test_plain_forms_are_required_without_repair() -> None:
    """With repairs turned off, alternative keys, doubly encoded strings and syntax errors are not accepted as
    arguments.
    """
    for written in (
        ParsedCall("", "f", given=value("{}"), key="args"),
        ParsedCall("", "f", given=Json("", json.dumps("{}"))),
        ParsedCall("", "f", given=Json("", "{,}")),
    ):
        assert found(written, repair=False) is None
    got = found(ParsedCall("", "f", given=Elements((("arguments", "{'count': 7}"),))), repair=False)
    assert got == Arguments('{"arguments":"{\'count\': 7}"}', {"arguments": "{'count': 7}"})


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ([("count", "7"), ("list", "1"), ("list", "2")], {"count": 7, "list": [1, 2]}),
        ([("count", "1"), ("count", "2")], None),
        ([("arguments", "words")], {"arguments": "words"}),
        ([("arguments", '{"count": 7}')], {"count": 7}),
        ([("arguments", "{'count': 7}")], {"count": 7}),
        ([("parameters", "<count>7</count>")], {"count": 7}),
    ],
)
def test_each_element_is_one_argument(elements: list[tuple[str, str]], expected: Any) -> None:
    """Each XML element is one argument, except that a single element can contain all arguments."""
    got = found(ParsedCall("", "f", given=Elements(tuple(elements))))
    assert (got and got.value) == expected
    assert got is None or json.loads(got.text) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (((None, value('"x"')), (None, value("2"))), '{"text":"x","count":2}'),
        (((None, value('"x"')), ("flag", value("true"))), '{"text":"x","flag":true}'),
        ((("other", value("[1]")),), '{"other":[1]}'),
        (((None, value('"x"')), ("text", value('"y"'))), None),
        (((None, value("1")),) * 20, None),
    ],
)
def test_programming_syntax_values_are_assigned(
    values: tuple[tuple[str | None, Json], ...], expected: str | None
) -> None:
    """In a call in programming syntax, values are assigned to the schema's properties by position or by keyword. A
    property that is assigned twice is rejected.
    """
    got = found(ParsedCall("", "f", given=Values(values)))
    assert (got and got.text) == expected
    assert got is None or got.value == json.loads(got.text)


@each(
    ("written", "expected"),
    [
        (ParsedCall("", "c", given=value('{"input":"x"}')), Arguments("x", "x")),
        (ParsedCall("", "c", given=value('"{\\"input\\":\\"x\\"}"')), Arguments("x", "x")),
        (ParsedCall("", "c", given=value('"plain"')), Arguments("plain", "plain")),
        (ParsedCall("", "c", given=value('"{}"'), key="input"), Arguments("{}", "{}")),
        (ParsedCall("", "c", given=value('"x"'), key="args"), Arguments("x", "x", ("ARGUMENTS_KEY",))),
        (ParsedCall("", "c"), Arguments("", "")),
        (ParsedCall("", "c", given=value('{"other":"x"}')), None),
        (ParsedCall("", "c", given=value("[1]")), None),
        (ParsedCall("", "c", broken=True), None),
        (ParsedCall("", "c", given=Elements(())), Arguments("", "")),
        (ParsedCall("", "c", given=Elements((("input", "a &lt; b"),))), Arguments("a < b", "a < b")),
        (ParsedCall("", "c", given=Elements((("arguments", '{"input":"x"}'),))), Arguments("x", "x")),
        (ParsedCall("", "c", given=Elements((("arguments", "<input>x</input>"),))), Arguments("x", "x")),
        (
            ParsedCall("", "c", given=Elements((("arguments", "{'input': 'x'}"),))),
            Arguments("x", "x", lossy_repairs=("SINGLE_QUOTES",)),
        ),
        (ParsedCall("", "c", given=Elements((("a", "1"), ("b", "2")))), None),
        (
            ParsedCall("", "c", given=Json("", '{"input":"x",}')),
            Arguments("x", "x", lossy_repairs=("TRAILING_COMMA",)),
        ),
    ],
)
def test_input_of_a_custom_tool(written: ParsedCall, expected: Arguments | None) -> None:
    """The input of a custom tool is its ``input`` parameter. A string that replaces the arguments object is also
    accepted.
    """
    assert custom_input(written, repair=True) == expected
