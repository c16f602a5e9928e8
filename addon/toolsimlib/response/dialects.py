"""The forms in which models write a call between the tags when it is not JSON: one row a dialect.

A model that was tuned for tools falls back into its own form however it is asked. All rows here are tagged pairs: names
and values between marks, without types (the tool's schema gives them) and without escapes. A closing mark inside a
value is data: a value ends at the first closing mark behind which the form goes on or ends.

| dialect     | body                                                                    |
|-------------|-------------------------------------------------------------------------|
| use_tool    | ``<name>f</name><k>v</k>``                                              |
| Qwen3-Coder | ``<function=f><parameter=k>v</parameter></function>``                   |
| GLM 4.5     | ``f<arg_key>k</arg_key><arg_value>v</arg_value>``, right behind the tag |

A new dialect of this kind is one row, its reader, and its cases in the test of this room.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from toolsimlib.response.written import Written, name_of, read_xml

_NAME = r"[\w.:/-]{1,128}"
_PARAMETER = re.compile(
    r"\s*<parameter=([^<>\s=]{1,256})>(.*?)</parameter>(?=\s{0,64}(?:<parameter=|</function>|\Z))", re.DOTALL
)
_FUNCTION = re.compile(rf"\s*<function=({_NAME})>")
_END_FUNCTION = re.compile(r"\s*(?:</function>|\Z)")
_PAIR = re.compile(
    r"\s*<arg_key>([^<>]{1,256})</arg_key>\s{0,64}<arg_value>(.*?)</arg_value>(?=\s{0,64}(?:<arg_key>|\Z))", re.DOTALL
)
_PAIRS_NAME = re.compile(rf"({_NAME})(?=\s*<arg_key>)")


@dataclass(frozen=True, slots=True)
class Dialect:
    """One row: how its body begins, what of that beginning may still become one, and its reader."""

    name: str
    begins: re.Pattern[str]
    may_begin: re.Pattern[str]
    read: Callable[[str], list[Written]]
    behind_tag: bool = False


def _prefixes(word: str) -> str:
    """Return a pattern of the beginnings of ``word``, the empty one too."""
    pattern = ""
    for char in reversed(word):
        pattern = f"(?:{re.escape(char)}{pattern})?"
    return pattern


def _read_use_tool(body: str) -> list[Written]:
    return [read_xml(body)]


def _read_functions(body: str) -> list[Written]:
    """Read ``<function=f><parameter=k>v</parameter>…</function>``, one or several in a row."""
    calls: list[Written] = []
    at = 0
    while (head := _FUNCTION.match(body, at)) is not None:
        elements, end = _pairs(_PARAMETER, body, head.end())
        closed = _END_FUNCTION.match(body, end)
        if closed is None:
            break
        calls.append(Written(body[at : closed.end()], head[1], elements=elements))
        at = closed.end()
    if body[at:].strip() or not calls:
        head = _FUNCTION.match(body, at)
        calls.append(Written(body[at:], head[1] if head else name_of(body), broken=True))
    return calls


def _read_arg_pairs(body: str) -> list[Written]:
    """Read ``f<arg_key>k</arg_key><arg_value>v</arg_value>…``."""
    head = _PAIRS_NAME.match(body)
    if head is None:
        return [Written(body, broken=True)]
    elements, end = _pairs(_PAIR, body, head.end())
    return [Written(body, head[1], elements=elements, broken=bool(body[end:].strip()))]


def _pairs(pattern: re.Pattern[str], body: str, at: int) -> tuple[tuple[tuple[str, str], ...], int]:
    found: list[tuple[str, str]] = []
    while (pair := pattern.match(body, at)) is not None:
        # The values are not escaped; whoever reads them undoes one level of escapes.
        found.append((pair[1].strip(), pair[2].replace("&", "&amp;")))
        at = pair.end()
    return tuple(found), at


DIALECTS = (
    Dialect("use_tool", re.compile("<name>"), re.compile(_prefixes("<name>") + r"\Z"), _read_use_tool),
    Dialect(
        "Qwen3-Coder",
        re.compile(rf"<function={_NAME}>"),
        re.compile(rf"(?:<function={_NAME}|{_prefixes('<function=')})\Z"),
        _read_functions,
    ),
    Dialect(
        "GLM 4.5",
        re.compile(rf"{_NAME}\s{{0,8}}<arg_key>"),
        re.compile(rf"{_NAME}\s{{0,8}}{_prefixes('<arg_key>')}\Z"),
        _read_arg_pairs,
        behind_tag=True,
    ),
)


def begins(text: str, at: int, *, behind_tag: bool, final: bool) -> bool | None:
    """Return whether a body of one of the dialects begins at ``at``, None if more text is needed to tell.

    ``behind_tag``: nothing stands between the tag and ``at``. If the text is ``final``, no more will come.
    """
    rows = [row for row in DIALECTS if behind_tag or not row.behind_tag]
    if any(row.begins.match(text, at) for row in rows):
        return True
    return None if not final and any(row.may_begin.match(text, at) for row in rows) else False


def read_tagged(body: str) -> list[Written]:
    """Return the calls of a body that began as one of the dialects does; never empty."""
    start = len(body) - len(body.lstrip())
    row = next((row for row in DIALECTS if row.begins.match(body, start)), DIALECTS[0])
    return row.read(body)
