"""A continued call: what an earlier round wrote of it, joined to what this one writes.

A model that is asked to continue a call either does so or starts over. It has started over if its first visible
characters are those with which the call began; they are held back while that is undecided. A continuation resumes at
the exact character: whitespace at the joint may belong to a string.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolsimlib.response.pieces import BrokenCall, Parser, Piece

# Characters of a beginning that distinguish it from a continuation: enough for a tag, or for a brace and a key.
_MAX_HEAD = 16


class Continuation:
    """Wraps the parser ``inner``: it gets ``begun``, the beginning of a call, before what continues it."""

    def __init__(self, inner: Parser, begun: str) -> None:
        self._inner = inner
        self._begun = begun
        bare = begun.lstrip()
        # A model that starts over may write different whitespace after the tag.
        tag = bare[: bare.find(">") + 1] if bare.startswith("<") else ""
        self._head = tag or bare[:_MAX_HEAD]  # What shows that it starts over.
        self._waiting: str | None = ""  # The text while that is undecided, None once it is.

    def __repr__(self) -> str:
        return f"Continuation({self._inner})"

    @property
    def in_block(self) -> bool:
        """Whether text is being held back."""
        return self._waiting is not None or self._inner.in_block

    @property
    def open_size(self) -> int:
        """How many characters of the open block have arrived, those of the earlier round included."""
        if self._waiting is not None:
            return len(self._begun) + len(self._waiting)
        return self._inner.open_size

    def feed(self, text: str) -> Sequence[Piece]:
        """Return what ``text`` completes."""
        if self._waiting is None:
            return self._inner.feed(text)
        self._waiting += text
        visible = self._waiting.lstrip()
        if len(visible) < len(self._head) and self._head.startswith(visible):
            return []
        starts_over = visible.startswith(self._head)
        whole = self._waiting if starts_over else self._begun + self._waiting
        self._waiting = None
        return self._inner.feed(whole)

    def release(self) -> Sequence[Piece]:
        """Return what is held back only while the answer has nothing but text."""
        return self._inner.release()

    def finish(self, *, cut: bool = False) -> Sequence[Piece | BrokenCall]:
        """Return what is left at the end of the text. What is undecided then did not start over."""
        if self._waiting is None:
            return self._inner.finish(cut=cut)
        whole, self._waiting = self._begun + self._waiting, None
        return [*self._inner.feed(whole), *self._inner.finish(cut=cut)]
