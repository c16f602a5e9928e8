"""The events of a streamed Responses answer, as frames.

1. Every frame is written in one piece. Its ``event:`` line repeats the ``type``.
2. All events, including errors and keep-alives, are numbered consecutively from 0 (``sequence_number``).
3. The deltas of one text differ only in their text and number, so the rest of their frames is serialized only once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolsim.wire.json_codec import dump, dump_string
from toolsim.wire.sse import encode


def head_of(event: str, fields: Mapping[str, Any], more: str = "") -> str:
    """Return the part of an event's frame before its sequence number.

    ``more`` contains further members of the object as JSON, each preceded by a comma.
    """
    return f'event: {event}\ndata: {dump({"type": event, **fields})[:-1]}{more},"sequence_number":'


class EventStream:
    """Buffer of the frames that are ready to be sent. ``is_on`` is false for a non-streamed answer."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self._number = 0
        self._frames: list[bytes] = []
        self._delta_head = self._delta_tail = ""

    def emit(self, event: str, fields: Mapping[str, Any], more: str = "") -> None:
        """Add the frame of an event. See ``head_of`` for ``more``."""
        if self.is_on:
            self._frames.append(f"{head_of(event, fields, more)}{self._number}}}\n\n".encode())
            self._number += 1

    def start_deltas(self, event: str, fields: Mapping[str, Any], more: str = "") -> None:
        """Set the event type and the constant fields of the deltas that follow. See ``head_of`` for ``more``."""
        self._delta_head = f'event: {event}\ndata: {dump({"type": event, **fields})[:-1]},"delta":'
        self._delta_tail = f'{more},"sequence_number":'

    def delta(self, text: str) -> None:
        """Add the frame of a delta."""
        if self.is_on:
            self._frames.append(f"{self._delta_head}{dump_string(text)}{self._delta_tail}{self._number}}}\n\n".encode())
            self._number += 1

    def done(self) -> None:
        """Add the frame ``[DONE]``, which follows all events."""
        if self.is_on:
            self._frames.append(encode("[DONE]"))

    def take(self) -> list[bytes]:
        """Remove the buffered frames, and return them."""
        frames, self._frames = self._frames, []
        return frames
