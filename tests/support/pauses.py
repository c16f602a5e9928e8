"""A pause that, like a garbage collection in a large process, counts as processor time of the thread."""

from __future__ import annotations

from time import thread_time


def pause(seconds: float = 0.1) -> None:
    """Keep the processor busy in this thread for ``seconds``."""
    end = thread_time() + seconds
    while thread_time() < end:
        pass
