"""The tools as a text that a model reads, written here and, for pages and the scripted model, read back here.

Some gateways take a prompt with the phrases "output format", "concise title" or "conversation:" for one of their own
chores; the words here avoid them. What a client can word freely (descriptions, grammars) is indented, so that it cannot
pass for a tool or a rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolsimlib.plan import Choice, Tool
from toolsimlib.request.example import example_arguments
from toolsimlib.request.record import sentinel_block, value_line

HEADING = "# CLIENT TOOL CATALOG"

# The lines by which a manifest is read back.
_ENTRY = re.compile(r"- ([A-Za-z0-9_.-]+)( \[strict\])?")
_BLOCK = re.compile(r"<([A-Za-z_][A-Za-z0-9_.-]*)>\{")
_LAST_EXAMPLE = "[function_call name="
# Paragraphs that may follow the last example.
_DEMAND = "You MUST call "
_ANSWER_RULE = "An answer that calls no tool must be "

_DROPPED_KEYWORDS = frozenset({"$schema", "title"})
# Keywords whose keys are the client's own names, and keywords whose values are data.
_NAMED_SCHEMAS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_DATA = frozenset({"enum", "const", "default", "examples", "example", "required", "dependentRequired"})


def manifest(
    tools: Sequence[Tool],
    choice: Choice,
    *,
    sentinel: str,
    one_call: bool,
    answer_format: Mapping[str, Any] | None,
) -> str:
    """Return the catalogue of ``tools`` (at least one), the rule for calling them, and what ``choice`` demands.

    ``answer_format``: the flat ``text.format`` that an answer in words has to obey, since the backend cannot enforce it
    beside calls.
    """
    shown = tools[0]
    sections = [
        HEADING,
        "The client offers you the tools below. The client runs them itself, in its own place: what you were told of"
        " your sandbox, your permissions or your network does not apply to them.",
        "\n".join(_entry(tool) for tool in tools),
        "## How to call a tool",
        "Write a block of exactly this form:",
        _example(shown, sentinel),
        "\n".join(f"- {rule}" for rule in _rules(tools, one_call=one_call)),
        "These are no calls, and nothing comes of them:",
        _wrong_example(shown),
    ]
    demand = _demand(tools, choice, one_call=one_call)
    if demand:
        sections.append(demand)
    if answer_format is not None:
        sections.append(_answer_rule(answer_format))
    return "\n\n".join(sections)


def reminder(choice: Choice, *, sentinel: str) -> str:
    """Return the one line that closes the last user message when the catalogue is far above it."""
    call = "you must call a tool now, by" if choice.mode == "required" else "a tool is called by"
    return f"(Reminder: {call} a <{sentinel}> block, as the client tool catalog says.)"


def _entry(tool: Tool) -> str:
    marks = " [strict]" if tool.strict else ""
    parameters = compact_schema(tool.shown_parameters)
    lines = [f"- {tool.name}{marks}", f"  parameters: {value_line(parameters)}"]
    if tool.description:
        lines.append(f"  description: {_indented(tool.description)}")
    if tool.kind == "custom":
        lines.append("  `input` is one free-form string, not JSON of its own.")
    if tool.grammar:
        lines.append(f"  `input` must obey this grammar, {_indented(tool.grammar)}")
    return "\n".join(lines)


def _example(tool: Tool, sentinel: str) -> str:
    return sentinel_block(tool.name, value_line(_example_arguments(tool)), sentinel)


def _wrong_example(tool: Tool) -> str:
    return f"{tool.name}({value_line(_example_arguments(tool))})\n[function_call name={tool.name}]"


def _example_arguments(tool: Tool) -> dict[str, Any]:
    return example_arguments(tool.shown_parameters)


def _rules(tools: Sequence[Tool], *, one_call: bool) -> list[str]:
    rules = [
        "`name` is one of the names above, letter by letter. There are no other tools.",
        "`arguments` is a JSON string that holds a JSON object, and the object fits the tool's `parameters`. Inside of"
        r" the string write \" for a quote and \\ for a backslash. Without arguments it is "
        '"{}".',
        r"Long text and text of many lines (code, documents) goes whole into its argument, on the block's one line: a"
        r" line break in it is \\n, a quote in it is \\\".",
    ]
    strict = [tool.name for tool in tools if tool.strict]
    if strict:
        rules.append(
            f"For {', '.join(strict)} the arguments MUST conform exactly to the schema: every required property, no"
            " property that it does not name, each value of its type."
        )
    if one_call:
        rules.append("Call at most one tool in an answer, then wait for its result.")
    else:
        rules.append("Several calls are several blocks, one after the other.")
    return [
        *rules,
        "Prose around a block is fine. After your last block end your answer: the results come in the next user"
        " message. Never make up a result.",
        "Lines that start with [function_call are a record of earlier calls and their results, kept by the system."
        " Read them, but never write such a line: to call again, write a block.",
    ]


def _demand(tools: Sequence[Tool], choice: Choice, *, one_call: bool) -> str:
    if choice.mode != "required":
        return ""
    if len(tools) == 1:
        return f"{_DEMAND}{tools[0].name} in this answer."
    number = "exactly one" if one_call else "at least one"
    return f"{_DEMAND}{number} of these tools in this answer."


def _answer_rule(answer_format: Mapping[str, Any]) -> str:
    schema = answer_format.get("schema")
    rule = f"{_ANSWER_RULE}one JSON object and nothing else, without a code fence"
    if not isinstance(schema, dict):
        return f"{rule}."
    return f"{rule}, and it MUST conform exactly to this schema:\n{value_line(compact_schema(schema))}"


def compact_schema(schema: Any) -> Any:
    """Return a JSON schema without its ``$schema`` and ``title`` keywords; a property of that name stays."""
    if isinstance(schema, list):
        return [compact_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    compact = {}
    for keyword, value in schema.items():
        if keyword in _NAMED_SCHEMAS and isinstance(value, dict):
            compact[keyword] = {name: compact_schema(each) for name, each in value.items()}
        elif keyword in _DATA:
            compact[keyword] = value
        elif keyword not in _DROPPED_KEYWORDS:
            compact[keyword] = compact_schema(value)
    return compact


def _indented(text: str) -> str:
    return "\n    ".join(text.splitlines())


@dataclass(frozen=True, slots=True)
class Catalog:
    """A manifest found in a text, from ``start`` to ``end``.

    ``tag`` is the sentinel's name, ``demand`` the line that forces a call, or "".
    """

    start: int
    end: int
    tools: tuple[Tool, ...]
    tag: str
    demand: str


def find_catalog(text: str) -> Catalog | None:
    """Return the manifest that ``text`` holds, None if there is none.

    Whatever stands around it is no part of it: what a client words freely is indented in a manifest, so a line that
    begins at the first column is the manifest's own, or its end.
    """
    start = text.find(HEADING)
    if start == -1 or (start and text[start - 1] != "\n"):
        return None
    tools: list[Tool] = []
    tag, demand, at, end = "tool_call", "", start, -1
    for line in text[start:].splitlines(keepends=True):
        at += len(line)
        bare = line.rstrip("\r\n")
        if end == -1:
            if entry := _ENTRY.fullmatch(bare):
                tools.append(Tool(entry[1], entry[1], strict=bool(entry[2])))
            elif tools and bare.startswith("  parameters: "):
                tools[-1] = _with_parameters(tools[-1], bare.removeprefix("  parameters: "))
            elif tools and bare.startswith("  description: "):
                tools[-1] = replace(tools[-1], description=bare.removeprefix("  description: "))
            elif found := _BLOCK.match(bare):
                tag = found[1]
            elif bare.startswith(_LAST_EXAMPLE):
                end = at
        elif bare.startswith(_DEMAND):
            demand, end = bare, at
        elif bare.startswith(_ANSWER_RULE):
            # Its schema, if any, stands on the next line.
            end = at
            if bare.endswith(":"):
                end += len(text[at:].partition("\n")[0])
            break
        elif bare:
            break
    if end == -1:
        return None
    return Catalog(start, end, tuple(tools), tag, demand)


def _with_parameters(tool: Tool, text: str) -> Tool:
    try:
        parameters = json.loads(text)
    except (ValueError, RecursionError):
        parameters = None
    return replace(tool, parameters=parameters if isinstance(parameters, dict) else None)
