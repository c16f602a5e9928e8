"""Provides a fair lock, so that a server receives one request at a time and concurrent answers take turns.

An answer can make dozens of concurrent calls, which run in order. If another answer makes a call, this call waits for
at most one of the others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from toolsim.mcp.runtime import Caller


class FairLock:
    """A lock with at most one holder at a time. The lock is passed on to each waiting answer in turn."""

    def __init__(self) -> None:
        # The waiting calls, by answer. The first call of the first answer is next.
        self._waiting: OrderedDict[Caller, deque[asyncio.Future[None]]] = OrderedDict()
        self._last = Caller()
        self._is_taken = False

    @asynccontextmanager
    async def acquire(self, who: Caller, seconds: float) -> AsyncGenerator[None]:
        """Wait for the lock, and hold it within the context. Raises TimeoutError after ``seconds`` of waiting."""
        if self._is_taken:
            await self._wait(who, seconds)
        self._is_taken, self._last = True, who
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, who: Caller, seconds: float) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(mine)
        try:
            async with asyncio.timeout(seconds):
                await mine
        except BaseException:
            # If the lock was granted just before this task was canceled, it is passed on to the next waiter.
            if mine.done() and not mine.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        if self._last in self._waiting:
            self._waiting.move_to_end(self._last)
        while self._waiting:
            who, queue = self._waiting.popitem(last=False)
            following = queue.popleft()
            if queue:
                self._waiting[who] = queue
            # A waiter that was canceled may still be in the queue.
            if not following.done():
                following.set_result(None)
                return
        self._is_taken = False
