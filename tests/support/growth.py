"""The growth of a task's time with the size of its input, for tasks that must be linear."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import process_time

# Four times the input takes four times as long if the task is linear, sixteen times if it is quadratic.
LINEAR = 10.0
_FEWEST, _MOST = 2, 12
"""Minimum and maximum number of measurements of each size. A busy machine only adds time, so more measurements correct
a slow one.
"""


def growth(work: Callable[[int], object], size: int) -> float:
    """Return the processor time of ``work`` with four times ``size``, divided by its time with ``size``.

    The shortest times are compared, and measured again while they do not look linear: other processes on the machine
    disturb caches and timeouts, but never make a run shorter. Garbage collection is disabled, since it would add the
    heap of the test process.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        small = large = float("inf")
        for count in range(1, _MOST + 1):
            small = min(small, _seconds(work, size))
            large = min(large, _seconds(work, 4 * size))
            ratio = large / max(small, 1e-4)
            if count >= _FEWEST and ratio < LINEAR:
                break
        return ratio
    finally:
        if was_enabled:
            gc.enable()


def _seconds(work: Callable[[int], object], size: int) -> float:
    began = process_time()
    work(size)
    return process_time() - began
