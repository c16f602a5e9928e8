"""Tests for the pool of connections to MCP servers, which limits their number and lifetime."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from toolsim.mcp import connection as room
from toolsim.mcp import engine
from toolsim.mcp.pool import IDLE_SECONDS, MAX_CONNECTIONS, MAX_OF_ONE, Pool, TooManyConnections
from toolsim.mcp.runtime import Caller
from toolsim.mcp.servers import Filter, Server

LOCAL = Server("local", ("x",))


class Fake:
    made: ClassVar[list[Any]] = []
    called: ClassVar[list[str]] = []

    def __init__(self, server: Server, *, clock: Any) -> None:
        self.server, self.used, self.is_busy, self.is_closed, self._clock = server, clock(), False, False, clock
        Fake.made.append(self)

    async def tools(self, who: Caller) -> tuple[()]:
        self.used = self._clock()
        return ()

    async def call(self, tool: str, arguments: object, limit: int, who: Caller) -> str:
        Fake.called.append(tool)
        return tool

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(room, "McpConnection", Fake)
    Fake.made, Fake.called = [], []
    return SimpleNamespace(time=0.0)


def web(number: int) -> Server:
    return Server("web", url="https://docs.example/mcp", headers=(("Authorization", str(number)),), kind="http")


async def test_server_has_one_connection_per_credentials(now: Any) -> None:
    """Entries for the same MCP server share a connection if they differ only in their allowed tools. Entries with
    different credentials have separate connections.
    """
    pool = Pool(clock=lambda: now.time)
    for server in (LOCAL, Server("local", ("x",), allowed=(Filter(frozenset()),)), web(1), web(2), web(1)):
        await pool.tools(server)
    assert [each.server for each in Fake.made] == [LOCAL, web(1), web(2)]
    await pool.close()
    assert all(each.is_closed for each in Fake.made)


async def test_calls_keep_their_order(now: Any) -> None:
    """Calls to an MCP server keep their order, because the model might write a file and then read it."""
    pool = Pool(clock=lambda: now.time)
    await pool.tools(LOCAL)
    tools = [str(number) for number in range(200)]
    await asyncio.gather(*(pool.call(LOCAL, tool, {}, 1) for tool in tools))
    assert Fake.called == tools


async def test_idle_remote_connections_are_closed(now: Any) -> None:
    """Idle connections to remote MCP servers are closed. Busy connections and connections to local servers stay
    open.
    """
    pool = Pool(clock=lambda: now.time)
    for server in (LOCAL, web(1), web(2)):
        await pool.tools(server)
    Fake.made[2].is_busy = True
    now.time = IDLE_SECONDS + 1
    await pool.tools(web(3))
    await asyncio.sleep(0)
    assert [each.server for each in Fake.made[:3] if each.is_closed] == [web(1)]


async def test_client_limit_closes_its_oldest_connection(now: Any) -> None:
    """A client that has reached its connection limit loses its least recently used connection. If all of its
    connections are busy, it receives an error.
    """
    pool = Pool(clock=lambda: now.time)
    await pool.tools(web(100), Caller("modest"))
    for number in range(MAX_OF_ONE + 3):
        await pool.tools(web(number), Caller("greedy"))
    await asyncio.sleep(0)
    assert [each.is_closed for each in Fake.made] == [False, True, True, True] + [False] * MAX_OF_ONE
    for each in Fake.made:
        each.is_busy = True
    with pytest.raises(TooManyConnections, match="All 8 of this client's connections"):
        await pool.tools(web(50), Caller("greedy"))
    outcome = await pool.call(web(50), "add", {}, 1, Caller("greedy"))
    assert "All 8 of this client's connections" in outcome.shown
    # The client can still use its existing connections, and other clients can open new connections.
    await pool.tools(web(10), Caller("greedy"))
    await pool.tools(web(50), Caller("modest"))
    assert not any(each.is_closed for each in Fake.made[4:])


async def test_overall_limit_closes_an_idle_connection(now: Any) -> None:
    """If the total number of connections reaches its limit, an idle connection of the client with the most connections
    is closed. If all connections are busy, the request fails.
    """
    pool = Pool(clock=lambda: now.time)
    for number in range(MAX_CONNECTIONS):
        await pool.tools(web(number), Caller("abcdefgh"[number // 4] if number > 7 else "most"))
    for each in Fake.made[1:]:
        each.is_busy = True
    await pool.tools(web(100), Caller("new"))
    await asyncio.sleep(0)
    assert [each.is_closed for each in Fake.made] == [True] + [False] * MAX_CONNECTIONS
    Fake.made[-1].is_busy = True
    with pytest.raises(TooManyConnections, match="All 32 connections"):
        await pool.tools(web(101), Caller("another"))
    assert [each.is_closed for each in Fake.made] == [True] + [False] * MAX_CONNECTIONS


def test_missing_package_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """``missing`` detects a missing package before any server is used."""
    assert engine.missing() == ""
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    assert "pip install" in engine.missing()
