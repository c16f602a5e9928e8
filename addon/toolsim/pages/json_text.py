"""Formats JSON for people to read. Numbers keep their original notation.

Values that fit on a line stay on one line. A string with line breaks is shown decoded.
"""

from __future__ import annotations

import json
from typing import Any

MAX_INLINE = 72
"""Maximum length of an object or array that is shown on one line, in characters."""

# Maximum nesting depth up to which values are indented. Deeper values are shown on one line, since people rarely read
# them.
_MAX_DEPTH = 40
_BAR = "┆ "


class _Number(str):
    """A number in its original notation."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object as pairs, because an object can contain the same name more than once."""


def pretty(text: str) -> str:
    """Return JSON formatted on several lines. Text that is not JSON is returned unchanged."""
    try:
        value = json.loads(text, parse_int=_Number, parse_float=_Number, object_pairs_hook=_Pairs)
        return "\n".join(_lines(value, 0))
    except (ValueError, RecursionError):
        return text


def compact(value: Any) -> str:
    """Return a JSON value on one line, or "…" if the value is nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        return "…"


def _lines(value: Any, depth: int) -> list[str]:
    """Return the lines of a value, indented relative to the value itself.

    The list has one element if the value fits on one line.
    """
    if isinstance(value, _Number):
        return [value]
    if not isinstance(value, list):
        return [json.dumps(value, ensure_ascii=False)]
    opening, closing = "{}" if isinstance(value, _Pairs) else "[]"
    members: list[list[str]] = []
    for member in value:
        key, inner = member if isinstance(value, _Pairs) else ("", member)
        name = f"{json.dumps(key, ensure_ascii=False)}:" if isinstance(value, _Pairs) else ""
        if isinstance(inner, str) and "\n" in inner and depth < _MAX_DEPTH:
            members.append([name or "-", *(f"{_BAR}{line}" for line in inner.split("\n"))])
        else:
            first, *rest = _lines(inner, depth + 1)
            members.append([f"{name} {first}" if name else first, *rest])
    inline = ", ".join(lines[0] for lines in members)
    if depth >= _MAX_DEPTH or (len(inline) <= MAX_INLINE - 2 and all(len(lines) == 1 for lines in members)):
        return [f"{opening}{inline}{closing}"]
    shown = [opening]
    for number, lines in enumerate(members, 1):
        is_text = lines[-1].startswith(_BAR)
        shown += [f"  {line}" for line in lines]
        shown[-1] += "," if number < len(members) and not is_text else ""
    return [*shown, closing]
