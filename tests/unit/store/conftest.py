"""Each store, under one clock and one name, so that one test is a test of all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from toolsimlib.store.in_memory import MemoryStore
from toolsimlib.store.record import Bounds, Store
from toolsimlib.store.sqlite import SqliteStore


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


Opened = Callable[[Bounds, Clock], AbstractAsyncContextManager[Store]]


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Open a new store of one kind, and close it."""
    numbers = count()

    @asynccontextmanager
    async def opened(bounds: Bounds, clock: Clock) -> AsyncIterator[Any]:
        kind = request.param
        store: Store = (
            MemoryStore(bounds, clock)
            if kind == "memory"
            else SqliteStore(tmp_path / str(next(numbers)), bounds, clock)
        )
        try:
            yield store
        finally:
            await store.close()

    return opened
