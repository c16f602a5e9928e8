"""Blocks that are not calls: our own tag, something that cannot be the body of a call, and the end of the tag.

    <tool_call>not json</tool_call>         <tool_call>{"name":"f","arg

The sentinel lets such text pass at once, since a model may talk about its tags, so it is never judged. But a model that
means to call fails in this way too, and a lost call must show up somewhere: it is counted.

1. If no body ever began, it counts if the closing tag follows within ``_MAX_CHARACTERS``, before any other tag.
2. If a body began, it counts if the text ends in the middle of it, unless the text itself was cut.
"""

from __future__ import annotations

from collections.abc import Callable

_MAX_CHARACTERS = 4096
"""How far a closing tag is searched for."""


class UnreadBlocks:
    """Searches for the closing tags of such blocks, and calls ``count`` for each."""

    def __init__(self, count: Callable[[], None]) -> None:
        self.count = count
        self._closing, self._tail, self._left = "", "", 0

    @property
    def waits(self) -> bool:
        """Whether a closing tag is searched for, so that all text has to be fed."""
        return bool(self._closing)

    def open(self, closing: str) -> None:
        """Remember an opening tag that opened no block; ``closing`` is its closing tag."""
        self._closing, self._tail, self._left = closing, "", _MAX_CHARACTERS

    def close(self) -> None:
        """Stop searching: another tag has come."""
        self._closing = ""

    def feed(self, text: str) -> None:
        """Take prose behind the opening tag."""
        if not self._closing:
            return
        text, self._left = self._tail + text[: self._left], self._left - len(text)
        if self._closing in text:
            self.count()
        if self._closing in text or self._left <= 0:
            self.close()
        self._tail = text[1 - len(self._closing) :] if self._closing else ""
