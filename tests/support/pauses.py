"""A pause such as a garbage collection of a large process: the thread's own clock counts it."""

from __future__ import annotations

from time import thread_time


def pause(seconds: float = 0.1) -> None:
    """Keep this thread's processor busy for so long."""
    end = thread_time() + seconds
    while thread_time() < end:
        pass
