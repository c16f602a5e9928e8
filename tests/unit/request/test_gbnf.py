"""Tests for grammars. A GBNF engine checks their syntax, and jsonschema checks which values they accept."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import engine_grammar
from support.each import each
from toolsim.core.plan import Tool
from toolsim.request import gbnf
from toolsim.request.gbnf import TooLarge, call_grammar

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/a~1b"}, "v": {}}, "additionalProperties": False}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def accepts(schema: dict[str, Any]) -> Callable[[Any], bool]:
    """Return a function that checks call arguments against the grammar for a tool with the given schema."""
    tool = Tool("f", "f")
    engine = engine_grammar.gbnf(call_grammar([(tool, schema)], "t", required=True, untagged=True, limit=1))
    return lambda arguments: engine(f'<t>{{"name": "f", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}</t>')


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


# Each schema has a list of values, some of which conform to it. The grammar must accept the same values as jsonschema.
SCHEMAS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "strings": (CITY, [{"city": "Bonn"}, {"city": 'a"\\\n\u0000é😀'}, {"city": ""}, {"city": 1}, {}, {"town": "Bonn"}]),
    "order and what may be left out": (
        closed(a={"type": "integer"}, b={"type": "boolean"}, c={"type": "null"}) | {"required": ["b"]},
        [{"b": True}, {"a": -12, "b": False}, {"a": 0, "b": True, "c": None}, {"b": True, "c": None}, {"a": 1}, {}],
    ),
    "nothing is required": (
        closed(a={"type": "integer"}, b={"type": "integer"}),
        [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}],
    ),
    "numbers": (closed(n={"type": "number"}), [{"n": value} for value in (0, -1, 2.5, 1e20, 1.5e-9, "1", None)]),
    "integers": (closed(n={"type": "integer", "minimum": 0}), [{"n": value} for value in (0, 12, 2.5, -1, "1")]),
    "a small range": (
        closed(n={"type": "integer", "minimum": -1, "maximum": 2}),
        [{"n": value} for value in (-2, -1, 0, 2, 3)],
    ),
    "enums": (
        closed(u={"enum": ["c", 'f"', 1, None, {"k": [1]}]}),
        [{"u": value} for value in ("c", 'f"', 1, None, {"k": [1]}, "d")],
    ),
    "a constant": (closed(u={"const": "x"}), [{"u": "x"}, {"u": "y"}]),
    "several types": (closed(u={"type": ["string", "null"]}), [{"u": "x"}, {"u": None}, {"u": 1}]),
    "a union": (
        closed(u={"anyOf": [{"type": "integer"}, CITY]}),
        [{"u": 1}, {"u": {"city": "x"}}, {"u": {}}, {"u": "x"}],
    ),
    "a union beside properties": (
        {"type": "object", "oneOf": [closed(a={"type": "integer"}) | {"required": ["a"]}, CITY]},
        [{"a": 1}, {"city": "x"}, {"a": "x"}],
    ),
    "all of": (
        {
            "allOf": [{"$ref": "#/$defs/x"}, {"properties": {"b": {"type": "null"}}, "required": ["b"]}],
            "$defs": {"x": CITY | {"additionalProperties": True}},
        },
        [{"city": "x", "b": None}, {"city": "x", "b": 1}, {"b": None}],
    ),
    "all of one that contains itself": (
        {
            **closed(a={"allOf": [{"$ref": "#/$defs/node"}], "description": "The first."}),
            "$defs": {"node": closed(next={"allOf": [{"$ref": "#/$defs/node"}]}, v={"type": "integer"})},
        },
        [{"a": {}}, {"a": {"next": {"next": {"v": 1}}}}, {"a": {"next": {"v": "x"}}}, {"a": 1}],
    ),
    "arrays": (
        closed(a={"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}),
        [{"a": value} for value in ([], [1], [1, 2, 3], [1, 2, 3, 4], ["x"], 1)],
    ),
    "arrays of anything": (closed(a={"type": "array"}), [{"a": []}, {"a": [1, "x", [None, {"k": True}]]}, {"a": {}}]),
    "no items": (closed(a={"type": "array", "maxItems": 0}), [{"a": []}, {"a": [1]}]),
    "a tuple": (
        closed(
            a={"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2}
        ),
        [{"a": [1, "x"]}, {"a": ["x", 1]}, {"a": [1]}],
    ),
    "lengths": (
        closed(s={"type": "string", "minLength": 2, "maxLength": 3}),
        [{"s": value} for value in ("a", "ab", "äöü", "abcd")],
    ),
    "a reference to itself": (
        {
            "type": "object",
            "properties": {"root": {"$ref": "#/$defs/a~1b"}},
            "additionalProperties": False,
            "$defs": {"a/b": NODE},
        },
        [{"root": {}}, {"root": {"next": {"next": {"v": 1}}}}, {"root": {"other": 1}}, {"root": 1}],
    ),
    "the whole as its part": (
        closed(child={"$ref": "#"}, n={"type": "integer"}),
        [{"child": {"child": {"n": 1}}}, {"child": {"child": 1}}],
    ),
    "any object": ({"type": "object"}, [{}, {"a": 1, "b": {"c": []}}]),
    "further properties": (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}},
        [{}, {"a": 1}, {"a": 1, "x": True, "y": False}, {"x": True}, {"x": 1}],
    ),
    "a required name without a schema": (
        {"type": "object", "required": ["x"], "additionalProperties": False, "properties": {"x": True}},
        [{"x": [1]}, {}],
    ),
}


@each("kind", SCHEMAS)
def test_grammar_accepts_exactly_conforming_values(kind: str) -> None:
    """For each kind of schema, the grammar accepts a value if and only if the value conforms to the schema."""
    schema, values = SCHEMAS[kind]
    validator = jsonschema.Draft202012Validator(schema)
    accepted = accepts(schema)
    assert any(map(validator.is_valid, values))
    for value in values:
        assert accepted(value) == validator.is_valid(value), value


@each(
    "schema",
    [
        closed(s={"type": "string", "pattern": "^a$"}),
        closed(s={"type": "string", "format": "date"}),
        closed(s={"not": {"type": "integer"}}),
        closed(s={"type": "string", "maxLength": 100_000}),
        closed(s={"$ref": "#/$defs/missing"}),
        closed(s={"$ref": "https://example.com/schema"}),
        closed(s={"$ref": "#/properties/s"}),
        {"type": "object", "properties": {"s": True}, "patternProperties": {"^x": {}}},
        {"type": "object", "properties": {"s": True, "o": {"type": "object", "required": True}}},
        {"allOf": [{"properties": {"s": True}, "required": None}, {"properties": None}]},
    ],
)
def test_inexpressible_schema_is_accepted_broadly(schema: dict[str, Any]) -> None:
    """If a grammar cannot express a schema exactly, it accepts some values that do not conform to the schema, rather
    than rejecting values that do.
    """
    assert accepts(schema)({"s": "a"})


TEXTS = ["", "hello", "a < b, <tool>, <<t", "<", "<to>", "</tool_call>", "two\nlines ```\n{}"]
WEATHER = '<tool_call>{"name": "get_weather", "arguments": {"city": "Bonn"}}</tool_call>'
TIME = '<tool_call>\n{"name": "a.time", "arguments": {}}\n</tool_call>'
TOOLS = [(Tool("get_weather", "get_weather"), CITY), (Tool("a.time", "time"), {"type": "object"})]


def engine(*, required: bool = False, untagged: bool = True, limit: int = 0) -> Callable[[str], bool]:
    return engine_grammar.gbnf(call_grammar(TOOLS, "tool_call", required=required, untagged=untagged, limit=limit))


@pytest.mark.parametrize("text", TEXTS)
def test_free_text_is_accepted_before_a_call(text: str) -> None:
    """The grammar allows free text before a call, but not after it. An answer can also consist of free text alone. If a
    call is required, no free text is allowed.
    """
    free, demanded = engine(), engine(required=True)
    assert free(text)
    assert free(text + WEATHER)
    assert not demanded(text)
    assert demanded(text + WEATHER) == (text == "")
    assert free(WEATHER + text) == (text == "")


def test_tagged_block_must_contain_a_call() -> None:
    """In the grammar, a tagged block must contain a call to an offered tool that conforms to the tool's schema."""
    accepted = engine()
    assert accepted(TIME)
    for wrong in ("<tool_call>", "<tool_call>{}</tool_call>", WEATHER.replace("get_weather", "other"), WEATHER[:-1]):
        assert not accepted(wrong)
        assert not accepted(f"text {wrong}")
    assert not accepted(TIME.replace("a.time", "get_weather"))


@pytest.mark.parametrize("between", ["", "\n"])
def test_several_calls_are_accepted(between: str) -> None:
    """The grammar accepts several calls, up to the limit, either one after another or as a list in one block."""
    call, time = WEATHER[len("<tool_call>") : -len("</tool_call>")], '{"name": "a.time", "arguments": {}}'
    two, listed = f"{WEATHER}{between}{TIME}", f"<tool_call>\n[{call},{between}{time}]\n</tool_call>"
    for text in (two, listed):
        assert engine()(text)
        assert engine(required=True)(text)
        assert engine(limit=2)(text)
        assert not engine(limit=1)(text)
    assert engine()(f"{listed}{between}{two}")
    assert not engine(limit=2)(f"{two}{between}{TIME}")
    assert not engine(limit=2)(listed.replace(time, f"{time}, {time}"))
    for limit in (0, 1):
        assert engine(limit=limit)(WEATHER)
        assert engine(limit=limit)(f"<tool_call>[{call}]</tool_call>")
    assert not engine()("<tool_call>[]</tool_call>")
    assert not engine()(listed.replace("a.time", "other"))


@pytest.mark.parametrize("around", ["{}", "{}\n", "```\n{}\n```", "```json\n{}\n```\n"])
def test_required_call_without_the_tag(around: str) -> None:
    """If untagged calls are allowed, the grammar accepts required calls as a list or as objects on separate lines, with
    or without a code fence.
    """
    call, time = WEATHER[len("<tool_call>") : -len("</tool_call>")], '{"name": "a.time", "arguments": {}}'
    for calls, number in ((call, 1), (f"[{call}]", 1), (f"[{call}, {time}]", 2), (f"{time}\n{call}", 2)):
        text = around.format(calls)
        assert engine(required=True)(text)
        assert engine(required=True, limit=1)(text) == (number == 1)
        assert not engine(required=True, untagged=False)(text)
        assert not engine(required=True)(f"{text}\nDone.")
        assert not engine(required=True)(text.replace("get_weather", "other").replace("a.time", "other"))


def test_whitespace_within_a_call() -> None:
    """The grammar accepts whitespace that models usually write within a call, up to a maximum length, whether the call
    is on one line or indented.
    """
    spread = json.dumps({"name": "get_weather", "arguments": {"city": "Bonn"}}, indent=4)
    assert engine()(f"<tool_call>\n{spread}\n</tool_call>")
    assert not engine()(WEATHER.replace('{"city"', '{  "city"'))
    assert not engine()(WEATHER.replace('{"city"', '{\n\n"city"'))
    assert not engine()(WEATHER.replace('{"city"', "{\n" + " " * 41 + '"city"'))


@given(st.text(alphabet='<tolca_/>{}"x\n', max_size=40))
def test_text_without_the_tag(text: str) -> None:
    """If calls are optional, the grammar accepts any text without an opening tag. It rejects an opening tag that is not
    followed by a call.
    """
    assert engine()(text) == ("<tool_call>" not in text)


@pytest.mark.parametrize("tag", ["x-call", "a_b.c", "ttt"])
def test_other_tags(tag: str) -> None:
    """The grammar works with any tag name, even if the name contains punctuation or repeated characters."""
    accepted = engine_grammar.gbnf(call_grammar(TOOLS, tag, required=False, untagged=True, limit=0))
    assert accepted(f"<{tag[:-1]}> " + WEATHER.replace("tool_call", tag))
    assert not accepted(f"<{tag}>")


def test_oversized_catalog_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog that is too large raises an exception, because no server would accept its grammar."""
    monkeypatch.setattr(gbnf, "_MAX_RULES", 10)
    with pytest.raises(TooLarge):
        call_grammar(TOOLS, "tool_call", required=True, untagged=True, limit=1)
