"""Fixtures that open stores of all kinds with a simulated clock, so that each test runs with each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.redis_server import RedisServer
from toolsim.stores import sqlite
from toolsim.stores.record import Store, StoreLimits
from toolsim.stores.redis_server import RedisStore
from toolsim.stores.sqlite import SqliteStore


class Clock:
    """A clock that changes only when a test sets it."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


Opened = Callable[[StoreLimits, Clock], AbstractAsyncContextManager[Store]]


def in_parts(monkeypatch: pytest.MonkeyPatch, size: int = 0, part: int = 2) -> None:
    """Make SQLite stores split values larger than ``size`` bytes into parts of ``part`` bytes, with a checkpoint after
    each write.
    """
    monkeypatch.setattr(sqlite, "_LARGE_BYTES", size)
    monkeypatch.setattr(sqlite, "_PART_BYTES", part)
    monkeypatch.setattr(sqlite, "_CHECKPOINT_BYTES", 1)


_numbers = count()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "sqlite in parts", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Return a function that opens a new store of one kind as a context manager, which closes the store at the end."""
    if request.param == "sqlite in parts":
        in_parts(monkeypatch)
    numbers = _numbers
    server: RedisServer | None = request.getfixturevalue("redis_server") if request.param == "redis" else None

    @asynccontextmanager
    async def opened(bounds: StoreLimits, clock: Clock) -> AsyncIterator[Any]:
        kind, number = request.param, next(numbers)
        store: Store
        if server is not None:
            store = RedisStore(server.url, bounds, clock, f"toolsim{number}:")
        else:
            store = SqliteStore(None if kind == "memory" else tmp_path / str(number), bounds, clock)
        try:
            yield store
        finally:
            await store.close()

    return opened
