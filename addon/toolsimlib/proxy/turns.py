"""When work is done: what takes long in turns, between which everyone else goes on, and what can wait, later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator

from mitmproxy.exceptions import AddonHalt

# How long one stream is rewritten before others have their turn: a chunk of it may hold a thousand calls. On the
# processor: by the clock nearly every turn is long on a busy machine, and what a backend says meanwhile queues up. But
# the clock is asked first, since to ask for the processor's time takes longer than a delta.
TURN_SECONDS = 0.003

# Longer than a turn: whoever waits has a dozen small things to do before the next answer is out.
PAUSE_SECONDS = 0.006


# Behind the first text of the fastest backends, which comes within a few milliseconds, and before most models have any.
LEISURE_SECONDS = 0.05


class Turns:
    """An addon for the hook that stands between two turns of a stream."""

    async def toolsim_turn(self, _answer: object) -> None:
        """Let everyone else go on for a while."""
        await asyncio.sleep(PAUSE_SECONDS)
        raise AddonHalt


def in_turns(steps: Iterable[list[bytes]], is_over: Callable[[], bool]) -> Iterator[list[bytes] | None]:
    """Yield the frames of ``steps``, those of one turn together, and None wherever others should have theirs.

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
    """Do what a hook has left for the time when what it decided is on its way.

    A hook that somebody waits for goes on in the loop's next round, in a task that is put in line when it is over: so
    this waits for two. Without a loop nobody is in a hurry.
    """
    if (loop := _loop()) is None:
        work()
    else:
        loop.call_soon(loop.call_soon, work)


def at_leisure(work: Callable[[], None]) -> None:
    """Do what nobody waits for, when the answer to what was sent has begun or is not to be expected yet."""
    if (loop := _loop()) is None:
        work()
    else:
        loop.call_later(LEISURE_SECONDS, work)


def _loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
