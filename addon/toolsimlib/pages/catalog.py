"""The manifest read back out of a message, to fold it to one line and to list the tools that the model was shown."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from toolsimlib.plan import Tool
from toolsimlib.request.manifest import HEADING

_ENTRY = re.compile(r"- ([A-Za-z0-9_.-]+)( \[strict\])?")
_BLOCK = re.compile(r"<([A-Za-z_][A-Za-z0-9_.-]*)>\{")
_LAST_EXAMPLE = "[function_call name="
# Paragraphs that may follow the last example.
_DEMAND = "You MUST call "
_ANSWER_RULE = "An answer that calls no tool must be "


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
    """Return the manifest that ``text`` holds, None if there is none; anything else in it is told apart by its lines.

    What a client words freely is indented in a manifest, so a line that begins at its first column is the manifest's.
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
                tools[-1] = _described(tools[-1], bare.removeprefix("  description: "))
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
    return Tool(
        tool.name, tool.name, parameters=parameters if isinstance(parameters, dict) else None, strict=tool.strict
    )


def _described(tool: Tool, description: str) -> Tool:
    return Tool(tool.name, tool.name, description=description, parameters=tool.parameters, strict=tool.strict)
