"""A position in text that arrives in pieces, for readers whose states each consume what they understand."""

from __future__ import annotations

import re


class Cursor:
    """``text``: the current text; ``pos``: how far it has been read; ``final``: whether no more text follows.

    A reader continues until ``is_spent``. What it cannot decide yet, it reads again once more text has arrived.
    """

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.final = False
        self._rest = ""

    @property
    def is_spent(self) -> bool:
        """Whether there is nothing to be read before more text arrives."""
        return self.pos == len(self.text)

    @property
    def is_waiting(self) -> bool:
        """Whether text that was taken already is to be read again."""
        return bool(self._rest)

    @property
    def char(self) -> str:
        """The next character, "" at the end of the current text."""
        return self.text[self.pos : self.pos + 1]

    def feed(self, text: str) -> None:
        """Continue with ``text``, behind what is to be read again."""
        self.text = self._rest + text
        self.pos = 0
        self._rest = ""

    def take(self, end: int) -> str:
        """Return the text up to ``end``, and move there."""
        text = self.text[self.pos : end]
        self.pos = end
        return text

    def end_of(self, pattern: re.Pattern[str]) -> int:
        """Return where the match of ``pattern`` ends, or the position if there is none."""
        match = pattern.match(self.text, self.pos)
        return self.pos if match is None else match.end()

    def skip(self, pattern: re.Pattern[str]) -> str:
        """Return what ``pattern`` matches, "" if nothing, and move behind it."""
        return self.take(self.end_of(pattern))

    def wait(self) -> None:
        """Read the rest again when more text has arrived."""
        self._rest = self.take(len(self.text))
