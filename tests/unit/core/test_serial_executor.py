"""Tests for a thread that runs calls one after another. The result of each call can be awaited."""

from __future__ import annotations

import asyncio
import threading

import pytest
from toolsim.core.serial_executor import QueueFull, SerialExecutor


async def test_calls_run_in_order() -> None:
    """Calls run one after another in a single separate thread. If a call raises an exception, the caller receives the
    exception when it awaits the call.
    """
    thread, seen = SerialExecutor("t"), []
    assert not thread.is_started
    futures = [thread.submit(lambda n=n: seen.append((n, threading.current_thread().name))) for n in range(5)]  # type: ignore[misc]
    await asyncio.gather(*futures)
    assert seen == [(n, "t") for n in range(5)]
    with pytest.raises(ZeroDivisionError):
        await thread.submit(lambda: 1 / 0)
    assert await thread.submit(lambda: 7) == 7
    assert (thread.waiting, thread.is_started) == (0, True)
    thread.stop()


async def test_owners_take_turns() -> None:
    """Owners take turns. Therefore, a call waits for at most one call of each other owner."""
    thread, go, done = SerialExecutor("t"), threading.Event(), list[str]()
    calls = [("a", "a0"), ("a", "a1"), ("a", "a2"), ("b", "b0"), ("b", "b1"), ("c", "c0")]
    first = thread.submit(lambda: go.wait(60), "a")
    while thread._tasks:
        await asyncio.sleep(0.001)
    futures = [thread.submit(lambda name=name: done.append(name), owner) for owner, name in calls]  # type: ignore[misc]
    go.set()
    await asyncio.gather(first, *futures)
    assert done == ["a0", "b0", "c0", "a1", "b1", "a2"]
    thread.stop()


async def test_last_call_runs_after_all_others() -> None:
    """A call submitted with ``submit_last`` runs after all waiting calls of all owners."""
    thread, go, done = SerialExecutor("t"), threading.Event(), list[int]()
    first = thread.submit(lambda: go.wait(60))
    calls = [thread.submit(lambda n=n: done.append(n), "a") for n in range(5)]  # type: ignore[misc]
    last = thread.submit_last(lambda: list(done))
    go.set()
    assert await last == [0, 1, 2, 3, 4]
    await asyncio.gather(first, *calls)
    thread.stop()


async def test_owner_with_most_calls_loses_the_latest() -> None:
    thread, go = SerialExecutor("t", max_waiting=4), threading.Event()
    running = thread.submit(lambda: go.wait(60), "a")
    while thread._tasks:
        await asyncio.sleep(0.001)
    many = [thread.submit(lambda: 1, "a") for _ in range(6)]
    few = [thread.submit(lambda: 2, "b") for _ in range(2)]
    go.set()
    outcomes = await asyncio.gather(*many, *few, return_exceptions=True)
    assert [isinstance(outcome, QueueFull) for outcome in outcomes] == [
        False,
        False,
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert await running
    assert thread.waiting == 0
    thread.stop()


async def test_cancelled_calls_still_run() -> None:
    """A call still runs after its future has been canceled. Until the call has run, it counts as waiting."""
    thread, go = SerialExecutor("t"), threading.Event()
    left = thread.submit(lambda: go.wait(60))
    left.cancel()
    failed = thread.submit(lambda: 1 / 0)
    failed.cancel()
    assert thread.waiting == 2
    go.set()
    assert await thread.submit(lambda: 1) == 1
    assert thread.waiting == 0
    thread.stop()


def test_missing_event_loop_does_not_stop_the_thread() -> None:
    """If the event loop that awaits a result has been closed, the result is dropped. The thread then continues to serve
    other event loops.
    """
    thread, go = SerialExecutor("t"), threading.Event()

    async def leave() -> None:
        thread.submit(lambda: go.wait(60))

    async def ask() -> int:
        return await thread.submit(lambda: 2)

    asyncio.run(leave())
    go.set()
    assert asyncio.run(ask()) == 2
    thread.stop()


@pytest.mark.parametrize("name", ["_next", "_surplus"])
async def test_internal_exception_does_not_stop_the_thread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the executor's own code raises an exception, the thread continues, and later calls still run."""
    thread = SerialExecutor("t", max_waiting=4)
    assert await thread.submit(lambda: 1) == 1
    right, raised = getattr(thread, name), list[bool]()

    def once() -> object:
        if not raised:
            raised.append(True)
            raise KeyError("injected")
        return right()

    monkeypatch.setattr(thread, name, once)
    try:
        assert await asyncio.wait_for(thread.submit(lambda: 2), 5) == 2
    except KeyError:
        assert name == "_surplus"
    assert await asyncio.wait_for(thread.submit(lambda: 3), 5) == 3
    assert (thread.waiting, raised) == (0, [True])
    thread.stop()
