"""Tests for a lock whose waiting owners take turns."""

from __future__ import annotations

import asyncio

import pytest
from toolsim.core.fair_lock import FairLock

HOG, QUICK, THIRD = "hog", "quick", "third"


async def test_answers_take_turns() -> None:
    """The calls of each owner run in order, and the waiting owners take turns."""
    lock, done = FairLock(), []

    async def call(owner: str, name: str) -> None:
        release = await lock.acquire(owner)
        await asyncio.sleep(0.001)
        done.append(name)
        release()

    names = [(HOG, "h0"), (HOG, "h1"), (HOG, "h2"), (HOG, "h3"), (QUICK, "q0"), (THIRD, "t0"), (QUICK, "q1")]
    await asyncio.gather(*(call(*each) for each in names))
    assert done == ["h0", "q0", "t0", "h1", "q1", "h2", "h3"]
    await call(QUICK, "later")
    assert not lock._own  # No owner's lock is kept after its last use.


async def test_canceled_callers_are_skipped() -> None:
    """Callers that timed out or were canceled while they waited for the lock are skipped."""
    lock, done = FairLock(), []

    async def call(owner: str) -> None:
        release = await lock.acquire(owner)
        done.append(owner)
        release()

    release = await lock.acquire(HOG)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call(QUICK), 0.01)
    left, stays = asyncio.create_task(call(QUICK)), asyncio.create_task(call(THIRD))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(0)
    release()
    await stays
    assert done == [THIRD]
    await asyncio.wait_for(call(HOG), 1)


async def test_turn_of_a_canceled_caller_goes_to_the_next() -> None:
    """If a caller is canceled at the moment when its turn arrives, the turn is passed to the next caller."""
    lock = FairLock()
    release = await lock.acquire(HOG)
    first, second = (asyncio.create_task(lock.acquire(owner)) for owner in (QUICK, THIRD))
    await asyncio.sleep(0)
    release()
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    await asyncio.wait_for(second, 1)
