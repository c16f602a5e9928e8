"""Parses the tools in a prompt, and the records of past calls and outputs, for the content views and the scripted
model.

The modules that write these parts of a prompt are in ``toolsim/request/``: ``manifest`` and ``forms`` (the manifest),
``notation`` (argument templates), ``record`` (past calls and outputs), ``prompt_suffix`` (instructions at the end of a
prompt). The proxy itself never parses prompts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from toolsim.core.conversation import Call, Item, Message
from toolsim.core.plan import Tool, ToolChoice
from toolsim.request.forms import CLOSING, EXAMPLE, SCHEMA_LINE
from toolsim.request.manifest import ANSWER_RULE, FURTHER, HEADING
from toolsim.request.notation import MAX_DEPTH, TYPES
from toolsim.request.prompt_suffix import NO_CALL
from toolsim.request.record import ERROR
from toolsim.wire.json_fields import loaded

# Patterns and prefixes of lines in a manifest, each of which indicates a tool or a part of its description.
_TAG = re.compile(r"(?:  )?<([A-Za-z_][A-Za-z0-9_.-]*)>(?:\{|$)")
_CALL = re.compile(r'  <[^<>]+>\{"name": ("(?:[^"\\]|\\.)*"), "arguments": (\{.*\})\}</[^<>]+>')
_PARAMETERS = "  parameters: "
_DESCRIPTION = "  description: "
_DECLARATION = '{"type":"function",'
_FUNCTION = re.compile(r"function ([A-Za-z0-9_.-]+)\(args: .*\): any;( // \[strict\])?")

_READ_WANT = re.compile(r"You (?:MUST call (?:a tool|(?:one of )?(.+))|may call no tool but (.+)) in this answer\.")

# In records, a name or an ID is either unquoted or a JSON string.
_WORD = r'([A-Za-z0-9_.:-]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")'
_CALL_RECORD = re.compile(rf"\[function_call id={_WORD} call_id={_WORD} name={_WORD} arguments=(.*)\]")
_ERROR_RECORD = re.compile(rf"\[{ERROR} reason=[A-Z_]+(?: name={_WORD})? expected=\"[^\"\\]*+(?:\\.[^\"\\]*+)*+\"\]")
# Compact JSON. It contains spaces only within strings.
_COMPACT = r'(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^" ]++)++'
_OUTPUT_RECORD = re.compile(
    rf"\[function_call_output (?:call_id={_WORD}|name={_WORD} arguments=({_COMPACT}))(?: nth=([0-9]+))? output=(.*)\]"
)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The tools in the part of a text from ``start`` to ``end``.

    ``tag`` is the name of the tag that encloses calls.
    """

    start: int
    end: int
    tools: tuple[Tool, ...]
    tag: str


def find_catalog(text: str) -> Catalog | None:
    """Return the manifest in ``text``, or None if there is none.

    A rule about the answer's format that follows the tools is part of the manifest. Parameters are parsed only if the
    manifest shows them as a template or as JSON.
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
        elif bare.startswith(ANSWER_RULE):
            # If the rule about the answer's format has a schema, the schema is on the next line.
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
    """Return the tools that are listed after the manifest, up to the next empty line, or None if there are none."""
    start = text.find(FURTHER)
    if start == -1 or (start and text[start - 1] != "\n"):
        return None
    shown = text[start:].partition("\n\n")[0]
    reader = _Entries()
    for line in shown.splitlines():
        reader.line(line)
    return Catalog(start, start + len(shown), tuple(reader.tools), reader.tag) if reader.tools else None


class _Entries:
    """Collects the tools in the lines of a manifest. ``forms.py`` defines how each call form describes a tool."""

    def __init__(self) -> None:
        self.tools: list[Tool] = []
        self.tag = "tool_call"
        # The first line of the current tool's description, including any comment above it.
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
        elif line.startswith("// ") and not line.startswith(f"// {EXAMPLE}"):
            self._head = self._head or line.removeprefix("// ")

    def _add(self, name: str, description: object, parameters: object, *, strict: bool) -> None:
        words = description if isinstance(description, str) and description else None
        schema = parameters if isinstance(parameters, dict) else None
        self.tools.append(Tool(name, name, description=words, parameters=schema, strict=strict))


# -- argument templates --

_SLOT = r'<(?:"(?:[^"\\]|\\.)*"|[^"<>])*>'
_TOKEN = re.compile(rf'\s*(?P<token>"(?:[^"\\]|\\.)*"|{_SLOT}|, \.\.\.\]|[{{}}\[:,])')
_PART = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^",])+')
_CHOICE = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^"|])+')


class _Malformed(ValueError):
    """Raised if the text is not an argument template."""


def read_template(text: str) -> dict[str, Any] | None:
    """Return the schema that an argument template represents, or None if the text is not a template."""
    tokens = [found["token"] for found in _TOKEN.finditer(text)]
    tokens.reverse()
    try:
        schema, _ = _read_value(tokens, 0)
    except (_Malformed, IndexError, ValueError, RecursionError):
        return None
    return schema if not tokens else None


def _read_value(tokens: list[str], depth: int) -> tuple[dict[str, Any], bool]:
    """Consume the tokens of one value, and return the value's schema and whether the value is optional."""
    token = tokens.pop()
    if depth > MAX_DEPTH + 2:
        raise _Malformed
    if token.startswith("<"):
        return _read_slot(token[1:-1])
    if token == "[":
        items, _ = _read_value(tokens, depth + 1)
        if tokens.pop() != ", ...]":
            raise _Malformed
        return {"type": "array", "items": items}, False
    if token != "{":
        raise _Malformed
    properties: dict[str, Any] = {}
    required: list[str] = []
    while (token := tokens.pop()) != "}":
        if token == "," and properties:
            token = tokens.pop()
        name = json.loads(token)
        if not isinstance(name, str) or tokens.pop() != ":":
            raise _Malformed
        properties[name], optional = _read_value(tokens, depth + 1)
        if not optional:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}, False


def _read_slot(text: str) -> tuple[dict[str, Any], bool]:
    kind, *further = (found.strip() for found in _PART.findall(text))
    optional = further[-1:] == ["optional"]
    schema = _read_type(kind)
    for part in further[: len(further) - optional]:
        keyword, _, value = part.partition(" ")
        schema[keyword] = json.loads(value)
    return schema, optional


def _read_type(text: str) -> dict[str, Any]:
    if text.endswith("[]"):
        return {"type": "array", "items": _read_type(text[:-2].removeprefix("(").removesuffix(")"))}
    choices = [choice.strip() for choice in _CHOICE.findall(text)]
    if choices == ["any"]:
        return {}
    if any(choice in TYPES and choice != "null" for choice in choices):
        return {"type": choices[0] if len(choices) == 1 else choices}
    return {"enum": [json.loads(choice) for choice in choices]}


# -- tool choice at the end of a prompt --


def wanted(items: Iterable[Item]) -> str:
    """Return the line at the end of a prompt that requires or restricts calls, or "" if there is none."""
    texts = [item.text for item in items if isinstance(item, Message) and item.role == "user"]
    last = texts[-1].rstrip().rpartition("\n")[2] if texts else ""
    return last if read_choice(last) is not None else ""


def read_choice(line: str) -> ToolChoice | None:
    """Return the tool choice that a line expresses, or None if it expresses none."""
    if line == NO_CALL:
        return ToolChoice("none")
    found = _READ_WANT.fullmatch(line)
    if found is None:
        return None
    wanted_names, only = found.groups()
    names = frozenset((wanted_names or only).split(", ")) if wanted_names or only else None
    return ToolChoice("auto" if only else "required", names)


# -- past calls and outputs --


def is_error_record(line: str) -> bool:
    """Return whether a line is the record of a rejected call."""
    return _ERROR_RECORD.fullmatch(line) is not None


def read_call_record(line: str) -> Call | None:
    """Return the call in a record, or None if the line is not the record of a call."""
    found = _CALL_RECORD.fullmatch(line)
    return None if found is None else Call(_read_word(found[2]), _read_word(found[3]), found[4], _read_word(found[1]))


def read_output_record(line: str) -> tuple[str, str] | None:
    """Return the title and the JSON output of a record, or None if the line is not the record of an output.

    The title is the ID of the call, or the call's name and arguments.
    """
    found = _OUTPUT_RECORD.fullmatch(line)
    if found is None:
        return None
    call_id, name, arguments, nth, output = found.groups()
    title = f"{_read_word(name)} {arguments}" if call_id is None else _read_word(call_id)
    return f"{title} ({nth})" if nth else title, output


def _read_word(word: str) -> str:
    return str(json.loads(word, strict=False)) if word.startswith('"') else word
