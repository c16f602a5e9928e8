"""Manages this proxy's connections to MCP servers. Local servers keep running, and other connections are closed when
they are idle.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from toolsim.core.tasks import spawn
from toolsim.mcp.outcome import ToolOutcome, failed
from toolsim.mcp.runtime import NO_CALLER, Caller
from toolsim.mcp.servers import Server

if TYPE_CHECKING:
    from toolsim.mcp.catalog import RemoteTool
    from toolsim.mcp.connection import McpConnection

MAX_CONNECTIONS = 32
"""Maximum number of connections to servers with a URL.

A limit is needed because clients do not share these connections: each client sends its own credentials.
"""
MAX_OF_ONE = 8
"""Maximum number of connections to servers with a URL, per client."""
IDLE_SECONDS = 300.0


class TooManyConnections(Exception):
    """Raised if the limit on connections has been reached. The message contains no confidential information."""


class Pool:
    """The connections of this proxy. They are opened when needed and kept open."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._module: ModuleType | None = None
        self._connections: OrderedDict[Server, McpConnection] = OrderedDict()
        # The client for which each connection was opened.
        self._owners: dict[Server, str] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def tools(self, server: Server, who: Caller = NO_CALLER) -> tuple[RemoteTool, ...]:
        """Return a server's tools.

        If this fails, raises an exception whose message contains no confidential information.
        """
        return await (await self._connection(server, who.owner)).tools(who)

    async def call(
        self, server: Server, tool: str, arguments: Mapping[str, Any], limit: int, who: Caller = NO_CALLER
    ) -> ToolOutcome:
        """Call a server's tool. ``limit`` is the maximum size of the output in bytes. Never raises an exception."""
        try:
            connection = await self._connection(server, who.owner)
        except TooManyConnections as problem:
            return failed(str(problem))
        return await connection.call(tool, arguments, limit, who)

    async def close(self) -> None:
        """Stop all local servers, and close all connections."""
        connections, self._connections, self._owners = list(self._connections.values()), OrderedDict(), {}
        closing = [connection.close() for connection in connections]
        await asyncio.gather(*closing, *self._ending, return_exceptions=True)

    async def _connection(self, server: Server, owner: str) -> McpConnection:
        if self._module is None:
            # Importing the ``mcp`` package takes a second, which must not block the event loop. After the import, this
            # method does not await anything, so that the calls of a round reach their server in order.
            self._module = await asyncio.to_thread(importlib.import_module, "toolsim.mcp.connection")
        endpoint = server.endpoint
        found: McpConnection | None = self._connections.get(endpoint)
        self._close_idle(but=endpoint)
        if found is None:
            if not endpoint.command:
                self._make_room(owner)
            found = self._module.McpConnection(server, clock=self._clock)
            self._connections[endpoint], self._owners[endpoint] = found, owner
        self._connections.move_to_end(endpoint)
        return found

    def _close_idle(self, but: Server) -> None:
        now = self._clock()
        for key, connection in list(self._connections.items()):
            if key != but and not (key.command or connection.is_busy) and now - connection.used > IDLE_SECONDS:
                self._close(key)

    def _make_room(self, owner: str) -> None:
        """Make room for another connection to a URL if this owner, or the entire proxy, already has the maximum number.

        The least recently used connection of this owner, or else of the owner with the most connections, is closed.
        Busy connections stay open. Raises TooManyConnections if none can be closed.
        """
        shares = Counter(self._owners[key] for key in self._connections if not key.command)
        if shares[owner] >= MAX_OF_ONE:
            if not self._close_unused(owner):
                raise TooManyConnections(f"All {MAX_OF_ONE} of this client's connections to MCP servers are in use.")
        elif shares.total() >= MAX_CONNECTIONS and not any(
            self._close_unused(each) for each, _ in shares.most_common()
        ):
            raise TooManyConnections(f"All {MAX_CONNECTIONS} connections to MCP servers are in use.")

    def _close_unused(self, owner: str) -> bool:
        for key, connection in self._connections.items():
            if not (key.command or connection.is_busy) and self._owners[key] == owner:
                self._close(key)
                return True
        return False

    def _close(self, key: Server) -> None:
        del self._owners[key]
        spawn(self._connections.pop(key).close(), self._ending)
