"""Long work is emitted in pieces, and nothing of it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest
from toolsimlib.proxy.turns import LEISURE_SECONDS, at_leisure, in_turns, when_sent


def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each reading of a clock a second later than the one before."""
    for name in ("monotonic", "thread_time"):
        ticks = count(step=1)
        monkeypatch.setattr(f"time.{name}", lambda ticks=ticks: float(next(ticks)))


def test_what_is_quick_takes_one_turn() -> None:
    """Steps that take no time are emitted together."""
    assert list(in_turns([[b"a"], [], [b"b", b"c"]], lambda: False)) == [[b"a", b"b", b"c"]]


def test_long_steps_take_a_turn_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a long step other work runs, unless no frames are to come."""
    slowly(monkeypatch)
    assert list(in_turns([[b"a"], [b"b"]], lambda: False)) == [[b"a"], None, [b"b"], None, []]
    assert list(in_turns([[b"a"], [b"b"]], lambda: True)) == [[b"a", b"b"]]


def test_a_failure_comes_last() -> None:
    """What was made before a step failed is emitted before the failure."""

    def steps() -> Iterator[list[bytes]]:
        yield [b"a"]
        raise KeyError

    emitted = in_turns(steps(), lambda: False)
    assert next(emitted) == [b"a"]
    with pytest.raises(KeyError):
        next(emitted)


async def test_what_is_left_by_a_hook_waits_until_its_request_is_sent() -> None:
    """mitmproxy starts a hook's task at once, under a lock; once the task gets that lock, the request is sent."""
    events: list[str] = []
    lock = asyncio.Lock()

    async def hook() -> None:
        when_sent(lambda: events.append("left"))
        async with lock:
            events.append("sent")

    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    async with lock:
        task = asyncio.create_task(hook())
    await task
    await asyncio.sleep(0)
    assert events == ["sent", "left"]


def test_without_a_loop_it_runs_at_once() -> None:
    """Without an event loop the work runs at once, since nobody would come back to it."""
    events: list[str] = []
    when_sent(lambda: events.append("done"))
    assert events == ["done"]


async def test_what_nobody_waits_for_is_done_at_leisure() -> None:
    """It runs after everything that is ready, and soon."""
    events: list[str] = []
    at_leisure(lambda: events.append("noted"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert events == []
    await asyncio.sleep(LEISURE_SECONDS * 2)
    assert events == ["noted"]


def test_without_a_loop_leisure_is_now() -> None:
    """A recording that is replayed by hand keeps nobody waiting."""
    events: list[str] = []
    at_leisure(lambda: events.append("noted"))
    assert events == ["noted"]
