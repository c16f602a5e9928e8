"""A thread that can be awaited: one job after another, each with its own result."""

from __future__ import annotations

import asyncio
import threading

import pytest
from toolsimlib.store.thread import OneThread


async def test_one_after_another() -> None:
    """In order, and in one separate thread; exceptions reach whoever awaits the job."""
    thread, seen = OneThread("t"), []
    assert not thread.is_started
    futures = [thread.do(lambda n=n: seen.append((n, threading.current_thread().name))) for n in range(5)]  # type: ignore[misc]
    await asyncio.gather(*futures)
    assert seen == [(n, "t") for n in range(5)]
    with pytest.raises(ZeroDivisionError):
        await thread.do(lambda: 1 / 0)
    assert await thread.do(lambda: 7) == 7
    assert (thread.waiting, thread.is_started) == (0, True)
    thread.stop()


async def test_what_nobody_awaits_is_done_all_the_same() -> None:
    """It counts as waiting until then."""
    thread, go = OneThread("t"), threading.Event()
    left = thread.do(lambda: go.wait(60))
    left.cancel()
    failed = thread.do(lambda: 1 / 0)
    failed.cancel()
    assert thread.waiting == 2
    go.set()
    assert await thread.do(lambda: 1) == 1
    assert thread.waiting == 0
    thread.stop()


def test_a_loop_that_is_gone() -> None:
    """The result is dropped, and the thread continues for the next loop."""
    thread, go = OneThread("t"), threading.Event()

    async def leave() -> None:
        thread.do(lambda: go.wait(60))

    async def ask() -> int:
        return await thread.do(lambda: 2)

    asyncio.run(leave())
    go.set()
    assert asyncio.run(ask()) == 2
    thread.stop()
