"""Cooperative scheduling: long work runs in slices with pauses, so that it does not block the event loop.

1. A slice is measured in CPU time. In wall-clock time, nearly every piece of work would use up its slice on a busy
   machine, and the pauses would make the backend's data queue up.
2. A pause is longer than a slice, because waiting tasks typically have a dozen small steps to run. Other tasks
   therefore receive two thirds of the loop's time, regardless of how much work one client causes.
3. Successive large pieces of work, such as large reads from one connection, share a slice unless the loop was free
   between them for as long as a pause. Small pieces do not use up the slice, because other tasks run between them
   anyway.
"""

from __future__ import annotations

import asyncio
import time

SLICE_SECONDS = 0.003
"""Maximum CPU time that work uses before it pauses, in seconds."""

_SMALL_SECONDS = SLICE_SECONDS / 4
"""Maximum CPU time of a small piece of work (rule 3), in seconds."""

PAUSE_SECONDS = 0.006
"""Duration of a pause, during which other tasks run, in seconds."""


class TimeSlice:
    """The time slice of one piece of work. The work occupies the event loop between ``begin`` and ``end``."""

    def __init__(self) -> None:
        self._taken = 0.0
        self._ended = self._began = time.monotonic()
        self._busy = time.thread_time()

    def begin(self) -> None:
        """Start or resume the work. It receives a new slice if it was suspended for at least the length of a pause."""
        now = time.monotonic()
        if now - self._ended >= PAUSE_SECONDS:
            self._taken = 0.0
        self._began, self._busy = now, time.thread_time()

    def end(self) -> None:
        """Suspend the work so that other tasks can run. If the work resumes before ``PAUSE_SECONDS`` have passed, it
        continues its old slice.
        """
        taken = time.thread_time() - self._busy
        self._taken = self._taken + taken if taken > _SMALL_SECONDS else 0.0
        self._ended = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether a pause is due, because the slice is used up."""
        # The wall clock is read first, because reading the CPU time takes longer than processing most deltas.
        left = SLICE_SECONDS - self._taken
        return time.monotonic() - self._began > left and time.thread_time() - self._busy > left

    def restart(self) -> None:
        """Start a new slice, because other tasks are about to run."""
        self._taken, self._ended = 0.0, time.monotonic()

    async def yield_to_others(self) -> None:
        """Pause if the slice is used up."""
        if self.is_due:
            self.restart()
            await asyncio.sleep(PAUSE_SECONDS)
            self.begin()
