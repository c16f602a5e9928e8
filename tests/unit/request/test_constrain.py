from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from support import engine_grammar
from support.each import each
from toolsim.core.plan import Tool, ToolChoice
from toolsim.core.policy import Policy
from toolsim.request.constrain import call_schema, calls_schema, constraint, grammar_fields

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TREE = {
    "title": "Tree",
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}},
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}, "all": {"$ref": "#"}},
}
WEATHER = Tool("get_weather", "get_weather", parameters=CITY)
PLANT = Tool("a.plant", "a.plant", parameters=TREE)
PATCH = Tool("patch", "patch", kind="custom", grammar="lark:\nstart: x")
TIME = Tool("get_time", "get_time")
ALL = (WEATHER, PLANT, PATCH, TIME)
BONN_CALL = {"name": "get_weather", "arguments": {"city": "Bonn"}}


@each(
    ("call", "fits"),
    [
        ({"name": "get_weather", "arguments": {"city": "Bonn"}}, True),
        ({"name": "get_weather", "arguments": {"city": 1}}, False),
        ({"name": "get_weather", "arguments": '{"city": "Bonn"}'}, False),
        ({"name": "get_weather"}, False),
        ({"name": "other", "arguments": {}}, False),
        ({"name": "get_weather", "arguments": {"city": "Bonn"}, "more": 1}, False),
        ({"name": "a.plant", "arguments": {"root": {"next": {"next": {}}}}}, False),
        ({"name": "a.plant", "arguments": {"all": {"root": 1}}}, False),
        ({"name": "a.plant", "arguments": {"all": {}}}, True),
        ({"name": "get_weather", "arguments": {"city": "Bonn", "made_up": 1}}, False),
        ({"name": "patch", "arguments": {"input": "x"}}, True),
        ({"name": "get_time", "arguments": {}}, True),
        ({"name": "get_time", "arguments": []}, False),
    ],
)
def test_call_schema_accepts_only_valid_calls(call: Any, fits: bool) -> None:
    """The call schema accepts only an object that contains the name of an offered tool, and arguments that conform to
    that tool's schema.
    """
    validator = jsonschema.Draft202012Validator(call_schema(ALL))
    validator.check_schema(validator.schema)
    assert validator.is_valid(call) is fits


def test_name_precedes_the_arguments() -> None:
    """In the call schema, the name precedes the arguments. Engines write properties in schema order, and the arguments
    depend on the name.
    """
    assert list(call_schema([WEATHER])["properties"]) == ["name", "arguments"]
    assert "title" not in json.dumps(call_schema([PLANT]))


@pytest.mark.parametrize(
    ("kind", "choice", "type_"),
    [
        ("off", ToolChoice("required"), None),
        ("json_schema", ToolChoice(), None),
        ("json_schema", ToolChoice("required"), "json_schema"),
        ("json_schema", ToolChoice("required", frozenset({"get_weather"})), "json_schema"),
        ("structural_tag", ToolChoice(), "structural_tag"),
        ("structural_tag", ToolChoice("required"), "structural_tag"),
    ],
)
def test_enforcement_depends_on_the_form(kind: Any, choice: ToolChoice, type_: str | None) -> None:
    """A JSON schema is sent only if a call is required, because it constrains the entire answer. A structural tag is
    sent in other cases as well, because it constrains only calls.
    """
    form = constraint(ALL, choice, policy=Policy(constrain=kind), one_call=False)
    assert (form and form["type"]) == type_


@pytest.mark.parametrize("required", [True, False])
def test_structural_tags_constrain_calls(required: bool) -> None:
    """After the opening tag of a call, a structural tag allows only a call to an offered tool, with arguments that
    conform to the tool's schema.
    """
    choice = ToolChoice("required" if required else "auto")
    form = constraint(ALL, choice, policy=Policy(constrain="structural_tag", sentinel="acme"), one_call=True)
    assert form is not None
    tags = form["format"]
    assert (tags["triggers"], tags["at_least_one"], tags["stop_after_first"]) == (["<acme>"], required, True)
    block = tags["tags"][0]
    text = block["begin"] + '{"city":"Bonn"}' + block["end"]
    assert text == '<acme>{"name":"get_weather","arguments":{"city":"Bonn"}}</acme>'
    assert block["content"] == {"type": "json_schema", "json_schema": {**CITY, "additionalProperties": False}}


@pytest.mark.parametrize(
    ("keywords", "closed"),
    [
        ({}, True),
        ({"additionalProperties": True}, False),
        ({"additionalProperties": {"type": "string"}}, False),
        ({"patternProperties": {"^x": {}}}, False),
        ({"allOf": [{"properties": {"b": {}}}]}, False),
    ],
)
def test_objects_are_closed_unless_declared_open(keywords: dict[str, Any], closed: bool) -> None:
    """In the schema for a call, objects at any depth exclude undeclared properties, unless the tool's schema explicitly
    allows them.
    """
    inner = {"type": "object", "properties": {"a": {"type": "string"}}, **keywords}
    outer = {"type": "object", "properties": {"list": {"type": "array", "items": inner}}}
    schema = call_schema([Tool("f", "f", parameters=outer)])["properties"]["arguments"]
    assert schema["additionalProperties"] is False
    assert (schema["properties"]["list"]["items"].get("additionalProperties") is False) == closed
    assert "additionalProperties" not in outer


BONN = '<tool_call>{"name":"get_weather","arguments":{"city":"Bonn"}}</tool_call>'
TREES = '<tool_call>{"name":"a.plant","arguments":{"root":{"next":{"next":{}}}}}</tool_call>'
ANY = '<tool_call>{"name":"get_time","arguments":{"zone":[1]}}</tool_call>'


@each(
    ("text", "free", "required", "one_call"),
    [
        ("Hello.", True, False, True),
        (BONN, True, True, True),
        # If a call is required, the grammar engine rejects any text before the call.
        (f"Let me see. {BONN}", True, False, True),
        (f"{BONN}{ANY}", True, True, False),
        (ANY, True, True, True),
        (BONN.replace("Bonn", 'a\\"b'), True, True, True),
        (BONN.replace('"Bonn"', "1"), False, False, False),
        (BONN.replace("get_weather", "other"), False, False, False),
        (BONN.removesuffix("</tool_call>"), False, False, False),
        (TREES, False, False, False),
    ],
)
def test_engine_accepts_the_structural_tag(text: str, free: bool, required: bool, one_call: bool) -> None:
    """The grammar engine of vLLM and SGLang accepts text and valid calls, up to the permitted number of calls, and
    rejects everything else.
    """
    for choice, single, accepted in (("auto", False, free), ("required", False, required), ("auto", True, one_call)):
        form = constraint(
            [WEATHER, TIME, PLANT], ToolChoice(choice), policy=Policy(constrain="structural_tag"), one_call=single
        )
        assert form is not None
        assert engine_grammar.structural_tag(form)(text) == accepted, choice


@pytest.mark.parametrize(
    ("engine", "named", "one_call", "several"),
    [
        ("llama.cpp", False, False, True),
        ("vllm", False, False, True),
        ("sglang", False, False, True),
        ("ollama", False, False, True),
        ("llama.cpp", False, True, False),
        ("llama.cpp", True, False, False),
        ("lmstudio", False, False, False),
        ("unknown", False, False, False),
    ],
)
def test_several_calls_are_enforced_where_possible(engine: Any, named: bool, one_call: bool, several: bool) -> None:
    """The call schema allows only one call if the tool choice names a function, if the limit is one call, or if the
    engine requires an object at the schema's root.
    """
    choice = ToolChoice("required", frozenset({"get_weather"}) if named else None)
    policy = Policy(constrain="json_schema", engine=engine, tool_block_max=2)
    form = constraint([WEATHER, TIME], choice, policy=policy, one_call=one_call)
    assert form is not None
    assert form["schema"] == (calls_schema([WEATHER, TIME], 2) if several else call_schema([WEATHER, TIME]))


@pytest.mark.parametrize(
    ("calls", "most", "fits"),
    [
        ([BONN_CALL], 0, True),
        ([BONN_CALL] * 5, 0, True),
        ([BONN_CALL] * 2, 2, True),
        ([BONN_CALL] * 3, 2, False),
        ([], 0, False),
        (BONN_CALL, 0, False),
        ([BONN_CALL, {"name": "other", "arguments": {}}], 0, False),
        ([BONN_CALL, {"name": "a.plant", "arguments": {"all": {"root": {"next": {}}}}}], 0, False),
        ([BONN_CALL, {"name": "a.plant", "arguments": {"all": {}}}], 0, True),
    ],
)
def test_schema_accepts_several_calls(calls: Any, most: int, fits: bool) -> None:
    """The call schema accepts one or more calls, up to the limit, each with its tool's own schema. A real grammar
    engine accepts the same calls.
    """
    validator = jsonschema.Draft202012Validator(calls_schema(ALL, most))
    validator.check_schema(validator.schema)
    assert validator.is_valid(calls) is fits
    assert engine_grammar.json_schema(calls_schema(ALL, most))(json.dumps(calls)) is fits


def test_engine_accepts_the_call_schema() -> None:
    """With the schema for a single call, a real grammar engine accepts only a valid call as JSON."""
    accepts = engine_grammar.json_schema(call_schema([WEATHER, PLANT]))
    assert accepts('{"name": "get_weather", "arguments": {"city": "Bonn"}}')
    assert not accepts('{"name": "get_weather", "arguments": {}}')
    assert not accepts("Hello")


@pytest.mark.parametrize("required", [True, False])
def test_grammar_is_sent_in_a_separate_field(required: bool) -> None:
    """If a grammar is used, it is sent in a separate field instead of any other constraint. The grammar uses the tag
    that the operator configured.
    """
    choice = ToolChoice("required" if required else "auto")
    policy = Policy(constrain="gbnf", sentinel="acme")
    assert constraint(ALL, choice, policy=policy, one_call=False) is None
    accepts = engine_grammar.gbnf(grammar_fields(ALL, choice, policy=policy, one_call=False, untagged=True)["grammar"])
    assert accepts('<acme>{"name": "patch", "arguments": {"input": "x"}}</acme>')
    assert not accepts('<acme>{"name": "get_weather", "arguments": {"city": "Bonn", "invented": 1}}</acme>')
    assert accepts("text") != required


def test_grammar_is_omitted_if_not_usable() -> None:
    """No grammar is sent if the operator chose another constraint, or if there are too many tools or their schemas are
    too complex.
    """
    assert (
        grammar_fields(ALL, ToolChoice(), policy=Policy(constrain="json_schema"), one_call=False, untagged=True) == {}
    )
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(3000)}}
    endless = {"type": "object", "properties": {"a": {"allOf": [{"$ref": "#"}, {"required": ["a"]}]}}}
    for schema in (wide, endless):
        tools = [Tool("f", "f", parameters=schema)]
        assert grammar_fields(tools, ToolChoice(), policy=Policy(constrain="gbnf"), one_call=False, untagged=True) == {}
