"""A call that goes on: what an earlier round wrote of it, joined to what this one writes.

A model that is asked to go on does so, or it starts over. It has started over if its first visible characters are those
with which the call began; as long as that is open, they are held back. Where it goes on, it goes on at the very
character: whitespace at the joint may stand inside a string.
"""

from __future__ import annotations

# Characters of a beginning that tell it from a continuation: enough for a tag, or for a brace and a key.
_TELLING = 16


class Begun:
    """Joins ``text``, the beginning of a call, to its continuation."""

    def __init__(self, text: str) -> None:
        self._begun = text
        shown = text.lstrip()
        # Behind the tag a model may write other whitespace than before.
        self._head = shown[: shown.find(">") + 1] or shown[:_TELLING] if shown.startswith("<") else shown[:_TELLING]
        self._waiting: str | None = ""

    def join(self, text: str) -> str:
        """Return the text as it is to be read: "" as long as it is open whether the model goes on."""
        if self._waiting is None:
            return text
        self._waiting += text
        seen = self._waiting.lstrip()
        if len(seen) < len(self._head) and self._head.startswith(seen):
            return ""
        whole = self._waiting if seen.startswith(self._head) else self._begun + self._waiting
        self._waiting = None
        return whole

    def end(self) -> str:
        """Return what is still to be read at the end of the text: then the model did not start over."""
        waiting, self._waiting = self._waiting, None
        return "" if waiting is None else self._begun + waiting
