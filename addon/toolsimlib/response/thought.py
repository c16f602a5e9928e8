"""The thought with which a message may begin: ``<think>…</think>``. Nothing inside it is a block.

Some models write their reasoning into their text. A thought may open only before the first visible character; anywhere
else the tag is ordinary text.
"""

from __future__ import annotations

import re

from toolsimlib.response.tags import held_from

_SPACE = re.compile(r"\s*+").match
_OPEN = "<think>"
_CLOSE = "</think>"
_BEGINNINGS = frozenset(_CLOSE[:end] for end in range(1, len(_CLOSE)))


class Thought:
    """Reads a text from its beginning until no thought is open any more (``is_over``)."""

    def __init__(self) -> None:
        self._is_open = self.is_over = False

    def end(self, text: str, pos: int, *, final: bool) -> int:
        """Return up to where ``text`` from ``pos`` on is certainly prose; the rest is held back, or comes later.

        ``final``: no more text will come.
        """
        if not self._is_open:
            space = _SPACE(text, pos)
            assert space is not None  # The pattern matches everywhere.
            pos = space.end()
            if not text.startswith(_OPEN, pos):
                self.is_over = pos < len(text) and (final or not _OPEN.startswith(text[pos:]))
                return pos
            self._is_open = True
            pos += len(_OPEN)
        at = text.find(_CLOSE, pos)
        self.is_over = at != -1
        if self.is_over:
            return at + len(_CLOSE)
        return len(text) if final else held_from(text, pos, _BEGINNINGS)
