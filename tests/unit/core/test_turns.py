"""Tests for turns of the event loop, which run large pieces of work one at a time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from toolsim.core.turns import ALONE_SECONDS, STEPS, Turns


class Iterations:
    """Counts the iterations of the event loop while a test runs."""

    def __init__(self) -> None:
        self.count = 0
        self._counting = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    def stop(self) -> None:
        self._counting.cancel()


@pytest.fixture
def turns() -> Turns:
    """Return the turns of a process with two active owners."""
    made = Turns()
    for owner in ("many", "few"):
        made.note(owner)
    return made


@pytest.fixture
async def iterations() -> Iterations:
    return Iterations()


async def test_one_piece_of_work_at_a_time(turns: Turns, iterations: Iterations) -> None:
    """Many streams of one owner run one after another, in order, and other tasks run in between."""
    began: list[tuple[int, int]] = []

    async def stream(number: int) -> None:
        await turns.wait("many")
        began.append((iterations.count, number))

    await asyncio.gather(*map(stream, range(16)))
    assert [number for _, number in began] == [*range(16)]
    assert all(after - before >= STEPS for (before, _), (after, _) in pairwise(began))


async def test_owners_take_turns(turns: Turns, iterations: Iterations) -> None:
    """The work of another owner waits for only one turn, regardless of how many streams wait."""
    order: list[str] = []

    async def stream(owner: str) -> None:
        for _ in range(3):
            await turns.wait(owner)
            order.append(owner)

    await asyncio.gather(*(stream("many") for _ in range(16)), stream("few"))
    assert order[:6] == ["many", "few"] * 3


async def test_only_stream_starts_immediately(turns: Turns, iterations: Iterations) -> None:
    """If an owner is the only one that works, its work starts immediately, both at first and after a break."""
    for _ in range(3):
        before = iterations.count
        await turns.wait("only")
        assert iterations.count == before
        for _ in range(2 * STEPS):
            await asyncio.sleep(0)


async def test_canceled_work_loses_its_turn(turns: Turns) -> None:
    """Work that is canceled while it waits, or as its turn arrives, does not delay other work."""
    await turns.wait("one")
    waiting = [asyncio.create_task(turns.wait(owner)) for owner in ("one", "other", "third")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    while not waiting[1].done():
        waiting[1].cancel()
        await asyncio.sleep(0)
    await asyncio.wait_for(waiting[2], 1)


def test_each_loop_has_turns_of_its_own(turns: Turns) -> None:
    """An event loop that ends during a turn does not affect another event loop."""
    for _ in range(2):
        asyncio.run(asyncio.wait_for(turns.wait("one"), 1))


async def test_only_owner_does_not_wait(iterations: Iterations) -> None:
    """The streams of a single owner do not wait. After another owner has sent a request, they wait for each other until
    the other owner has been inactive for ``ALONE_SECONDS``.
    """
    now = [0.0]
    turns = Turns(lambda: now[0])

    async def waited() -> bool:
        before = iterations.count
        await asyncio.gather(*(turns.wait("mine") for _ in range(4)))
        return iterations.count - before > STEPS

    for _ in range(2):
        turns.note("mine")
    assert not await waited()
    turns.note("another")
    turns.note("mine")
    assert await waited()
    now[0] += ALONE_SECONDS - 1
    turns.note("mine")
    assert await waited()
    now[0] += 2
    assert not await waited()
