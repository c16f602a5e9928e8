"""Cooperative scheduling: long work runs in slices, with pauses in between, so that it does not block the event loop.

1. A slice is measured in CPU time. On a busy machine nearly everything takes long by the wall clock, and a backend's
   data would queue up in the meantime.
2. A pause is longer than a slice, since waiting tasks have a dozen small steps to do. So others get two thirds of the
   loop's time, regardless of how much work one client causes.
3. Work that arrives in large pieces, such as one read of a connection after another, counts as one piece of work unless
   something between them took as long as a pause. Between small pieces others get their turn anyway, and a pause would
   cost more.
"""

from __future__ import annotations

import asyncio
import time

SLICE_SECONDS = 0.003
"""The time that one piece of work may run before others get a turn."""

_SMALL_SECONDS = SLICE_SECONDS / 4
"""Work that takes no longer than this is a small piece (rule 3)."""

PAUSE_SECONDS = 0.006
"""The time that others get during a pause."""


class TimeSlice:
    """The part of its slice that a piece of work has used. Between ``begin`` and ``end`` it occupies the event loop."""

    def __init__(self) -> None:
        self._taken = 0.0
        self._ended = self._began = time.monotonic()
        self._busy = time.thread_time()

    def begin(self) -> None:
        """Continue, with a new slice if others have had a pause."""
        now = time.monotonic()
        if now - self._ended >= PAUSE_SECONDS:
            self._taken = 0.0
        self._began, self._busy = now, time.thread_time()

    def end(self) -> None:
        """Let others continue, perhaps for less than a full pause."""
        taken = time.thread_time() - self._busy
        self._taken = self._taken + taken if taken > _SMALL_SECONDS else 0.0
        self._ended = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the slice is used up, so that others need a pause."""
        # The wall clock is read first: reading the CPU time takes longer than most deltas.
        left = SLICE_SECONDS - self._taken
        return time.monotonic() - self._began > left and time.thread_time() - self._busy > left

    def restart(self) -> None:
        """End the slice, because others are about to get their turn."""
        self._taken, self._ended = 0.0, time.monotonic()

    async def yield_to_others(self) -> None:
        """Pause if the slice is used up."""
        if self.is_due:
            self.restart()
            await asyncio.sleep(PAUSE_SECONDS)
            self.begin()
