"""The Python around calls, in a code fence that does nothing but call.

    statement := call | "print(" call ")" | name "=" call

Some models were shown their tools with ``default_api.`` before the name; it counts as part of what surrounds a call.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Za-z_]\w{0,63}[ \t]{0,8}")
_SPACE = re.compile(r"[ \t\r\n]{0,64}")
_MODULE = "default_api."


class Statement:
    """The code around one call after another. ``is_open``: a ``print(`` is not closed yet.

    ``is_python``: its language is Python, and no language of calls.
    """

    def __init__(self, *, is_python: bool = False) -> None:
        self.is_open = False
        self.is_python = is_python

    def before(self, text: str, pos: int, *, final: bool) -> int | None:
        """Return where the call of the statement at ``pos`` may begin, None if more text is needed."""
        word = _WORD.match(text, pos)
        at = pos if word is None else word.end()
        if at == len(text):
            return pos if final else None
        self.is_open = text[pos:at].rstrip() == "print" and text[at] == "("
        at = _skip(text, at + 1) if self.is_open or (word is not None and text[at] == "=") else pos
        if not final and _MODULE.startswith(text[at:]):
            return None
        at += len(_MODULE) if text.startswith(_MODULE, at) else 0
        return pos if at == len(text) else at

    def behind(self, text: str, pos: int) -> int:
        """Return the end of the statement whose call ended at ``pos``."""
        closes, self.is_open = self.is_open and text.startswith(")", pos), False
        return pos + closes


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()
