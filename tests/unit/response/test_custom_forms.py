"""Tests for custom call forms, which a profile declares. Without the declaration, text in such a form is not parsed as
a call.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.answers import plan, read, rewrite
from support.each import each
from support.growth import LINEAR, growth
from support.library import Tools, pieces
from support.wire import backend_answer
from toolsim.core.custom_forms import CustomForm
from toolsim.core.plan import Tool
from toolsim.core.policy import Policy
from toolsim.parsing import Parsed, Part, Prose, StreamParser, parse
from toolsim.proxy.options.profiles import read_profiles
from toolsim.response.sentinel import Sentinel

PROFILE = """
models = ["my-model*"]

[[forms]]
opening = "@@CALL"
closing = "@@END"
body = "json"
keys = { name = "fn", arguments = "with" }

[[forms]]
opening = "«tool»"
closing = "«/tool»"
body = "python"

[[forms]]
opening = "<<act>>"
closing = "<</act>>"
body = "pairs"
"""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path"],
}
TOOLS: Tools = [{"type": "function", "name": "write", "parameters": SCHEMA}]
CALL = ["write", {"path": "a.txt", "lines": 3}]
FORMS = {
    "json": ("@@CALL", '{"fn": "write", "with": {"path": "a.txt", "lines": 3}}', "@@END"),
    "python": ("«tool»", "write(path='a.txt', lines=3)", "«/tool»"),
    "pairs": (
        "<<act>>",
        "write<arg_key>path</arg_key><arg_value>a.txt</arg_value><arg_key>lines</arg_key><arg_value>3</arg_value>",
        "<</act>>",
    ),
}


def declared(folder: Path) -> tuple[CustomForm, ...]:
    """Write a profile, and return its call forms as the proxy reads them at startup."""
    (folder / "my-model.toml").write_text(PROFILE, encoding="utf-8")
    return dict(read_profiles(str(folder), {})[0].fields)["forms"]  # type: ignore[no-any-return]


def library(forms: tuple[CustomForm, ...], chunks: list[str]) -> Parsed:
    """Return the result of the public parsing library for text that arrives in ``chunks``."""
    parser = StreamParser(TOOLS, forms=[form.table() for form in forms])
    parts: list[Part] = []
    for part in [part for chunk in chunks for part in parser.feed(chunk)] + parser.finish():
        last = parts[-1] if parts else None
        if isinstance(part, Prose) and isinstance(last, Prose):
            parts[-1] = Prose(last.text + part.text)
        else:
            parts.append(part)
    return Parsed(tuple(parts))


def calls(parsed: Parsed) -> list[Any]:
    """Return the calls with their arguments as parsed values."""
    return [[call.name, json.loads(call.arguments)] for call in parsed.calls]


@pytest.mark.parametrize("form", FORMS)
def test_calls_in_a_declared_form_are_read(tmp_path: Path, form: str) -> None:
    """Calls in a declared call form are parsed even with extra whitespace, a doubled closing marker, or text before
    them.
    """
    opening, body, closing = FORMS[form]
    forms = declared(tmp_path)
    one = opening + body + closing
    texts = {
        one: (1, ""),
        f"{opening}\n{body}\n{closing}": (1, ""),
        f"{opening} {body} {closing}\n": (1, ""),
        f"{one}\n{one}": (2, ""),
        one + closing: (1, ""),
        f"I do it.\n{one}": (1, "I do it."),
    }
    for text, (count, prose) in texts.items():
        parsed = library(forms, [text])
        assert calls(parsed) == [CALL] * count, text
        assert parsed.prose.strip() == prose
        assert library((), [text]).parts == (Prose(text),)


@pytest.mark.parametrize("form", FORMS)
def test_splits_make_no_difference(tmp_path: Path, form: str) -> None:
    """The result of the public parsing library, and the items that a client of the proxy receives, do not depend on
    where the text is split.
    """
    opening, body, closing = FORMS[form]
    forms = declared(tmp_path)
    text = f"First.\n{opening}{body}{closing}\n{opening} none {closing}\n{opening}{body}{closing}"
    whole = library(forms, [text])
    assert calls(whole) == [CALL, CALL]
    for cut in range(len(text)):
        assert library(forms, [text[:cut], text[cut:]]) == whole
    assert library(forms, list(text)) == library(forms, pieces(text, form)) == whole
    tool = Tool("write", "write", parameters=SCHEMA)
    items = []
    for stream, chunks in ((False, [text]), (True, list(text))):
        the_plan = plan("responses", "chat", stream, [tool])
        the_plan = replace(the_plan, policy=replace(the_plan.policy, forms=forms, stop_after_tools="off"))
        rewriter, frames = rewrite(the_plan, *backend_answer("chat", stream, chunks))
        items.append(read("responses", stream, frames, rewriter.status).items)
    assert items[0] == items[1]
    assert [item[0] for item in items[0]].count("call") == 2


@pytest.mark.parametrize("form", FORMS)
def test_other_text_is_unchanged(tmp_path: Path, form: str) -> None:
    """Text that resembles a declared call form remains unchanged if its body is not a call, if its tool is unknown, if
    the marker is within a sentence, or if the call is quoted.
    """
    opening, body, closing = FORMS[form]
    forms = declared(tmp_path)
    for text in (
        f"{opening} no call {closing}",
        f"{opening}{closing}",
        f"{opening}{body.replace('write', 'other')}{closing}",
        f"The marker {opening} begins a call, {closing} ends it.",
        f"> {opening}{body}{closing}",
        f"`{opening}{body}{closing}`",
    ):
        assert library(forms, list(text)).parts == library(forms, [text]).parts == (Prose(text),), text


def test_marker_in_a_string_is_data(tmp_path: Path) -> None:
    """The closing marker inside a JSON string does not close the call."""
    text = '@@CALL{"fn": "write", "with": {"path": "@@END"}}@@END'
    assert calls(library(declared(tmp_path), list(text))) == [["write", {"path": "@@END"}]]


def test_only_the_declared_kind_of_body_is_read() -> None:
    """If a call form declares the format of its body, only this format is parsed. Otherwise, all formats are parsed."""
    text = '%%run{"name": "write", "arguments": {"path": "a"}}%%end'
    form = {"opening": "%%run", "closing": "%%end"}
    assert len(parse(text, TOOLS, forms=[form]).calls) == 1
    assert not parse(text, TOOLS, forms=[form | {"body": "python"}]).calls
    assert len(parse("%%run write(path='a') %%end", TOOLS, forms=[form]).calls) == 1


@each("form", FORMS)
def test_time_is_linear(form: str) -> None:
    """Opening markers without closing markers, and incomplete bodies, are parsed in linear time."""
    opening, body, _ = FORMS[form]
    forms = tuple(CustomForm(*(FORMS[name][0], FORMS[name][2])) for name in FORMS)
    for unit in (opening, opening + body[: len(body) // 2]):

        def run(count: int, unit: str = unit) -> None:
            sentinel = Sentinel(foreign=True, drops_surplus=True, forms=forms)
            sentinel.feed(unit * count)
            sentinel.finish()

        assert growth(run, 300) < LINEAR


def test_forms_apply_only_to_the_profiles_model(tmp_path: Path) -> None:
    """Custom forms apply only to requests for a model that the profile matches."""
    declared(tmp_path)
    policy = replace(Policy(), known_profiles=read_profiles(str(tmp_path), {}))
    assert [form.opening for form in policy.for_model("my-model-7b").forms] == ["@@CALL", "«tool»", "<<act>>"]
    assert policy.for_model("another").forms == ()
