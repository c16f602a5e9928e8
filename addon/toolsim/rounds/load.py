"""A limit for the events of an answer that wait to be taken, by their number and by their text."""

from __future__ import annotations

from collections import deque

MAX_EVENTS = 32
MAX_CHARS = 64 * 1024
"""A single event can have more: it is taken as a whole."""


class Load:
    """The events that wait. They are taken in the order in which they were added."""

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._chars = 0

    def add(self, event: object) -> None:
        """Count an event that waits."""
        size = _size(event)
        self._sizes.append(size)
        self._chars += size

    def remove(self) -> None:
        """Count the oldest event as taken."""
        self._chars -= self._sizes.popleft()

    @property
    def is_full(self) -> bool:
        """Whether their producer has to wait."""
        return len(self._sizes) >= MAX_EVENTS or self._chars >= MAX_CHARS


def _size(event: object) -> int:
    """Return the characters of an event: those of its text, or of the item that it contains."""
    text: str | None = getattr(event, "text", None)
    if text is not None:
        return len(text)
    item: object = getattr(event, "item", None)
    return len(repr(item)) if item is not None else 0
