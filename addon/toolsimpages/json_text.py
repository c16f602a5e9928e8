"""JSON laid out for reading, from its own tokens: numbers stay as they were written.

What fits stays on one line; a string with line breaks is shown as the text that it encodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

MAX_INLINE = 72
"""Characters of the longest value that stays on one line."""

_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]|[^\s,:{}\[\]"]++')
# Deeper values are meant for programs and are shown on one line.
_MAX_DEPTH = 40
_BAR = "┆ "


def pretty(text: str) -> str:
    """Return a JSON text laid out in lines; any other text unchanged."""
    value = _read(text)
    if value is None:
        return text
    return "\n".join(_lines(value, 0))


def compact(value: Any) -> str:
    """Return a JSON value on one line; "…" if it is nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        return "…"


class _Node:
    """An object or an array: its bracket, its members (for an object: key, value, key, value…), its inline length."""

    def __init__(self, bracket: str) -> None:
        self.bracket = bracket
        self.values: list[str | _Node] = []
        self.depth = 1
        self.length = 2

    def pairs(self) -> Iterator[tuple[str, str | _Node]]:
        if self.bracket == "{":
            keys = iter(self.values)
            yield from ((str(key), value) for key, value in zip(keys, keys, strict=True))
        else:
            yield from (("", value) for value in self.values)


def _read(text: str) -> _Node | str | None:
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    top = _Node("[")
    stack = [top]
    for token in _TOKEN.findall(text):
        if token in ("{", "["):
            node = _Node(token)
            stack[-1].values.append(node)
            stack.append(node)
        elif token in ("}", "]"):
            node = stack.pop()
            stack[-1].depth = max(stack[-1].depth, node.depth + 1)
            stack[-1].length += node.length + 2
        else:
            stack[-1].values.append(token)
            stack[-1].length += len(token) + 2 + (_breaks(token) * MAX_INLINE)
    return top.values[0]


def _breaks(token: str) -> bool:
    """Return whether a string token encodes several lines."""
    return token[0] == '"' and "\\n" in token and "\n" in json.loads(token, strict=False)


def _lines(value: _Node | str, level: int) -> Iterator[str]:
    """Yield the lines of a value; the first one is not indented."""
    if isinstance(value, str):
        yield value
        return
    if value.length <= MAX_INLINE or value.depth > _MAX_DEPTH:
        yield _inline(value)
        return
    indent = "  " * (level + 1)
    yield value.bracket
    pairs = list(value.pairs())
    for position, (key, member) in enumerate(pairs):
        comma = "," if position < len(pairs) - 1 else ""
        lead = f"{indent}{key}: " if key else indent
        if isinstance(member, str) and _breaks(member):
            yield f"{indent}{key}:" if key else f"{indent}-"
            yield from (f"{indent}{_BAR}{line}" for line in json.loads(member, strict=False).split("\n"))
            continue
        inner = _lines(member, level + 1)
        line = lead + next(inner)
        for following in inner:
            yield line
            line = following
        yield line + comma
    yield "  " * level + ("}" if value.bracket == "{" else "]")


def _inline(top: _Node) -> str:
    """Return a value on one line; not recursive, since it may be nested deeply."""
    out: list[str] = []
    work: list[str | _Node] = [top]
    while work:
        item = work.pop()
        if isinstance(item, str):
            out.append(item)
            continue
        parts: list[str | _Node] = [item.bracket]
        for position, (key, member) in enumerate(item.pairs()):
            parts += [", " if position else "", f"{key}: " if key else "", member]
        parts.append("}" if item.bracket == "{" else "]")
        work.extend(reversed(parts))
    return "".join(out)
