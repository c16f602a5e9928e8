"""A limit on an answer's pending events, by the number of events and the length of their text."""

from __future__ import annotations

from collections import deque

MAX_EVENTS = 32
MAX_CHARS = 64 * 1024
"""Maximum length, in characters, of the pending text. A single event can be longer, because it is not split."""


class Load:
    """The load caused by pending events. Events are removed in the order in which they were added."""

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._chars = 0

    def add(self, event: object) -> None:
        """Add the size of a pending event."""
        size = _size(event)
        self._sizes.append(size)
        self._chars += size

    def remove(self) -> None:
        """Subtract the size of the oldest pending event, which the consumer has received."""
        self._chars -= self._sizes.popleft()

    @property
    def is_full(self) -> bool:
        """Whether the producer of the events has to wait."""
        return len(self._sizes) >= MAX_EVENTS or self._chars >= MAX_CHARS


def _size(event: object) -> int:
    """Return the number of characters in an event's text or item, or 0 for an event with neither."""
    text: str | None = getattr(event, "text", None)
    if text is not None:
        return len(text)
    item: object = getattr(event, "item", None)
    return len(repr(item)) if item is not None else 0
