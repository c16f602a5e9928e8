"""How the time of some work grows with its input, for work that must be linear."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import process_time

# Four times the input takes four times as long if the work is linear, sixteen times if it is quadratic.
LINEAR = 10.0


def growth(work: Callable[[int], object], size: int) -> float:
    """Return how many times as long ``work`` takes with four times ``size``, in processor time.

    The best of three, without garbage collections, since the heap of the test process must not count.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _seconds(work, 4 * size) / max(_seconds(work, size), 1e-4)
    finally:
        if was_enabled:
            gc.enable()


def _seconds(work: Callable[[int], object], size: int) -> float:
    best = float("inf")
    for _ in range(3):
        began = process_time()
        work(size)
        best = min(best, process_time() - began)
    return best
