"""Whitespace beside a call: held back until it is known whether other text follows, and dropped if a call does."""

from __future__ import annotations

_MAX_GAP = 65_536
"""Characters held back. A model that is stuck writes whitespace for ever: beyond this it is text."""


class Gap:
    """Whitespace that is emitted only if other text follows."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def hold(self, text: str) -> bool:
        """Hold ``text`` back if it is whitespace, and return whether it was."""
        if not text.isspace() or self._length + len(text) > _MAX_GAP:
            return False
        self._pieces.append(text)
        self._length += len(text)
        return True

    def hold_mark(self, mark: str) -> None:
        """Hold back what is not whitespace but goes with a call all the same: the mark of a fence around it."""
        self._pieces.append(mark)
        self._length += len(mark)

    def take(self) -> str:
        """Return what was held back, and forget it."""
        text = "".join(self._pieces)
        self._pieces = []
        self._length = 0
        return text
