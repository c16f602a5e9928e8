"""Turns of the event loop: large pieces of work run one at a time, and other tasks run in between.

A time slice limits one piece of work. But each iteration of the event loop runs a piece of every stream whose data has
arrived, so next to a client with 16 streams, each of the dozen steps of a small request would wait for 16 pieces.

1. A piece of work waits for its turn before it starts. ``STEPS`` iterations later, the next piece of work has its turn.
2. The owners of the work take turns, regardless of how many streams each of them has.
3. Nothing waits for a certain time, so an only stream is not slowed down.
4. Only the standard library ends a turn, so that an exception cannot make all other streams wait forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from toolsim.core.fair_lock import FairLock

STEPS = 8
"""The number of iterations of the event loop between two turns."""

_LOCKS = WeakKeyDictionary[asyncio.AbstractEventLoop, FairLock]()


async def wait_for_turn(owner: str) -> None:
    """Wait until a large piece of work for this owner can run, or start to run."""
    loop = asyncio.get_running_loop()
    if (lock := _LOCKS.get(loop)) is None:
        lock = _LOCKS[loop] = FairLock()
    ending: Callable[[], object] = await lock.acquire(owner)
    for _ in range(STEPS):
        ending = partial(loop.call_soon, ending)
    loop.call_soon(ending)
