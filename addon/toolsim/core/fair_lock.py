"""A fair lock: one caller holds it at a time, and the owners of the callers take turns.

One owner can make dozens of concurrent calls. These calls get the lock in order, but a call of another owner waits for
at most one of them. Only standard library code releases the lock, so that no exception can leave it locked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from weakref import WeakValueDictionary


class FairLock:
    """A lock with one holder at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        # One lock per owner. Of an owner's callers, only the one that holds this lock waits for the common lock, which
        # serves its waiters in order. An owner's lock exists only while the owner has callers.
        self._own = WeakValueDictionary[Hashable, asyncio.Lock]()

    async def acquire(self, owner: Hashable) -> Callable[[], None]:
        """Wait for the lock, and return the function that releases it."""
        own = self._own.setdefault(owner, asyncio.Lock())
        with ExitStack() as held:
            await own.acquire()
            held.callback(own.release)
            await self._lock.acquire()
            held.callback(self._lock.release)
            return held.pop_all().close
