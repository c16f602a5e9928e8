"""The events of a streamed Responses answer, as frames.

1. Every frame is written in one piece; ``event:`` repeats the ``type``.
2. One counter gives each event its ``sequence_number``, from 0, errors and keep-alives included.
3. The deltas of one text differ in it and in their number alone: all else of their frames is written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolsimlib.wire.json_codec import dump, dump_string
from toolsimlib.wire.sse import encode


class EventStream:
    """Makes frames, and keeps them until they are taken. ``is_on`` is false of an answer that is not streamed."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self._number = 0
        self._frames: list[bytes] = []
        self._delta_head = self._delta_tail = ""

    def emit(self, event: str, fields: Mapping[str, Any], more: str = "") -> None:
        """Make the frame of an event. ``more``: members that are JSON already, each behind its comma."""
        if self.is_on:
            data = dump({"type": event, **fields})[:-1]
            self._frames.append(encode(f'{data}{more},"sequence_number":{self._number}}}', event))
            self._number += 1

    def start_deltas(self, event: str, fields: Mapping[str, Any], more: str = "") -> None:
        """Let the deltas that follow be of this event. ``more``: as in ``emit``, behind the text."""
        head = dump({"type": event, **fields})
        self._delta_head = f'event: {event}\ndata: {head[:-1]},"delta":'
        self._delta_tail = f'{more},"sequence_number":'

    def deltas(self, texts: Sequence[str]) -> None:
        """Make the frames of deltas that came together, as one piece."""
        if self.is_on:
            head, tail, first = self._delta_head, self._delta_tail, self._number
            self._number += len(texts)
            frames = [f"{head}{dump_string(text)}{tail}{number}}}\n\n" for number, text in enumerate(texts, first)]
            self._frames.append("".join(frames).encode())

    def done(self) -> None:
        """Make the last frame, behind all events."""
        if self.is_on:
            self._frames.append(encode("[DONE]"))

    def take(self) -> list[bytes]:
        """Return the frames that were made since the last time."""
        frames, self._frames = self._frames, []
        return frames
