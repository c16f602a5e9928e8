"""Turns of the event loop: large pieces of work run one at a time, and other tasks run in between.

A time slice limits one piece of work. But each iteration of the event loop runs a piece of every stream whose data has
arrived, so next to a client with 16 streams, each of the dozen steps of a small request would wait for 16 pieces.

1. A piece of work waits for its turn before it starts. ``STEPS`` iterations later, the next piece of work has its turn.
2. The owners of the work take turns, regardless of how many streams each of them has.
3. An owner that has been alone for ``ALONE_SECONDS`` does not wait, since the additional iterations cost time.
4. Only standard library code ends a turn, so that no exception can make all other streams wait forever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from toolsim.core.fair_lock import FairLock

STEPS = 8
"""The number of iterations of the event loop between two turns."""
ALONE_SECONDS = 600.0
"""An owner counts as alone if no other owner has sent a request for this number of seconds. Few answers take longer."""


class Turns:
    """The turns of all owners. ``clock`` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._locks = WeakKeyDictionary[asyncio.AbstractEventLoop, FairLock]()
        self._owner = ""
        self._shared_until = float("-inf")

    def note(self, owner: str) -> None:
        """Note that an owner has sent a request."""
        if owner != self._owner:
            if self._owner:
                self._shared_until = self._clock() + ALONE_SECONDS
            self._owner = owner

    async def wait(self, owner: str) -> None:
        """Wait until a large piece of work for this owner can run."""
        if self._clock() > self._shared_until:
            return
        loop = asyncio.get_running_loop()
        if (lock := self._locks.get(loop)) is None:
            lock = self._locks[loop] = FairLock()
        ending: Callable[[], object] = await lock.acquire(owner)
        for _ in range(STEPS):
            ending = partial(loop.call_soon, ending)
        loop.call_soon(ending)


TURNS = Turns()
"""The turns of this process."""
