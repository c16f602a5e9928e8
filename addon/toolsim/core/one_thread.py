"""A thread that runs one call after another, for callers in an event loop that await the results; owners take turns.

In a pool of one thread the calls of one owner, however many they are, would come before those of all others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple


class Crowded(Exception):
    """Too many calls are waiting, and most of them are of the same owner."""


class _Task(NamedTuple):
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class OneThread:
    """A thread that is started when first needed, and does not delay the exit of the process.

    ``max_waiting``: if more calls wait, the latest one of the owner who has most of them is given up.
    """

    def __init__(self, name: str, max_waiting: int | None = None) -> None:
        self._name = name
        self._max_waiting = max_waiting
        # True for each call that waits, the call itself if it comes last, and None at the end.
        self._signals: SimpleQueue[_Task | bool | None] = SimpleQueue()
        self._lock = Lock()
        # The calls that wait, by their owners; the first owner is next.
        self._tasks: OrderedDict[str, deque[_Task]] = OrderedDict()
        self._thread: Thread | None = None
        self.waiting = 0
        """How many calls are not done yet, whether or not anybody still awaits them."""

    @property
    def is_started(self) -> bool:
        """Whether it has ever had a call to run."""
        return self._thread is not None

    def do[T](self, work: Callable[[], T], owner: str = "") -> asyncio.Future[T]:
        """Return a future for what ``work`` returns or raises, or ``Crowded``; cancelling it does not stop the work."""
        task = self._new(work)
        with self._lock:
            self._tasks.setdefault(owner, deque()).append(task)
            given_up = self._surplus()
        self._signals.put(True)
        if given_up is not None:
            self._end(given_up, None, Crowded())
        return task.future

    def do_last[T](self, work: Callable[[], T]) -> asyncio.Future[T]:
        """As ``do``, after all calls that wait now."""
        task = self._new(work)
        self._signals.put(task)
        return task.future

    def stop(self) -> None:
        """End the thread after all queued calls."""
        self._signals.put(None)

    def _new(self, work: Callable[[], Any]) -> _Task:
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self.waiting += 1
        return _Task(work, loop, loop.create_future())

    def _surplus(self) -> _Task | None:
        """Take out a call that there is no room for."""
        if self._max_waiting is None or sum(map(len, self._tasks.values())) <= self._max_waiting:
            return None
        owner = max(self._tasks, key=lambda owner: len(self._tasks[owner]))
        task = self._tasks[owner].pop()
        if not self._tasks[owner]:
            del self._tasks[owner]
        return task

    def _next(self) -> _Task | None:
        """Take out the call whose turn has come, None if it was given up."""
        with self._lock:
            if not self._tasks:
                return None
            owner, queue = self._tasks.popitem(last=False)
            task = queue.popleft()
            if queue:
                self._tasks[owner] = queue
            return task

    def _run(self) -> None:
        while (signal := self._signals.get()) is not None:
            task = signal if isinstance(signal, _Task) else self._next()
            if task is None:
                continue
            result, problem = None, None
            try:
                result = task.work()
            except BaseException as raised:
                problem = raised
            self._end(task, result, problem)

    def _end(self, task: _Task, result: Any, problem: BaseException | None) -> None:
        try:
            task.loop.call_soon_threadsafe(self._over, task.future, result, problem)
        except RuntimeError:  # Its loop is closed: nobody waits for the result any more.
            return

    def _over(self, future: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
        self.waiting -= 1
        if future.done():
            return
        if problem is None:
            future.set_result(result)
        else:
            future.set_exception(problem)
