"""Simulates a pause that counts as CPU time of the thread, like a garbage collection in a large process."""

from __future__ import annotations

from time import thread_time


def pause(seconds: float = 0.1) -> None:
    """Keep the processor busy in this thread for ``seconds``."""
    end = thread_time() + seconds
    while thread_time() < end:
        pass
