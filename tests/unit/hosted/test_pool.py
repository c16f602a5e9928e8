"""Which connections there are, and how long."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from toolsimlib.hosted import connection as room
from toolsimlib.hosted import pool as pools
from toolsimlib.hosted.pool import IDLE_SECONDS, MAX_CONNECTIONS, Pool
from toolsimlib.hosted.servers import Filter, Server

LOCAL = Server("local", ("x",))


class Fake:
    made: ClassVar[list[Any]] = []
    called: ClassVar[list[str]] = []

    def __init__(self, server: Server, seconds: float, *, clock: Any) -> None:
        self.server, self.used, self.is_busy, self.is_closed, self._clock = server, clock(), False, False, clock
        Fake.made.append(self)

    async def tools(self) -> tuple[()]:
        self.used = self._clock()
        return ()

    async def call(self, tool: str, arguments: object, limit: int) -> str:
        Fake.called.append(tool)
        return tool

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(room, "Connection", Fake)
    Fake.made, Fake.called = [], []
    return SimpleNamespace(time=0.0)


def web(number: int) -> Server:
    return Server("web", url="https://docs.example/mcp", headers=(("Authorization", str(number)),), kind="http")


async def test_one_connection_for_one_server(now: Any) -> None:
    """Whatever a request allows of it; with other credentials it is another one."""
    pool = Pool(clock=lambda: now.time)
    for server in (LOCAL, Server("local", ("x",), allowed=(Filter(frozenset()),)), web(1), web(2), web(1)):
        await pool.tools(server)
    assert [each.server for each in Fake.made] == [LOCAL, web(1), web(2)]
    await pool.close()
    assert all(each.is_closed for each in Fake.made)


async def test_calls_keep_their_order(now: Any) -> None:
    """A model writes a file before it reads it, and a server that runs one call at a time must do so too."""
    pool = Pool(clock=lambda: now.time)
    await pool.tools(LOCAL)
    tools = [str(number) for number in range(200)]
    await asyncio.gather(*(pool.call(LOCAL, tool, {}, 1) for tool in tools))
    assert Fake.called == tools


async def test_idle_ones_are_closed(now: Any) -> None:
    """Those that are busy stay, local ones stay, and there is no room for more than so many."""
    pool = Pool(clock=lambda: now.time)
    for server in (LOCAL, web(1), web(2)):
        await pool.tools(server)
    Fake.made[2].is_busy = True
    now.time = IDLE_SECONDS + 1
    await pool.tools(web(3))
    await asyncio.sleep(0)
    assert [each.server for each in Fake.made[:3] if each.is_closed] == [web(1)]
    Fake.made, pool = [], Pool(clock=lambda: now.time)
    for number in range(MAX_CONNECTIONS + 5):
        await pool.tools(web(number))
    await asyncio.sleep(0)
    assert [each.is_closed for each in Fake.made[:6]] == [True] * 5 + [False]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known before anybody asks."""
    assert pools.is_installed()
    monkeypatch.setattr(pools.importlib.util, "find_spec", lambda name: None)
    assert not pools.is_installed()
    assert "pip install" in pools.MISSING
