"""Blocks that are none: our own tag, what cannot be a call's body, and the tag's end.

    <tool_call>not json</tool_call>         <tool_call>{"name":"f","arg

The sentinel lets such text pass at once, since a model may talk about its tags, so nobody judges it. But a model that
means a call fails in this way too, and a lost call must show up somewhere: it is counted.

1. What never began as a body counts where the tag's own end follows within ``_MAX_CHARACTERS``, before any other tag.
2. What began as one counts where the text ends in the middle of it, unless the text itself was cut.
"""

from __future__ import annotations

from collections.abc import Callable

_MAX_CHARACTERS = 4096
"""Up to here a closing tag is looked for."""


class Unread:
    """Looks for the ends of blocks that are none, and calls ``count`` for each."""

    def __init__(self, count: Callable[[], None]) -> None:
        self.count = count
        self._closing, self._tail, self._left = "", "", 0

    @property
    def waits(self) -> bool:
        """Whether an end is looked for, so that all text has to be fed."""
        return bool(self._closing)

    def open(self, closing: str) -> None:
        """Remember an opening tag that opened nothing; what ``closing`` would have closed follows."""
        self._closing, self._tail, self._left = closing, "", _MAX_CHARACTERS

    def close(self) -> None:
        """Stop looking: another tag has come."""
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
