"""Tests for turns of the event loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from toolsim.core.turns import STEPS, wait_for_turn


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
async def iterations() -> Iterations:
    return Iterations()


async def test_one_piece_of_work_at_a_time(iterations: Iterations) -> None:
    """Many streams of one owner work one after the other, in order, and other tasks run in between."""
    began: list[tuple[int, int]] = []

    async def stream(number: int) -> None:
        await wait_for_turn("many")
        began.append((iterations.count, number))

    await asyncio.gather(*map(stream, range(16)))
    assert [number for _, number in began] == [*range(16)]
    assert all(after - before >= STEPS for (before, _), (after, _) in pairwise(began))


async def test_owners_take_turns(iterations: Iterations) -> None:
    """The work of another owner waits for one turn, regardless of how many streams wait."""
    order: list[str] = []

    async def stream(owner: str) -> None:
        for _ in range(3):
            await wait_for_turn(owner)
            order.append(owner)

    await asyncio.gather(*(stream("many") for _ in range(16)), stream("few"))
    assert order[:6] == ["many", "few"] * 3


async def test_only_stream_does_not_wait(iterations: Iterations) -> None:
    """The first piece of work starts immediately, and so does one after a break."""
    for _ in range(3):
        before = iterations.count
        await wait_for_turn("only")
        assert iterations.count == before
        for _ in range(2 * STEPS):
            await asyncio.sleep(0)


async def test_cancelled_work_loses_its_turn() -> None:
    """Work that is cancelled while it waits, or as its turn arrives, does not keep the others from working."""
    await wait_for_turn("one")
    waiting = [asyncio.create_task(wait_for_turn(owner)) for owner in ("one", "other", "third")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    while not waiting[1].done():
        waiting[1].cancel()
        await asyncio.sleep(0)
    await asyncio.wait_for(waiting[2], 1)


def test_each_loop_has_turns_of_its_own() -> None:
    """A loop that ends during a turn does not affect another loop."""
    for _ in range(2):
        asyncio.run(asyncio.wait_for(wait_for_turn("one"), 1))
