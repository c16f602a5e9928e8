"""A continued call: what an earlier round wrote of it, joined to what this one writes.

A model that is asked to continue a call either does so or starts over. It has started over if its first visible
characters are those with which the call began; they are held back while that is undecided. A continuation resumes at
the exact character: whitespace at the joint may belong to a string.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolsim.response.pieces import Around, BrokenCall, Parser, Piece

# Characters of a beginning that distinguish it from a continuation: enough for a tag, or for a brace and a key.
_MAX_HEAD = 16


class Continuation(Around[Parser, list[str]]):
    """Wraps the parser ``inner``: it gets ``begun``, the beginning of a call, before what continues it.

    While it is undecided whether this does, ``begun`` is held back too.
    """

    def __init__(self, inner: Parser, begun: str) -> None:
        super().__init__(inner, [begun])
        bare = begun.lstrip()
        # A model that starts over may write different whitespace after the tag.
        tag = bare[: bare.find(">") + 1] if bare.startswith("<") else ""
        self._head = tag or bare[:_MAX_HEAD]  # What shows that it starts over.

    @property
    def open_size(self) -> int:
        """How many characters of the open block have arrived, those of the earlier round included."""
        return sum(map(len, self._held)) or self._inner.open_size

    def feed(self, text: str) -> Sequence[Piece]:
        """Return what ``text`` completes."""
        if not self._held:
            return self._inner.feed(text)
        self._held.append(text)
        written = "".join(self._held[1:])
        visible = written.lstrip()
        if len(visible) < len(self._head) and self._head.startswith(visible):
            return []
        whole = written if visible.startswith(self._head) else "".join(self._held)
        self._held = []
        return self._inner.feed(whole)

    def release(self) -> Sequence[Piece]:
        """Return what is held back only while the answer has nothing but text."""
        return self._inner.release()

    def finish(self, *, cut: bool = False) -> Sequence[Piece | BrokenCall]:
        """Return what is left at the end of the text. What is undecided then did not start over."""
        held, self._held = self._held, []
        pieces = self._inner.feed("".join(held)) if held else []
        return [*pieces, *self._inner.finish(cut=cut)]
