"""Scheduling: long work runs in turns, between which other work continues, and deferrable work runs later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator

from mitmproxy.exceptions import AddonHalt

# How long one stream is rewritten before others have their turn: a chunk of it may hold a thousand calls. This is
# processor time: by the wall clock nearly every turn is long on a busy machine, and what a backend sends meanwhile
# queues up. We still read the wall clock first, since reading the processor time takes longer than a delta.
TURN_SECONDS = 0.003

# Longer than a turn: a waiting stream has a dozen small steps to do before its next output.
PAUSE_SECONDS = 0.006


# After the first text of the fastest backends, which comes within a few milliseconds, and before that of most models.
LEISURE_SECONDS = 0.05


class Turns:
    """An addon for the hook that stands between two turns of a stream."""

    async def toolsim_turn(self, _answer: object) -> None:
        """Let other work continue for a while."""
        await asyncio.sleep(PAUSE_SECONDS)
        raise AddonHalt


def in_turns(steps: Iterable[list[bytes]], is_over: Callable[[], bool]) -> Iterator[list[bytes] | None]:
    """Yield the frames of ``steps``, those of one turn together, and None whenever other work should run.

    What a step raises comes behind the frames before it. ``is_over``: there are no frames to come.
    """
    began, busy = time.monotonic(), time.thread_time()
    frames: list[bytes] = []
    try:
        for step in steps:
            frames += step
            is_long = time.monotonic() - began > TURN_SECONDS and time.thread_time() - busy > TURN_SECONDS
            if is_long and not is_over():
                yield frames
                yield None
                began, busy, frames = time.monotonic(), time.thread_time(), []
    except Exception:
        yield frames
        raise
    yield frames


def when_sent(work: Callable[[], None]) -> None:
    """Do what a hook has deferred until the result of its decision is on its way.

    A hook that a stream waits for continues in the loop's next iteration, in a task that is queued when it is over: so
    this waits for two. Without a loop the work is done at once.
    """
    if (loop := _loop()) is None:
        work()
    else:
        loop.call_soon(loop.call_soon, work)


def at_leisure(work: Callable[[], None]) -> None:
    """Do what nobody waits for, once the answer to what was sent has begun, or while none is expected yet."""
    if (loop := _loop()) is None:
        work()
    else:
        loop.call_later(LEISURE_SECONDS, work)


def _loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
