"""What Python that does nothing but call has around its calls, in a fence of code.

    statement := call | "print(" call ")" | name "=" call

``default_api.`` before a call is how some models were shown their tools; it goes with what stands around it.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Za-z_]\w{0,63}[ \t]{0,8}")
_SPACE = re.compile(r"[ \t\r\n]{0,64}")
_MODULE = "default_api."


class Statement:
    """What stands around one call after the other. ``is_open``: a ``print(`` waits for what closes it."""

    def __init__(self) -> None:
        self.is_open = False

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
        """Return where what closes a call that ended before ``pos`` ends."""
        closes, self.is_open = self.is_open and text.startswith(")", pos), False
        return pos + closes


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()
