"""Tests for stores in a Redis server, which several proxies share and which can fail. ``test_record.py`` covers all
other behavior.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from support.redis_server import RedisServer
from toolsim.stores.record import Conflict, Record, StoreError, StoreLimits
from toolsim.stores.redis_server import RedisStore

MANY = 1 << 20


async def test_two_proxies_share_a_server(redis_server: RedisServer) -> None:
    """Two proxies that share a Redis server see each other's writes immediately, cannot overwrite changes that they
    have not read, and share the limits.
    """
    one, other = (RedisStore(redis_server.url, StoreLimits(records=3), prefix="two:") for _ in "12")
    await one.put("p", [Record("x", b"1")], {"x": 0})
    assert await other.chain("p", "x", MANY) == [Record("x", b"1", version=1)]
    await other.put("p", [Record("x", b"2")], {"x": 1})
    with pytest.raises(Conflict):
        await one.put("p", [Record("x", b"3")], {"x": 1})
    for number in range(6):
        size = await (one, other)[number % 2].put("p", [Record(f"y{number}", b"1", names=(f"n{number}",))])
    assert size.records == 3
    assert await one.find("p", ["n0"]) == {}
    await one.close()
    await other.close()


async def test_ages_follow_the_clock_of_the_server(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of a record is measured with the clock of the Redis server. Therefore, records do not expire too early or
    too late if a proxy's own clock is wrong.
    """
    bounds = StoreLimits(seconds=60)
    one, other = RedisStore(redis_server.url, bounds), RedisStore(redis_server.url, bounds)
    try:
        await one.put("timeouts", [Record("a", b"", names=("n",))])
        monkeypatch.setattr(time, "time", lambda: 0.0)
        assert 0 <= (await other.find("timeouts", ["n"]))["n"].age < 30
        await other.put("timeouts", [Record("b", b"", "a")])
        monkeypatch.undo()
        assert [record.id for record in await one.chain("timeouts", "b", 1 << 20)] == ["a", "b"]
    finally:
        await one.close()
        await other.close()


async def test_operations_fail_while_the_server_is_down() -> None:
    """While the Redis server is down, operations fail quickly, and the error does not show the password. When the
    server is running again, the store works.
    """
    server = RedisServer(append=True)
    store = RedisStore(server.url.replace("//", "//:secret-word@"), StoreLimits())
    with pytest.raises(StoreError) as caught:
        await store.put("p", [Record("x", b"1")])
    assert "secret-word" not in str(caught.value)
    store = RedisStore(server.url, StoreLimits())
    with server:
        await store.put("p", [Record("x", b"1", names=("n",))])
    began = time.monotonic()
    for _ in "12":
        with pytest.raises(StoreError, match="Redis"):
            await store.chain("p", "x", MANY)
    assert time.monotonic() - began < 5
    with server:
        assert await store.chain("p", "x", MANY) == [Record("x", b"1", version=1)]
        await store.close()


async def test_hanging_server_is_an_error() -> None:
    """If the Redis server hangs, operations fail after the timeout, and closing the store takes only a limited time."""
    with RedisServer() as server:
        store = RedisStore(server.url, StoreLimits())
        await store.put("p", [Record("x", b"1")])
        assert server._process is not None
        os.kill(server._process.pid, signal.SIGSTOP)
        began = time.monotonic()
        asked = [store.put("p", [Record(str(number), b"1")]) for number in range(100)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(result) for result in results} == {StoreError}
        assert time.monotonic() - began < 5
        last = asyncio.create_task(store.put("p", [Record("last", b"1")]))
        await asyncio.sleep(0)
        await store.close()
        assert time.monotonic() - began < 9
        with pytest.raises(StoreError):
            await last
        os.kill(server._process.pid, signal.SIGCONT)
        assert len(await store.chain("p", "x", MANY)) == 1
        await store.close()
