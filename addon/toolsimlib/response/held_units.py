"""What the parser of untagged calls holds back: a run of whole units, and behind it the one that is still open.

    run  := (unit | whitespace)*        decided together, by where they stand in the answer
    open := raw tail                    ``tail`` is whitespace behind its last form: it joins the unit if more follows

Whatever is decided, all text comes out again, in order.
"""

from __future__ import annotations

from toolsimlib.response.pieces import Calls
from toolsimlib.response.verdict import Accepted


class HeldUnits:
    """The text held back. ``size``: its characters; ``calls``: those of the open unit so far."""

    def __init__(self) -> None:
        self._run: list[Calls | str] = []
        self._raw: list[str] = []
        self._tail: list[str] = []
        self.calls: list[Accepted] = []
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._run or self._raw)

    @property
    def is_open(self) -> bool:
        """Whether there is an open unit."""
        return bool(self._raw)

    @property
    def has_line_ended(self) -> bool:
        """Whether a line has ended behind the last form of the open unit."""
        return any("\n" in piece for piece in self._tail)

    def add(self, text: str) -> None:
        """Add text to the open unit."""
        if text:
            self.join_tail()
            self._raw.append(text)
            self.size += len(text)

    def add_tail(self, text: str) -> None:
        """Add whitespace behind what may be the end of the open unit."""
        if text:
            self._tail.append(text)
            self.size += len(text)

    def join_tail(self) -> None:
        """Make the whitespace at its end part of the open unit."""
        self._raw += self._tail
        self._tail = []

    def take_tail(self) -> str:
        """Return the whitespace at the end, and forget it."""
        text = "".join(self._tail)
        self._tail = []
        self.size -= len(text)
        return text

    def take_open(self) -> str:
        """Return the text of the open unit, which is not a call, and forget it."""
        text = "".join([*self._raw, *self._tail])
        self._raw = []
        self._tail = []
        self.calls = []
        self.size -= len(text)
        return text

    def close(self, *, ends: bool = False) -> None:
        """Put the open unit, all of whose forms are calls, behind the others."""
        self._run.append(Calls("".join(self._raw), tuple(self.calls), ends))
        self._run += self._tail
        self._raw = []
        self._tail = []
        self.calls = []

    def add_space(self, text: str) -> None:
        """Add whitespace behind the whole units."""
        if text:
            self._run.append(text)
            self.size += len(text)

    def take_run(self, *, count: bool) -> list[Calls | str]:
        """Return the whole units, as calls if they ``count``, otherwise as one text, and forget them."""
        run, self._run = self._run, []
        text = "".join(piece.raw if isinstance(piece, Calls) else piece for piece in run)
        self.size -= len(text)
        return run if count or not run else [text]
