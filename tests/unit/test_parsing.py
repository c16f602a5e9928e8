"""Tests for the parser library, which works without mitmproxy and returns the same results as the proxy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from support.effort import some
from support.growth import LINEAR, growth
from support.library import Tools, by_proxy, items, streamed
from toolsim.parsing import BadRequest, Call, Prose, StreamParser, parse

FOLDER = Path(__file__).parents[1] / "cases"
ADDON = Path(__file__).parents[2] / "addon"
PAGE = (ADDON / "docs" / "parsing.md").read_text(encoding="utf-8")

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Tools = [{"type": "function", "name": "get_weather", "parameters": CITY}]
STRICT: Tools = [{**WEATHER[0], "strict": True}]
CALL = '<tool_call>{"name":"get_weather","arguments":{"city":"Oslo"}}</tool_call>'
OSLO = Call("get_weather", '{"city":"Oslo"}')


def declared(tools: list[dict[str, Any]]) -> Tools:
    """Return the tools of a test table as declared by a Responses API client."""
    return [{**tool, "type": tool.get("kind", "function")} for tool in tools]


def with_properties(tools: dict[str, dict[str, str]]) -> Tools:
    """Return tool declarations. ``tools`` maps each tool name to a dict of property names and types. All properties are
    required.
    """
    return [
        {
            "type": "function",
            "name": name,
            "strict": name.startswith("strict_"),
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in fields.items()},
                "required": list(fields),
                "additionalProperties": False,
            },
        }
        for name, fields in tools.items()
    ]


def tables() -> dict[str, tuple[Tools, list[str]]]:
    """Return the tools and the model texts of each table of test cases."""
    found = {name: json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in
             ("answers", "call_forms", "judge", "talk", "untagged")}  # fmt: skip
    judge = [f"<tool_call>{case['body']}{case.get('closing', '</tool_call>')}" for case in found["judge"]["cases"]]
    forms = with_properties({"write": {"path": "string"}, "list": {}})
    forms[0]["parameters"]["properties"] |= {"text": {"type": "string"}, "lines": {"type": "integer"}}
    forms[1]["parameters"] = {"type": "object", "properties": {"all": {"type": "boolean"}}}
    return {
        "answers": (with_properties(found["answers"]["tools"]), texts(found["answers"])),
        "call_forms": (forms, texts(found["call_forms"])),
        "judge": (declared(found["judge"]["tools"]), judge),
        "untagged": (declared(found["untagged"]["tools"]), texts(found["untagged"])),
        "talk": (declared(found["talk"]["tools"]), found["talk"]["answers"] + found["talk"]["read_as_calls"]),
    }


def texts(table: dict[str, Any]) -> list[str]:
    return [case["text"] for case in table["cases"]]


TABLES = tables()


def from_proxy(text: str, tools: Tools, *, cut: bool = False) -> list[list[Any]] | str:
    """Return the items that an official client receives if the model's text passes through the proxy. If the answer
    fails, return the error code.
    """
    seen = by_proxy("responses", tools, [text], stream=False, finish="length" if cut else "stop")
    return seen.error or seen.items


CASES = [pytest.param(name, number, id=f"{name}-{number}") for name in TABLES for number in range(len(TABLES[name][1]))]


@each(("table", "number"), some(CASES))
def test_library_returns_the_same_items_as_the_proxy(table: str, number: int) -> None:
    """For each model text in the test tables, the library returns the same items as the proxy, regardless of how the
    text is split.
    """
    tools, table_texts = TABLES[table]
    text = table_texts[number]
    whole = parse(text, tools)
    assert items(whole) == from_proxy(text, tools)
    step = len(text) // 8 + 1
    for pieces in (list(text), *([text[:at], text[at:]] for at in range(1 + number % step, len(text), step))):
        assert streamed(pieces, tools) == whole


FRAGMENTS = st.sampled_from(
    [
        CALL,
        *("<tool_call>", "</tool_call>", '{"name":"get_weather","arguments":', '{"city":"Oslo"}', '{"city":1}', "}"),
        *("```json\n", "\n```", "\n", " ", "get_weather(city='Oslo')", "[TOOL_CALLS]", "<think>", "</think>", "So, "),
    ]
)


@given(st.lists(FRAGMENTS | st.text(max_size=5), max_size=8), st.booleans(), st.booleans(), st.data())
def test_any_text_has_the_same_items(fragments: list[str], strict: bool, cut: bool, data: st.DataObject) -> None:
    text, tools = "".join(fragments), STRICT if strict else WEATHER
    whole = parse(text, tools, cut=cut)
    assert items(whole) == from_proxy(text, tools, cut=cut)
    at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
    assert streamed(pieces, tools, cut=cut) == whole


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
        {"type": "function", "name": "get_weather", "parameters": CITY},
        {"name": "get_weather", "input_schema": CITY},
        {"type": "custom", "name": "get_weather", "input_schema": CITY},
    ],
    ids=["chat", "responses", "messages", "messages-custom"],
)
def test_tools_of_each_api_are_accepted(tool: dict[str, Any]) -> None:
    """A tool can be declared in the format of any API. Parsing a call to it does not change the declaration."""
    before = json.dumps(tool)
    parsed = parse(f"Let me look.\n{CALL} Done.", [tool])
    assert parsed.parts == (Prose("Let me look.\n"), OSLO, Prose(" Done."))
    assert (parsed.prose, parsed.calls, parsed.error) == ("Let me look.\n Done.", (OSLO,), None)
    assert json.dumps(tool) == before


def test_custom_and_namespaced_tools() -> None:
    """The input of a custom tool is plain text. A call to a tool in a namespace contains the namespace."""
    patch = [{"type": "custom", "name": "apply_patch"}]
    assert parse('<tool_call>{"name":"apply_patch","arguments":{"input":"+x"}}</tool_call>', patch).calls == (
        Call("apply_patch", "+x"),
    )
    inner = [{"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "list"}]}]
    assert parse('<tool_call>{"name":"files__list"}</tool_call>', inner).calls == (Call("list", "{}", "files"),)


def test_without_tools_all_text_is_prose() -> None:
    """If no tools are declared, text that looks like a call counts as prose."""
    assert parse(CALL, []).parts == (Prose(CALL),)
    assert parse("", []).parts == ()


def test_strict_violation_ends_the_answer() -> None:
    """If a call violates the schema of a strict tool, parsing ends with an error, and any later text is ignored."""
    parsed = parse(f"So:\n{CALL.replace('city', 'town')}{CALL}", STRICT)
    assert (parsed.prose, parsed.calls) == ("So:\n", ())
    assert "get_weather" in (parsed.error or "")
    assert parse(CALL, STRICT).calls == (OSLO,)


UNRESOLVED = {"type": "object", "$ref": "#/x"}


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "function"}], "tools[0].name"),
        ([{"name": "a b", "input_schema": {}}], "tools[0].function.name"),
        ([{"type": "function", "name": "f", "strict": True, "parameters": UNRESOLVED}], "tools[0].parameters"),
    ],
)
def test_invalid_tools_raise(tools: Tools, param: str) -> None:
    """An invalid tool declaration raises an error that names the parameter, because the caller has made the mistake."""
    with pytest.raises(BadRequest) as raised:
        StreamParser(tools)
    assert raised.value.error.param == param


def test_prose_is_not_held_back() -> None:
    """Prose and complete calls are returned as soon as they are recognized, so ``finish`` returns nothing more."""
    parser = StreamParser(WEATHER)
    assert parser.feed("Hello <") == [Prose("Hello ")]
    assert parser.feed("b> ") == [Prose("<b> ")]
    assert parser.feed(CALL[:-1]) == []
    assert parser.feed(">") == [OSLO]
    assert not parser.done
    assert (parser.finish(), parser.done, parser.feed("x"), parser.finish()) == ([], True, [], [])


def test_library_does_not_import_mitmproxy() -> None:
    """The library works in a Python interpreter that cannot import mitmproxy or its dependencies."""
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('mitmproxy', 'mitmproxy_rs', 'tornado', 'h2', 'cryptography', 'OpenSSL', 'asyncio'):
            raise ImportError(name)
sys.meta_path.insert(0, Missing())
sys.path.insert(0, {str(ADDON)!r})
from toolsim import parse
tools = {STRICT!r}
assert parse({CALL!r}, tools).calls
assert parse({CALL.replace("city", "town")!r}, tools).error
assert parse("```json\\n" + {CALL[11:-12]!r} + "\\n```", tools).calls
print(*(name for name in sys.modules if name.startswith(('mitmproxy', 'toolsim.proxy', 'toolsim.cli'))))
"""
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip(), run.stderr) == (0, "", "")


REPAIRS = re.findall(
    r"^\| `([A-Z_]+)` \| (.*) \|$", PAGE.split("<!-- repairs -->")[1].split("<!-- /repairs -->")[0], re.MULTILINE
)
"""The repair codes in the tables of the documentation page, each with its example."""
ANY_REPAIR = [
    {
        "name": "get_weather",
        "input_schema": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": ["integer", "null"]},
                "units": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
    }
]


@each(("code", "example"), REPAIRS)
def test_documented_repairs_are_made(code: str, example: str) -> None:
    """Each example in the documentation's list of repairs is parsed as a call, with exactly the repair that the list
    states.
    """
    if code == "LEFTOVER_MARKUP":  # Only structured calls need this repair; ``test_leftover_markup`` covers it.
        return
    if code == "REPEATED_CALL":
        assert example == "a list that repeats the same call until the token limit"
        call = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
        parsed = parse("[" + ", ".join([call] * 40), ANY_REPAIR, cut=True)
    else:
        parsed = parse(example.strip("` ").replace("⏎", "\n"), ANY_REPAIR)
    assert parsed.calls
    assert {call.repairs for call in parsed.calls} == {(code,)}


def test_page_lists_all_repairs() -> None:
    """The documentation's list of repairs contains all repairs that are needed for the texts in the test tables and in
    the reported cases.
    """
    codes = {code for code, _ in REPAIRS}
    reported = json.loads((FOLDER / "reported.json").read_text(encoding="utf-8"))["cases"]
    of_tables = [(tools, text) for tools, table_texts in TABLES.values() for text in table_texts]
    for tools, text in [*of_tables, *((case["tools"], case["text"]) for case in reported)]:
        for cut in (False, True):
            assert {code for call in parse(text, tools, cut=cut).calls for code in call.repairs} <= codes


def test_first_example_on_the_page_runs() -> None:
    code = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
    exec(compile(code, "parsing.md", "exec"), {})


@pytest.mark.parametrize("before", ["", "```python\nx = "])
@pytest.mark.parametrize("between", [" ", "\n", " y\n"])
def test_many_blocks_take_linear_time(before: str, between: str) -> None:
    """Parsing many calls to an unknown tool takes linear time, although the interpretation of each block depends on the
    text before it.
    """
    tools = [{"type": "function", "name": "search"}]
    block = '<tool_call>{"name": "missing", "arguments": {"query": "x"}}</tool_call>'
    assert growth(lambda count: parse(before + between.join([block] * count), tools), 1_000) < LINEAR
