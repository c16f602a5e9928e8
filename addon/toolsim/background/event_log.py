"""Keeps the events of an answer that is generated in the background. Clients can follow the events from any point.

All followers receive the same frames. Only the newest frames are kept, up to a limit. A follower receives an error if
it needs frames that have been dropped, because it started too late or reads too slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from toolsim.background.frames import BEHIND, DONE, error_frame, events_value, frames_of

_FRAMES_AT_ONCE = 256
_MAX_BYTES = 4 * 1024 * 1024


class EventLog:
    """Keeps the newest ``max_bytes`` of the added events, and streams events to followers until ``end`` is called."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._first = 0
        self._frames: list[bytes] = []
        self._bytes = 0
        self._is_over = False
        self._grown = asyncio.Event()

    def __repr__(self) -> str:
        return f"EventLog({self._first} to {self.last}{', over' if self._is_over else ''})"

    @property
    def last(self) -> int:
        """The number of the last event, or -1 before the first event."""
        return self._first + len(self._frames) - 1

    def add(self, written: Sequence[bytes]) -> None:
        """Append a writer's frames to the log."""
        frames = frames_of(written)
        self._frames += frames
        self._bytes += sum(map(len, frames))
        if self._bytes > self._max_bytes:
            self._forget()
        self._wake()

    def end(self) -> None:
        """Mark the answer as ended. Each follower's stream then ends after the last event."""
        self._is_over = True
        self._wake()

    def has(self, after: int) -> bool:
        """Return whether all events that follow the event with the number ``after`` are still available."""
        return after + 1 >= self._first

    def value(self, end: Sequence[bytes] = ()) -> bytes:
        """Return the events in stored form, followed by the frames in ``end``, which are not yet in the log."""
        return events_value(self._first, [*self._frames, *frames_of(end)])

    async def follow(self, after: int) -> AsyncGenerator[bytes]:
        """Yield the frames after the event with the number ``after``, as they arrive, until the answer ends."""
        place = after + 1
        while True:
            if place < self._first:
                yield error_frame(BEHIND, place)
                return
            start = place - self._first
            if frames := self._frames[start : start + _FRAMES_AT_ONCE]:
                place += len(frames)
                yield b"".join(frames)
            elif self._is_over:
                yield DONE
                return
            else:
                await self._grown.wait()

    def _forget(self) -> None:
        """Drop the oldest events until the log is three quarters full, so that this method is called rarely."""
        count = 0
        while count < len(self._frames) and self._bytes > self._max_bytes * 3 // 4:
            self._bytes -= len(self._frames[count])
            count += 1
        del self._frames[:count]
        self._first += count

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()
