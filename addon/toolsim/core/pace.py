"""How long one piece of work may hold the event loop: it is done in slices, with pauses between them.

1. A slice is measured in processor time. On a busy machine nearly everything takes long by the clock, and what a
   backend sends meanwhile would queue up.
2. A pause is longer than a slice, since what waits has a dozen small steps to do. So however much one client's work is,
   others get two thirds of the loop.
3. Work that comes in large pieces, one read of a connection after the other, is one piece of work unless something
   between them took as long as a pause. Between small ones others have their turn anyway, and a pause costs more.
"""

from __future__ import annotations

import asyncio
import time

SLICE_SECONDS = 0.003
"""How long one piece of work is done before others continue."""

_SMALL_SECONDS = SLICE_SECONDS / 4
"""What takes no longer is a small piece of work (rule 3)."""

PAUSE_SECONDS = 0.006
"""How long others continue then."""


class Pace:
    """What one piece of work has taken of its slice. Between ``begin`` and ``end`` it holds the loop."""

    def __init__(self) -> None:
        self._taken = 0.0
        self._ended = self._began = time.monotonic()
        self._busy = time.thread_time()

    def begin(self) -> None:
        """Go on: with a new slice, if others have had a pause."""
        now = time.monotonic()
        if now - self._ended >= PAUSE_SECONDS:
            self._taken = 0.0
        self._began, self._busy = now, time.thread_time()

    def end(self) -> None:
        """Let others continue for a while, but maybe not long enough."""
        taken = time.thread_time() - self._busy
        self._taken = self._taken + taken if taken > _SMALL_SECONDS else 0.0
        self._ended = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the slice is over, and others should have a pause."""
        # The clock is read first: reading the processor time takes longer than most deltas.
        left = SLICE_SECONDS - self._taken
        return time.monotonic() - self._began > left and time.thread_time() - self._busy > left

    def renew(self) -> None:
        """End the slice, since others have a pause now."""
        self._taken, self._ended = 0.0, time.monotonic()

    async def rest(self) -> None:
        """Pause, if the slice is over."""
        if self.is_due:
            self.renew()
            await asyncio.sleep(PAUSE_SECONDS)
            self.begin()
