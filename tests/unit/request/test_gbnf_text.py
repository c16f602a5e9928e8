"""Free text of a grammar, held against an engine that reads this notation: what begins a call, and what does not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import engine_grammar
from support.answers import plan
from toolsimlib.events import CallStarted, Closed, TextDelta
from toolsimlib.plan import Tool
from toolsimlib.report import Report
from toolsimlib.request.gbnf import call_grammar
from toolsimlib.response.answer import Answer

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
NAMES = ("get_weather", "get", "a.t-x")


def begins(names: Iterable[str]) -> re.Pattern[str]:
    """Return what is found where it is sure that an answer begins as a call of one of ``names``."""
    name = "|".join(map(re.escape, names))
    parts = ["", r"(?:```(?:json)?\n)?", r"\[?", r"\{", '"name"', ":", f'"(?:{name})"', ",", '"arguments"', ":"]
    return re.compile(r"[ \t\r\n]*".join(parts))


BEGUN = begins(NAMES)
BONN = '{"name": "get_weather", "arguments": {"city": "Bonn"}}'
ROME = '{"name": "get", "arguments": {"city": "Rome"}}'
SPREAD = json.dumps([json.loads(BONN), json.loads(ROME)], indent=4)


@cache
def engine(*, untagged: bool = True, limit: int = 0) -> Callable[[str], bool]:
    tools = [(Tool(name, name), CITY) for name in NAMES]
    return engine_grammar.gbnf(call_grammar(tools, "tool_call", required=False, untagged=untagged, limit=limit))


@pytest.mark.parametrize("call", [BONN, f"{BONN}\n{ROME}", f"[{BONN}]", f"[{BONN}, {ROME}]", SPREAD])
@pytest.mark.parametrize("around", ["{}", " \n{}", "```json\n{}\n```", "```\n{}\n```\n", "\n```json\n  {}```"])
def test_an_answer_that_begins_as_a_call(call: str, around: str) -> None:
    """Goes on as calls of tools on offer, by their schemas, ends with them, and is read as them."""
    text = around.format(call)
    accepted = engine()
    assert accepted(text)
    assert engine(untagged=False)(text)
    assert engine(limit=1)(text) == ("Rome" not in text)
    wrong = [f"{text}\n\nThat is it."]
    for sound, broken in (("Bonn", 'B"'), ('"Bonn"', "1"), ('"city"', '"town"')):
        wrong.append(text.replace(sound, broken))
    if ROME in call:
        broken_calls = (ROME.replace('"get"', '"other"'), '"Rome"', '{"name": "arguments": {}}')
        wrong += [text.replace(ROME, broken) for broken in broken_calls]
    if "[" in call:
        wrong.append(text.replace("]", ""))
    if around.startswith("```"):
        wrong.append(text.rstrip("`\n"))
    for each in wrong:
        assert not accepted(each), each
        assert engine(untagged=False)(each), each
    answer = Answer(plan("chat", "chat", True, [Tool(name, name, parameters=CITY) for name in NAMES]), Report())
    told = [*answer.feed(TextDelta(text)), *answer.feed(Closed())]
    assert sum(isinstance(event, CallStarted) for event in told) == text.count('"arguments"')
    assert "".join(event.text for event in told if isinstance(event, TextDelta)).strip() == ""


@pytest.mark.parametrize(
    "text",
    [
        "[1] says so, [2] does not.",
        '["a", "list"]',
        "[get_weather] is the tool.",
        '```python\nprint([{"name": "get_weather", "arguments": 1}])\n```',
        "```\nls\n```",
        '{"name": "Ada", "arguments": 1}',
        '[{"name": "get_weather_now", "arguments": {"town": 1}}]',
        '```json\n{"name": "get_weather", "description": "the weather", "parameters": {"type": "object"}}\n```',
        '{"name": "get_weather", "argument": 1}',
        '{"arguments": {"town": 1}, "name": "get_weather"}',
        f"This is how: {BONN.replace('Bonn', '')[:-1]}",
        f"Like this:\n{BONN[:-3]}",
        '{"name": "get_weather", "arguments"',
        f'{{"name": "get<tool_call>{BONN}</tool_call>',
        f'[{{"na<<tool_call>\n[{BONN}]</tool_call>',
    ],
)
def test_what_only_looks_like_a_call(text: str) -> None:
    """Is text: JSON of another kind, a tool's declaration, code, a call that is spoken of, and one in the tag."""
    assert engine()(text)


SCRAPS = [
    "```", "json", "\n", " ", "[", "{", '"name"', ":", '"get"', '"get_weather"', '"a.t-x"', '"ge', ",", '"arguments"',
    '"arg', "<", "<tool", "x", '"', '{"name": "get"', '[{"name": "get_weather", "arguments"',
]  # fmt: skip


@given(st.lists(st.sampled_from(SCRAPS), max_size=12).map("".join))
def test_any_text_that_begins_no_call(text: str) -> None:
    """Up to the colon behind the arguments' name all is text, whatever it resembles; what began as a call is none."""
    if not BEGUN.match(text):
        assert engine()(text)
        assert engine()(f"{text}x")
    else:
        assert not engine()(f"{text}x")


def test_talk_about_calls_stays_possible() -> None:
    """Of answers that talk about tools only those begin as a call, or name the tag, that could not be told from one."""
    talk = json.loads((Path(__file__).parents[2] / "cases" / "talk.json").read_text(encoding="utf-8"))
    names = [tool["name"] for tool in talk["tools"]]
    tools = [(Tool(tool["name"], tool["name"]), tool.get("parameters") or {"type": "object"}) for tool in talk["tools"]]
    accepted = engine_grammar.gbnf(call_grammar(tools, "tool_call", required=False, untagged=True, limit=0))
    begun = begins(names)
    impossible = [text for text in talk["answers"] if not accepted(text)]
    assert all("<tool_call>" in text or begun.match(text) for text in impossible)
    assert len(impossible) < len(talk["answers"]) / 10
