"""What may begin a call without the tag: the openings of forms and fences, told from as few characters as possible.

{                      JSON        at once; the form's own lexer gives it up at the first key that no call has
[                      JSON        unless it goes on as the history's record does
[function_call SPACE   a record
name(                  syntax      only the name of a tool on offer: no other word is held back for it
```                    a fence     its language tells whether it may hold a call
~~~                    a fence of code, which holds none
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

from toolsimlib.response.form import Kind

LANGUAGES = ("", "json", "tool_call", "tool_code", "xml", "python", "py")
"""What may stand behind the opening mark of a fence that holds a call."""

CODE = ("tool_code", "python", "py")
"""Those of fences that may hold statements around their calls."""

TAUGHT = ("python", "py")
"""Those of fences that show code far more often than they call."""

_MAX_LANGUAGE = 64
"""Characters behind a fence's mark that are looked at: a language, and spaces."""

MARK = re.compile(r"`++|~++")
NAME = re.compile(r"[A-Za-z_][\w.:/-]*+")
_LANGUAGE = re.compile(r"[ \t]*+(\w*+)[ \t\r]*+")
_RECORD = "[function_call"
_MIN_MARK = 3


def language_at(text: str, pos: int, *, final: bool) -> tuple[str, int] | Literal["more"] | None:
    """Return the language behind the opening mark that ends at ``pos`` and the end of that line, None for no such."""
    found = _LANGUAGE.match(text, pos)
    assert found is not None
    word, end = found[1].lower(), found.end()
    if end == len(text) and not final and end - pos <= _MAX_LANGUAGE:
        return "more" if any(each.startswith(word) for each in LANGUAGES) else None
    return (word, end + 1) if text.startswith("\n", end) and word in LANGUAGES else None


def opening_at(
    text: str, pos: int, names: Sequence[str], *, final: bool
) -> Kind | Literal["fence", "code", "more"] | None:
    """Return what begins at ``pos``: "more" as long as that cannot be told, which it can be if the text is ``final``.

    ``names``: the tools on offer, sorted.
    """
    match text[pos]:
        case "{":
            return "json"
        case "[":
            head = text[pos : pos + len(_RECORD) + 1]
            if _RECORD.startswith(head) and not final:
                return "more"
            if not head.startswith(_RECORD):
                return "json"
            return "record" if head[len(_RECORD) :].isspace() else None
        case "`" | "~":
            mark = MARK.match(text, pos)
            assert mark is not None
            if mark.end() == len(text) and not final:
                return "more"
            if len(mark[0]) < _MIN_MARK:
                return None
            return "fence" if text[pos] == "`" else "code"
    name = NAME.match(text, pos)
    if name is None:
        return None
    if name.end() == len(text) and not final:
        at = bisect_left(names, name[0])
        return "more" if at < len(names) and names[at].startswith(name[0]) else None
    return "syntax" if text.startswith("(", name.end()) and name[0] in names else None
