"""Measures how the time of a task grows with the size of its input, for tasks whose time must be linear."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import process_time

# With four times the input, a linear task takes four times as long, and a quadratic task sixteen times.
LINEAR = 10.0
_FEWEST, _MOST = 2, 12
"""Minimum and maximum number of measurements for each size. The maximum applies if the time does not look linear."""


def growth(work: Callable[[int], object], size: int) -> float:
    """Return the CPU time of ``work`` for an input of four times ``size``, divided by its CPU time for ``size``.

    The ratio is calculated from the shortest times, because other processes on the machine can slow a run down, but
    never speed it up. If the ratio does not look linear, the measurement is repeated, up to ``_MOST`` times. Garbage
    collection is disabled, because it would also process the heap of the tests.
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
