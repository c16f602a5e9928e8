"""The tools as text for a model, written here and, for pages and the scripted model, parsed here again.

It consists of heading, entries and the rule for calling, in the words and notation of the chosen form (``forms.py``).
What a request wants beyond that closes its prompt (``closing.py``). Some gateways mistake a prompt with the phrases
"output format", "concise title" or "conversation:" for one of their own utility requests, so the text avoids them.
Text that the client controls (descriptions, grammars) is indented, a comment or inside JSON, so that it cannot pass
for a tool or a rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolsimlib.plan import Tool
from toolsimlib.request.example import example_arguments
from toolsimlib.request.forms import CLOSING, SCHEMA_LINE, entries, form_named, schema_line
from toolsimlib.request.names_first import INTRO, name_lines
from toolsimlib.request.notation import read_template
from toolsimlib.request.record import sentinel_block
from toolsimlib.wire.json_codec import value_line
from toolsimlib.wire.json_fields import loaded

HEADING = "# CLIENT TOOL CATALOG"

_FURTHER = "Tools of the client tool catalog, and how to call them:"

# A paragraph that may follow the last words on how to call.
_ANSWER_RULE = "An answer that calls no tool must be "

# The lines that identify entries when they are parsed.
_TAG = re.compile(r"(?:  )?<([A-Za-z_][A-Za-z0-9_.-]*)>(?:\{|$)")
_CALL = re.compile(r'  <[^<>]+>\{"name": ("(?:[^"\\]|\\.)*"), "arguments": (\{.*\})\}</[^<>]+>')
_PARAMETERS = "  parameters: "
_DESCRIPTION = "  description: "
_DECLARATION = '{"type":"function",'
_FUNCTION = re.compile(r"function ([A-Za-z0-9_.-]+)\(args: .*\): any;( // \[strict\])?")


def manifest(
    tools: Sequence[Tool],
    *,
    sentinel: str,
    one_call: bool,
    answer_format: Mapping[str, Any] | None,
    form: str = "auto",
    named: Collection[str] = (),
) -> str:
    """Return the catalogue of ``tools`` (at least one), and the rule for calling them.

    ``form``: the name of a form of ``forms.FORMS``, or auto. ``answer_format``: the flat ``text.format`` that an answer
    in words has to obey, since the backend cannot enforce it beside calls. ``named``: the tools listed by name only.
    """
    shape = form_named(form)
    whole = [tool for tool in tools if tool.name not in named] if named else tools
    catalogue = "\n".join(filter(None, [shape.intro, entries(whole, shape.entry, sentinel), shape.outro]))
    wording = shape.rule_for_one if one_call and shape.rule_for_one else shape.rule
    example = _example(whole[0], sentinel) if "{example}" in wording else ""
    rule = wording.format(tag=sentinel, example=example)
    further = " ".join(filter(None, [shape.single if one_call else shape.several, _strict_rule(tools), CLOSING]))
    sections = [
        HEADING,
        catalogue,
        f"{INTRO}\n{name_lines(tool for tool in tools if tool.name in named)}" if named else "",
        f"{rule}{'\n\n' if '\n' in rule else ' '}{further}",
        _answer_rule(answer_format) if answer_format is not None else "",
    ]
    return "\n\n".join(filter(None, sections))


def further_entries(tools: Sequence[Tool], *, sentinel: str, form: str = "auto") -> str:
    """Return the entries of ``tools`` that the catalogue only names."""
    return f"{_FURTHER}\n{entries(tools, form_named(form).entry, sentinel)}"


def _example(tool: Tool, sentinel: str) -> str:
    return sentinel_block(tool.name, value_line(example_arguments(tool.shown_parameters)), sentinel)


def _strict_rule(tools: Sequence[Tool]) -> str:
    strict = [tool.name for tool in tools if tool.strict]
    if not strict:
        return ""
    return (
        f"For {', '.join(strict)} the arguments MUST conform exactly: every required property, no property that is not"
        " shown, each value of its type."
    )


def _answer_rule(answer_format: Mapping[str, Any]) -> str:
    schema = answer_format.get("schema")
    rule = f"{_ANSWER_RULE}one JSON object and nothing else, without a code fence"
    if not isinstance(schema, dict):
        return f"{rule}."
    return f"{rule}, and it MUST conform exactly to this schema:\n{schema_line(schema)}"


@dataclass(frozen=True, slots=True)
class Catalog:
    """Tools found in a text, from ``start`` to ``end``. ``tag`` is the sentinel's name."""

    start: int
    end: int
    tools: tuple[Tool, ...]
    tag: str


def find_catalog(text: str) -> Catalog | None:
    """Return the manifest that ``text`` holds, None if there is none.

    Text around it is not part of it: it ends with the words that close every form, or with the rule for answers after
    them. Parameters are parsed as far as the form shows them.
    """
    start = text.find(HEADING)
    if start == -1 or (start and text[start - 1] != "\n"):
        return None
    reader = _Entries()
    at, end = start, -1
    for line in text[start:].splitlines(keepends=True):
        at += len(line)
        bare = line.rstrip("\r\n")
        if end == -1:
            if bare.endswith(CLOSING):
                end = at
            else:
                reader.line(bare)
        elif bare.startswith(_ANSWER_RULE):
            # Its schema, if any, is on the next line.
            end = at
            if bare.endswith(":"):
                end += len(text[at:].partition("\n")[0])
            break
        elif bare:
            break
    if end == -1 or not reader.tools:
        return None
    return Catalog(start, end, tuple(reader.tools), reader.tag)


def find_further(text: str) -> Catalog | None:
    """Return the further entries that ``text`` holds, up to the next empty line; None if there are none."""
    start = text.find(_FURTHER)
    if start == -1 or (start and text[start - 1] != "\n"):
        return None
    shown = text[start:].partition("\n\n")[0]
    reader = _Entries()
    for line in shown.splitlines():
        reader.line(line)
    return Catalog(start, start + len(shown), tuple(reader.tools), reader.tag) if reader.tools else None


class _Entries:
    """The tools in the lines of a catalogue of any form; see the entries in ``forms.py``."""

    def __init__(self) -> None:
        self.tools: list[Tool] = []
        self.tag = "tool_call"
        # The line that began the entry, or the first line of the comment above it.
        self._head = ""

    def line(self, line: str) -> None:
        if found := _TAG.match(line):
            self.tag = found[1]
        if found := _CALL.fullmatch(line):
            words = self._head.removeprefix("[strict] ")
            self._add(json.loads(found[1]), words, read_template(found[2]), strict=words != self._head)
        elif line.startswith(_PARAMETERS):
            bare = self._head.removesuffix(" [strict]")
            self._add(bare, None, loaded(line.removeprefix(_PARAMETERS)), strict=bare != self._head)
        elif self.tools and line.startswith(_DESCRIPTION):
            self.tools[-1] = replace(self.tools[-1], description=line.removeprefix(_DESCRIPTION))
        elif self.tools and line.startswith(SCHEMA_LINE):
            self.tools[-1] = replace(self.tools[-1], parameters=loaded(line.removeprefix(SCHEMA_LINE)))
        elif line.startswith(_DECLARATION):
            function = (loaded(line) or {}).get("function")
            if isinstance(function, dict) and isinstance(name := function.get("name"), str):
                strict = function.get("strict") is True
                self._add(name, function.get("description"), function.get("parameters"), strict=strict)
        elif found := _FUNCTION.fullmatch(line):
            self._add(found[1], self._head, None, strict=bool(found[2]))
            self._head = ""
        elif line.startswith("- "):
            self._head = line.removeprefix("- ")
        elif line.startswith("// "):
            self._head = self._head or line.removeprefix("// ")

    def _add(self, name: str, description: object, parameters: object, *, strict: bool) -> None:
        words = description if isinstance(description, str) and description else None
        schema = parameters if isinstance(parameters, dict) else None
        self.tools.append(Tool(name, name, description=words, parameters=schema, strict=strict))
