"""Keeps references to background tasks, since asyncio holds only weak ones, and cancels a task on SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def spawn(work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Start a coroutine as a task, and keep a reference to it in the set ``among`` until it is done."""
    task = asyncio.get_running_loop().create_task(work)
    among.add(task)
    task.add_done_callback(among.discard)
    return task


@contextmanager
def canceled_by_signals(task: asyncio.Task[Any]) -> Iterator[None]:
    """Cancel a task if SIGINT or SIGTERM arrives within this context. The context must be entered while the main
    thread's event loop is running.
    """
    loop = asyncio.get_running_loop()
    try:
        for number in _SIGNALS:
            loop.add_signal_handler(number, task.cancel)
    except NotImplementedError:
        # On Windows, only Python's own signal handlers are available. They run between steps of the loop, so each
        # handler has to wake the loop to cancel the task.
        earlier = [
            (number, signal.signal(number, lambda *_: loop.call_soon_threadsafe(task.cancel))) for number in _SIGNALS
        ]
        try:
            yield
        finally:
            for number, handler in earlier:
                signal.signal(number, handler)
        return
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
