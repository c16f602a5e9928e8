"""A limit for the events of an answer that wait to be taken, by their number and by their text."""

from __future__ import annotations

MAX_EVENTS = 32
MAX_CHARS = 64 * 1024
"""One event can have more: it is taken as a whole."""


class Load:
    """The events that wait."""

    def __init__(self) -> None:
        self._events = self._chars = 0

    def add(self, event: object) -> None:
        """Count an event that waits."""
        self._events += 1
        self._chars += _size(event)

    def remove(self, event: object) -> None:
        """Count an event that was taken."""
        self._events -= 1
        self._chars -= _size(event)

    @property
    def is_full(self) -> bool:
        """Whether their producer has to wait."""
        return self._events >= MAX_EVENTS or self._chars >= MAX_CHARS


def _size(event: object) -> int:
    """Return the characters of an event: those of its text, or of the item that it contains."""
    text: str | None = getattr(event, "text", None)
    if text is not None:
        return len(text)
    item: object = getattr(event, "item", None)
    return len(repr(item)) if item is not None else 0
