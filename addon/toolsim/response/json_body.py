"""The lexer of a JSON body between tags: it tracks strings and how deep the brackets nest, and builds no values.

Strings may stand in single quotes, as Python writes them: a tag inside one is data there too. An apostrophe within such
a string ends it, and what follows is a slip.

It stops at, and names:

    more    the end of the current text (or half an escape before it)
    tag     what may begin a tag, outside strings: the sentinel knows which tags count
    closed  behind the last bracket, if there is no tag to wait for; else at a tag that closes the block
    opened  at a tag that opens another block
    slip    what no small slip explains: a word or a bracket right behind a string, any other character
"""

from __future__ import annotations

import re
from typing import Literal

from toolsim.response.pieces import IN_STRING
from toolsim.response.tags import foreign_end

Stop = Literal["more", "tag", "closed", "opened", "slip"]

_PLAIN = re.compile(r"[ \t\r\n,:0-9A-Za-z_.+\-]*+").match
_SPACE = " \t\r\n"


class JsonBody:
    """One body, read from behind its first bracket, ``opened``; ``closing`` is the tag that closes its block.

    Without one its last bracket closes it.
    """

    __slots__ = ("_closes", "_depth", "_first", "_last", "_quote")

    def __init__(self, opened: str, closing: str = "</") -> None:
        self._closes = not closing
        self._first = closing[:1]
        self._quote = ""  # What the open string ends with, "" outside strings.
        self._last = opened  # The last significant character outside strings.
        self._depth = 1

    @property
    def is_complete(self) -> bool:
        """Whether every bracket and string that was opened is closed."""
        return not self._depth and not self._quote

    def is_content(self, text: str) -> bool:
        """Return whether all of a text is content of the open string."""
        return bool(self._quote) and self._quote not in text and "\\" not in text

    def read(self, text: str, pos: int, stop: int) -> tuple[int, Stop]:
        """Read from ``pos``; return where it stopped, at ``stop`` or before, and what it met."""
        while pos < stop:
            if self._quote:
                # The pattern matches everywhere.
                pos = IN_STRING[self._quote].match(text, pos, stop).end()  # type: ignore[union-attr]
                if pos == stop or text[pos] == "\\":  # The character after a backslash is still to come.
                    return pos, "more"
                pos += 1
                self._quote = ""
                self._last = '"'
                continue
            end = _PLAIN(text, pos, stop).end()  # type: ignore[union-attr]
            if end > pos:
                run = text[pos:end].strip(_SPACE)
                if run:
                    if self._last == '"' and run[0] not in ",:":
                        return pos, "slip"
                    self._last = run[-1]
                pos = end
                continue
            char = text[pos]
            if char == "<" or (char == self._first and not self._depth):
                return pos, "tag"
            if not self._accept(char):
                return pos, "slip"
            pos += 1
            if self._closes and not self._depth:
                return pos, "closed"
        return pos, "more"

    def read_tag(self, text: str, pos: int, opening: str, closing: str, *, final: bool) -> tuple[Stop, int]:
        """Return what the "<" at ``pos`` is, and where the tag that closes the block ends, if it is one."""
        rest = text[pos : pos + len(closing)]
        if rest == closing:
            return "closed", pos + len(closing)
        if text.startswith(opening, pos):
            return ("closed" if self.is_complete else "opened"), pos
        if self.is_complete and (end := foreign_end(text, pos, closing, final=final)):
            return ("more" if end < 0 else "closed"), end
        if final and self.is_complete and closing.startswith(rest):
            return "closed", len(text)
        return ("more" if not final and (closing.startswith(rest) or opening.startswith(rest)) else "slip"), pos

    def _accept(self, char: str) -> bool:
        """Take one character that is neither plain nor in a string; return whether it may stand here."""
        if char in IN_STRING:
            self._quote = char if self._last in "{[,:" else ""
            return bool(self._quote)
        if char in "{[":
            # If no tag can end text that is not JSON, a bracket in the wrong place must.
            if self._last == '"' or (self._closes and self._last not in "[:,"):
                return False
            self._depth += 1
        elif char in "}]":
            self._depth = max(self._depth - 1, 0)
        elif char != "`" or self._depth:
            return False
        self._last = char
        return True
