"""Tests for a lock that waiting answers acquire in turn."""

from __future__ import annotations

import asyncio

import pytest
from toolsim.mcp.fair_lock import FairLock
from toolsim.mcp.runtime import Caller

HOG, QUICK, THIRD = Caller("me", "hog"), Caller("you", "quick"), Caller("me", "third")


async def test_answers_take_turns() -> None:
    """After each call, the lock is passed to a different answer that is waiting. The calls of each answer keep their
    order.
    """
    turns, done = FairLock(), []

    async def call(who: Caller, name: str) -> None:
        async with turns.acquire(who, 10):
            await asyncio.sleep(0.001)
            done.append(name)

    names = [(HOG, "h0"), (HOG, "h1"), (HOG, "h2"), (HOG, "h3"), (QUICK, "q0"), (THIRD, "t0"), (QUICK, "q1")]
    await asyncio.gather(*(call(*each) for each in names))
    assert done == ["h0", "q0", "t0", "h1", "q1", "h2", "h3"]
    await call(QUICK, "later")


async def test_waiting_ends_with_a_timeout() -> None:
    """If the lock is not available within the given time, TimeoutError is raised. Callers that timed out or were
    canceled are skipped.
    """
    turns, done = FairLock(), []

    async def call(who: Caller, seconds: float) -> None:
        async with turns.acquire(who, seconds):
            done.append(who)

    async with turns.acquire(HOG, 1):
        with pytest.raises(TimeoutError):
            await call(QUICK, 0.01)
        left, stays = asyncio.create_task(call(QUICK, 10)), asyncio.create_task(call(THIRD, 10))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0)
    await stays
    assert done == [THIRD]
    await call(HOG, 0.01)


async def test_turn_of_a_cancelled_caller_goes_to_the_next() -> None:
    """If a caller is canceled just as it receives the lock, the lock is passed to the next caller."""
    turns = FairLock()
    entered = turns.acquire(HOG, 1)
    await entered.__aenter__()
    first, second = (asyncio.create_task(turns.acquire(who, 10).__aenter__()) for who in (QUICK, THIRD))
    await asyncio.sleep(0)
    await entered.__aexit__(None, None, None)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    await asyncio.wait_for(second, 1)
