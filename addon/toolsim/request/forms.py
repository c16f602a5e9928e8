"""Defines the forms of the manifest: how a tool is written, and how calls are requested.

The wording was chosen by measurement (addon/docs/figures.md), mostly with a coder model of 0.5 billion parameters, and
in part with a model of 1.5 billion parameters:

1. A weak model copies anything that looks like a call, such as a negative example, ``name(key: type)``, or arguments as
   an escaped string. Therefore, no form shows text that the model must not write, and arguments are always shown as an
   object.
2. With "Answer in words if no tool fits", weak models answer everything in prose. With "What a tool can find out, never
   answer yourself", they call tools, but still answer greetings and requests for poems in prose.
3. The sentence that Hermes and Qwen models were trained on ("For each … call, return a json object …") helps these
   models more than the notation of the tools: with this sentence, they make calls instead of calculating or writing
   Python themselves.
4. The template determines the number of calls. If it shows a list of two items, ``[{…}, {…}]``, the model invents a
   second call where one is needed (such as writing an unwanted file). If it shows two lines, the model makes one call
   where three are needed. If it shows a list of one item, followed by the reasons for a second call, the model makes as
   many calls as needed. If the reasons precede the list, it makes only one call.
5. A model imitates the text that it reads, so past calls are shown as blocks, like the calls in the manifest or its
   example.

A form is one row of the table at the end of this module. A client sends the same tools with each request, and
``wire.tools`` returns identical ``Tool`` objects for the same tools, so entries are cached by identity.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from toolsim.core.plan import Tool
from toolsim.request.notation import SlotNotation, indented, slot_type
from toolsim.request.record import sentinel_block
from toolsim.schema import SchemaError, compile_schema
from toolsim.wire.json_codec import value_line
from toolsim.wire.json_fields import array

# The last sentence about calls. It is the same in all forms of the manifest, so it marks the end of a manifest.
CLOSING = "The client runs your calls, wherever you run, and the results come in the next user message."
SCHEMA_LINE = "  The arguments obey this JSON schema: "

EXAMPLE = "Example: "
"""The text before an example call, at the beginning of the line."""

_MAX_EXAMPLES = 2
_MAX_EXAMPLES_CHECKED = 8
_MAX_EXAMPLE = 2_000
"""Maximum length of the arguments in an example, in characters."""

_MAX_DEPTH = 8
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")

_DROPPED_KEYWORDS = frozenset({"$schema", "title", "encrypted"})
# Keywords whose value maps the client's own names to schemas (such as ``properties``), and keywords whose value is data
# rather than a schema (such as ``enum``).
_NAMED_SCHEMAS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_DATA = frozenset({"enum", "const", "default", "examples", "example", "required", "dependentRequired"})


@dataclass(frozen=True, slots=True)
class ManifestStyle:
    """A form of the manifest.

    ``rule`` can contain the placeholders ``{tag}`` (the sentinel's tag) and ``{example}`` (a call to a tool).
    """

    entry: Callable[[Tool, str], str]
    """A function that returns a tool's entry in the manifest, given the tool and the sentinel's tag."""
    rule: str
    """The rule about when and how to make calls."""
    several: str = ""
    """The rule about making several calls in one answer, or "" if the form has none."""
    intro: str = ""
    """The text before the entries of the tools, or ""."""
    outro: str = ""
    """The text after the entries of the tools, or ""."""


MAX_TOOL_SETS = 64
"""Maximum number of tool sets whose entries are cached."""


@dataclass(frozen=True, slots=True)
class ToolSet:
    """A set of tools as a cache key. Two keys are equal if they contain identical objects in the same order.

    The key holds references to the tools, so that Python does not reuse their object IDs for other tools.
    """

    ids: tuple[int, ...]
    tools: Sequence[Tool] = field(compare=False)

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> ToolSet:
        """Return the cache key of these tools."""
        return cls(tuple(map(id, tools)), tools)


def entries(tools: Sequence[Tool], write: Callable[[Tool, str], str], sentinel: str) -> str:
    """Return the result of ``write`` for each tool, joined by newlines."""
    return _entries(ToolSet.of(tools), write, sentinel)


@lru_cache(maxsize=MAX_TOOL_SETS)
def _entries(key: ToolSet, write: Callable[[Tool, str], str], sentinel: str) -> str:
    return "\n".join(write(tool, sentinel) for tool in key.tools)


def _call_entry(tool: Tool, tag: str) -> str:
    """Write a tool as a call with slots such as ``<string>`` in place of the values."""
    schema = tool.shown_parameters
    shown = SlotNotation(schema)
    call = f'{{"name": {value_line(tool.name)}, "arguments": {shown.template}}}'
    words = indented(tool.description or tool.name)
    lines = [f"- {'[strict] ' if tool.strict else ''}{words}\n  <{tag}>{call}</{tag}>", *shown.notes]
    if not shown.is_all:
        lines.append(f"{SCHEMA_LINE}{schema_line(tool.shown_parameters)}")
    if tool.kind == "custom" or tool.grammar:
        lines += _free_form_lines(tool)
    return "\n".join([*lines, *(f"  {EXAMPLE}{call}" for call in _example_calls(tool, tag))])


def _schema_entry(tool: Tool, tag: str) -> str:
    """Write a tool as its name, its JSON schema and its description."""
    lines = [f"- {tool.name}{' [strict]' if tool.strict else ''}"]
    lines.append(f"  parameters: {schema_line(tool.shown_parameters)}")
    if tool.description:
        lines.append(f"  description: {indented(tool.description)}")
    examples = [f"  {EXAMPLE}{call}" for call in _example_calls(tool, tag)]
    return "\n".join([*lines, *_free_form_lines(tool), *examples])


def _json_entry(tool: Tool, tag: str) -> str:
    """Write a tool as one line of JSON, in the format of chat completions."""
    description = "\n".join(filter(None, [tool.description, *(line.strip() for line in _free_form_lines(tool))]))
    function: dict[str, Any] = {"name": tool.name}
    if description:
        function["description"] = description
    function["parameters"] = compact_schema(tool.shown_parameters)
    if tool.strict:
        function["strict"] = True
    if tool.examples and (examples := _fitting(tool)):
        # The examples are not part of the description, because the description is a JSON string, and a model would copy
        # its escapes.
        function["examples"] = [{"name": tool.name, "arguments": example} for example in examples]
    return value_line({"type": "function", "function": function})


def _typescript_entry(tool: Tool, tag: str) -> str:
    """Write a tool as a TypeScript declaration, with descriptions as comments."""
    schema = tool.shown_parameters
    words = "\n".join(filter(None, [tool.description, *(line.strip() for line in _free_form_lines(tool))]))
    lines = [f"// {line}" for line in words.splitlines()]
    lines += [f"// {EXAMPLE}{call}" for call in _example_calls(tool, tag)]
    arguments = typescript(schema)
    lines.append(f"function {tool.name}(args: {arguments}): any;{' // [strict]' if tool.strict else ''}")
    return "\n".join(lines)


def _example_calls(tool: Tool, tag: str) -> list[str]:
    """Return the client's examples as calls inside the tag."""
    return [sentinel_block(tool.name, value_line(example), tag) for example in _fitting(tool)] if tool.examples else []


def _fitting(tool: Tool) -> list[Mapping[str, Any]]:
    """Return the first few examples that match the tool's schema. A model would copy the mistakes in other examples."""
    try:
        schema = compile_schema(tool.shown_parameters)
    except SchemaError:
        return []
    found: list[Mapping[str, Any]] = []
    for example in tool.examples[:_MAX_EXAMPLES_CHECKED]:
        finding = schema.examine(example)
        is_short = len(value_line(example)) <= _MAX_EXAMPLE
        if finding.settled and finding.mismatch is None and is_short:
            found.append(example)
    return found[:_MAX_EXAMPLES]


def _free_form_lines(tool: Tool) -> list[str]:
    lines = ["  `input` is one free-form string, not JSON of its own."] if tool.kind == "custom" else []
    if tool.grammar:
        lines.append(f"  `input` must obey this grammar, {indented(tool.grammar)}")
    return lines


def typescript(schema: object, depth: int = 0) -> str:
    """Return a JSON schema as a TypeScript type on one line, without the parts that TypeScript cannot express."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return "any"
    properties, items = schema.get("properties"), schema.get("items")
    if isinstance(properties, dict):
        needed = array(schema.get("required"))
        fields = []
        for name, inner in properties.items():
            key = name if _IDENTIFIER.fullmatch(name) else value_line(name)
            fields.append(f"{key}{'' if name in needed else '?'}: {typescript(inner, depth + 1)}")
        return f"{{ {', '.join(fields)} }}" if fields else "{}"
    if isinstance(items, dict) and "properties" in items:
        return f"{typescript(items, depth + 1)}[]"
    return slot_type(schema)


def schema_line(schema: Mapping[str, Any]) -> str:
    """Return a JSON schema on one line, without the keywords that ``compact_schema`` removes."""
    line = value_line(schema)
    # Most schemas contain none of the keywords to remove. Such a schema is not traversed, which also avoids a
    # RecursionError if it is deep.
    return value_line(compact_schema(schema)) if any(keyword in line for keyword in _DROPPED_KEYWORDS) else line


def compact_schema(schema: Any) -> Any:
    """Return a JSON schema without keywords that are useless to a model. A property is kept even if its name is the
    same as one of these keywords.
    """
    if isinstance(schema, list):
        return [compact_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    compact = {}
    for keyword, value in schema.items():
        if keyword in _DROPPED_KEYWORDS:
            continue
        if not isinstance(value, dict | list) or keyword in _DATA:
            compact[keyword] = value
        elif keyword in _NAMED_SCHEMAS and isinstance(value, dict):
            compact[keyword] = {name: compact_schema(inner) for name, inner in value.items()}
        else:
            compact[keyword] = compact_schema(value)
    return compact


_EACH_CALL = "For each tool call, return a json object with tool name and arguments within <{tag}></{tag}> XML tags"
_CALLS_INTRO = (
    "What a tool can find out, calculate or do, never answer yourself: call it. These are the tools, each as a call of"
    " it:"
)
_CALL_LINE = '{{"name": <tool-name>, "arguments": <args-json-object>}}'

FORMS: Mapping[str, ManifestStyle] = {
    "calls": ManifestStyle(
        _call_entry,
        intro=_CALLS_INTRO,
        rule=f"{_EACH_CALL}, in a list:\n<{{tag}}>\n[{_CALL_LINE}]\n</{{tag}}>\nTwo places, people, dates or amounts"
        " that are asked about take two calls.",
    ),
    "lines": ManifestStyle(
        _call_entry,
        intro=_CALLS_INTRO,
        rule=f"Two places, people, dates or amounts that are asked about take two calls. {_EACH_CALL}, one after the"
        f" other:\n<{{tag}}>\n{_CALL_LINE}\n</{{tag}}>\n<{{tag}}>\n{_CALL_LINE}\n</{{tag}}>",
    ),
    "schemas": ManifestStyle(
        _schema_entry,
        intro="The client offers you these tools:",
        rule="To call a tool write a block of this form; `arguments` is an object that fits the tool's `parameters`:\n"
        "{example}",
        several="Several calls are several blocks, one after the other.",
    ),
    "hermes": ManifestStyle(
        _json_entry,
        intro="What a function can find out, calculate or do, never answer yourself: call it. You are provided with"
        " function signatures within <tools></tools> XML tags:\n<tools>",
        outro="</tools>",
        rule="For each function call, return a json object with function name and arguments within <{tag}></{tag}> XML"
        ' tags:\n<{tag}>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</{tag}>',
    ),
    "typescript": ManifestStyle(
        _typescript_entry,
        intro="You have these functions:\n```typescript",
        outro="```",
        rule="When a function does what the user asks, call it: write nothing but a block of this form.\n{example}",
        several="For several calls write several blocks.",
    ),
}
DEFAULT = "calls"


def form_named(name: str) -> ManifestStyle:
    """Return the form with this name, or the default form for ``auto``."""
    return FORMS[DEFAULT if name == "auto" else name]
