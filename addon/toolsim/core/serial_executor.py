"""A thread that runs calls for an event loop, one at a time, and alternates between the owners of the calls.

A plain single-thread executor would run all queued calls of one owner before the calls of other owners.

The thread survives any exception. Every call ends with a result or an exception, and no call is left in the queue. To
guarantee this, each call sends the thread a separate signal, and the results are delivered by the standard library's
futures.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple

from toolsim.core.failures import FAILURES


class QueueFull(Exception):
    """Raised for a call that is rejected because too many calls are waiting, most of them from the same owner."""


class _Task(NamedTuple):
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: Future[Any]


class SerialExecutor:
    """A thread that is started on first use and does not keep the process from exiting.

    If more than ``max_waiting`` calls are waiting, the latest call of the owner with the most waiting calls is
    rejected.
    """

    def __init__(self, name: str, max_waiting: int | None = None) -> None:
        self._name = name
        self._max_waiting = max_waiting
        # Queue entries: True means a waiting call, a task means a call to run last, None means stop.
        self._signals: SimpleQueue[_Task | bool | None] = SimpleQueue()
        self._lock = Lock()
        # Waiting calls by owner; the first owner is served next.
        self._tasks: OrderedDict[str, deque[_Task]] = OrderedDict()
        self._thread: Thread | None = None
        self._pending: set[Future[Any]] = set()

    @property
    def waiting(self) -> int:
        """The number of unfinished calls, including calls whose callers no longer wait for the results."""
        return len(self._pending)

    @property
    def is_started(self) -> bool:
        """Whether the thread has been started."""
        return self._thread is not None

    def submit[T](self, work: Callable[[], T], owner: str = "") -> asyncio.Future[T]:
        """Queue ``work``, and return a future for its result or exception.

        The future raises ``QueueFull`` if the call is rejected, now or later. Canceling the future does not stop
        ``work``.
        """
        task = self._new(work)
        with self._lock:
            self._tasks.setdefault(owner, deque()).append(task)
            self._signals.put(True)
            given_up = self._surplus()
        if given_up is not None:
            self._pending.discard(given_up.future)
            given_up.future.set_exception(QueueFull())
        return asyncio.wrap_future(task.future)

    def submit_last[T](self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Queue ``work`` to run after all calls that any owner has already queued, and return its future."""
        task = self._new(work)
        self._signals.put(task)
        return asyncio.wrap_future(task.future)

    def stop(self) -> None:
        """End the thread once all queued calls are done."""
        self._signals.put(None)

    def _new(self, work: Callable[[], Any]) -> _Task:
        task = _Task(work, asyncio.get_running_loop(), Future())
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._pending.add(task.future)
        return task

    def _surplus(self) -> _Task | None:
        """Remove and return a call that exceeds the limit, or return None if no call exceeds it."""
        if self._max_waiting is None or sum(map(len, self._tasks.values())) <= self._max_waiting:
            return None
        owner = max(self._tasks, key=lambda owner: len(self._tasks[owner]))
        task = self._tasks[owner].pop()
        if not self._tasks[owner]:
            del self._tasks[owner]
        return task

    def _next(self) -> _Task | None:
        """Remove and return the next call, or return None if the queue is empty because a call was rejected."""
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
            try:
                task = signal if isinstance(signal, _Task) else self._next()
            except Exception as failure:
                FAILURES.report("run a queued task", failure)
                task = self._next()
            if task is None:
                continue
            result, problem = None, None
            try:
                result = task.work()
            except BaseException as raised:
                problem = raised
            self._pending.discard(task.future)
            # The result is discarded if the loop is closed or the future is canceled.
            if task.loop.is_closed() or task.future.done():
                continue
            with suppress(InvalidStateError):
                if problem is None:
                    task.future.set_result(result)
                else:
                    task.future.set_exception(problem)
