"""A thread that runs one call after another, for callers in an event loop that await the results; owners take turns.

In a pool of one thread the calls of one owner, however many they are, would come before those of all others.

Whatever raises in it, the thread goes on, every call has an outcome, and no call is left in the queue: a signal is
sent with each call, and a result is passed on by nothing of ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)


class Crowded(Exception):
    """Too many calls are waiting, and most of them are of the same owner."""


class _Task(NamedTuple):
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: Future[Any]


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
        self._pending: set[Future[Any]] = set()

    @property
    def waiting(self) -> int:
        """How many calls are not done yet, whether or not anybody still awaits them."""
        return len(self._pending)

    @property
    def is_started(self) -> bool:
        """Whether it has ever had a call to run."""
        return self._thread is not None

    def do[T](self, work: Callable[[], T], owner: str = "") -> asyncio.Future[T]:
        """Return a future for what ``work`` returns or raises, or ``Crowded``; cancelling it does not stop the work."""
        task = self._new(work)
        with self._lock:
            self._tasks.setdefault(owner, deque()).append(task)
            self._signals.put(True)
            given_up = self._surplus()
        if given_up is not None:
            self._pending.discard(given_up.future)
            given_up.future.set_exception(Crowded())
        return asyncio.wrap_future(task.future)

    def do_last[T](self, work: Callable[[], T]) -> asyncio.Future[T]:
        """As ``do``, after all calls that wait now."""
        task = self._new(work)
        self._signals.put(task)
        return asyncio.wrap_future(task.future)

    def stop(self) -> None:
        """End the thread after all queued calls."""
        self._signals.put(None)

    def _new(self, work: Callable[[], Any]) -> _Task:
        task = _Task(work, asyncio.get_running_loop(), Future())
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._pending.add(task.future)
        return task

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
            try:
                task = signal if isinstance(signal, _Task) else self._next()
            except Exception:
                logger.exception("toolsim failed to take a call from its queue; please report this")
                task = self._next()
            if task is None:
                continue
            result, problem = None, None
            try:
                result = task.work()
            except BaseException as raised:
                problem = raised
            self._pending.discard(task.future)
            # Without its loop nobody waits for the result any more; one that was cancelled has nobody either.
            if task.loop.is_closed() or task.future.done():
                continue
            with suppress(InvalidStateError):
                if problem is None:
                    task.future.set_result(result)
                else:
                    task.future.set_exception(problem)
