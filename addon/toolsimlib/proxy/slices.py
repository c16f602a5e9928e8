"""Long work is done in slices of time, between which other work continues.

A chunk of an answer may hold a thousand calls. Rewriting it at once would stop every other stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

SLICE_SECONDS = 0.003
"""How long one stream is rewritten before others continue: processor time, not time on the clock.

On a busy machine nearly every slice takes long by the clock, and what a backend sends meanwhile would queue up.
"""

PAUSE_SECONDS = 0.006
"""How long others continue then: longer than a slice, since a waiting stream has a dozen small steps to do."""


def in_slices(steps: Iterable[list[bytes]], is_over: Callable[[], bool]) -> Iterator[list[bytes] | None]:
    """Yield the frames of ``steps``, those of one slice together, and None whenever other work should run.

    What a step raises follows the frames before it. ``is_over``: there are no frames to come.
    """
    began, busy = time.monotonic(), time.thread_time()
    frames: list[bytes] = []
    try:
        for step in steps:
            frames += step
            # The clock is read first: reading the processor time takes longer than most deltas.
            is_long = time.monotonic() - began > SLICE_SECONDS and time.thread_time() - busy > SLICE_SECONDS
            if is_long and not is_over():
                yield frames
                yield None
                began, busy, frames = time.monotonic(), time.thread_time(), []
    except Exception:
        yield frames
        raise
    yield frames
