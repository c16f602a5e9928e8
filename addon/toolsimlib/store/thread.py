"""A thread that runs one call after another, for callers in an event loop that await the results.

A pool of one thread does the same, with several futures and locks per call: together as much processor work as a small
write to a database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

_Task = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class OneThread:
    """A thread that is started when first needed, and does not delay the exit of the process.

    ``waiting``: how many calls are not done yet, whether or not anybody still awaits them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread: Thread | None = None
        self.waiting = 0

    @property
    def is_started(self) -> bool:
        """Whether it has ever had a call to run."""
        return self._thread is not None

    def do[T](self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Return a future for what ``work`` returns or raises; cancelling it does not stop the work."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self.waiting += 1
        self._queue.put((work, loop, future))
        return future

    def stop(self) -> None:
        """End the thread after all queued calls."""
        self._queue.put(None)

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            work, loop, future = task
            result, problem = None, None
            try:
                result = work()
            except BaseException as raised:
                problem = raised
            try:
                loop.call_soon_threadsafe(self._over, future, result, problem)
            except RuntimeError:  # Its loop is closed: nobody waits for the result any more.
                continue

    def _over(self, future: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
        self.waiting -= 1
        if future.done():
            return
        if problem is None:
            future.set_result(result)
        else:
            future.set_exception(problem)
