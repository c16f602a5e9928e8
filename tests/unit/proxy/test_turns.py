"""What takes long is told in pieces, and nothing of it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest
from toolsimlib.proxy.turns import LEISURE_SECONDS, at_leisure, in_turns, when_sent


def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every look at a clock be a second later."""
    for name in ("monotonic", "thread_time"):
        ticks = count(step=1)
        monkeypatch.setattr(f"time.{name}", lambda ticks=ticks: float(next(ticks)))


def test_what_is_quick_takes_one_turn() -> None:
    """Steps that take no time are told together."""
    assert list(in_turns([[b"a"], [], [b"b", b"c"]], lambda: False)) == [[b"a", b"b", b"c"]]


def test_long_steps_take_a_turn_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a long step others go on, unless it was the last one."""
    slowly(monkeypatch)
    assert list(in_turns([[b"a"], [b"b"]], lambda: False)) == [[b"a"], None, [b"b"], None, []]
    assert list(in_turns([[b"a"], [b"b"]], lambda: True)) == [[b"a", b"b"]]


def test_a_failure_comes_last() -> None:
    """What was made before a step failed is told before the failure."""

    def steps() -> Iterator[list[bytes]]:
        yield [b"a"]
        raise KeyError

    told = in_turns(steps(), lambda: False)
    assert next(told) == [b"a"]
    with pytest.raises(KeyError):
        next(told)


async def test_what_is_left_by_a_hook_waits_until_its_request_is_sent() -> None:
    """mitmproxy begins a hook's task at once, under a lock; once the task gets that lock, it sends what was decided."""
    told: list[str] = []
    lock = asyncio.Lock()

    async def hook() -> None:
        when_sent(lambda: told.append("left"))
        async with lock:
            told.append("sent")

    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    async with lock:
        task = asyncio.create_task(hook())
    await task
    await asyncio.sleep(0)
    assert told == ["sent", "left"]


def test_without_a_loop_nobody_waits() -> None:
    """There is nobody who would come back to it."""
    told: list[str] = []
    when_sent(lambda: told.append("done"))
    assert told == ["done"]


async def test_what_nobody_waits_for_is_done_at_leisure() -> None:
    """It comes behind everything that is ready, and not at all late."""
    told: list[str] = []
    at_leisure(lambda: told.append("noted"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert told == []
    await asyncio.sleep(LEISURE_SECONDS * 2)
    assert told == ["noted"]


def test_without_a_loop_there_is_leisure_at_once() -> None:
    """A recording that is replayed by hand has nobody who waits."""
    told: list[str] = []
    at_leisure(lambda: told.append("noted"))
    assert told == ["noted"]
