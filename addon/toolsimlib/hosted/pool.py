"""The connections of this proxy: those to local servers stay open, all others are closed when they are idle."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from toolsimlib.hosted.outcome import Outcome
from toolsimlib.hosted.servers import Server

if TYPE_CHECKING:
    from toolsimlib.hosted.catalogue import RemoteTool
    from toolsimlib.hosted.connection import Connection

MAX_CONNECTIONS = 32
"""To servers that clients named: each has its own credentials, so that no two clients share one."""
IDLE_SECONDS = 300.0

MISSING = "the package 'mcp' is missing: pip install 'mitmproxy-toolsim[mcp]'"


def is_installed() -> bool:
    """Return whether the package for MCP servers is installed."""
    return importlib.util.find_spec("mcp") is not None


class Pool:
    """Opens connections, and keeps them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._module: ModuleType | None = None
        self._connections: OrderedDict[Server, Connection] = OrderedDict()
        self._ending: set[asyncio.Task[None]] = set()

    async def tools(self, server: Server) -> tuple[RemoteTool, ...]:
        """Return the tools of a server. Raises an exception whose message, safe for anyone to read, says why not."""
        return await (await self._connection(server)).tools()

    async def call(self, server: Server, tool: str, arguments: Mapping[str, Any], limit: int) -> Outcome:
        """Call a tool of a server; ``limit``: bytes of its output."""
        return await (await self._connection(server)).call(tool, arguments, limit)

    async def close(self) -> None:
        """Stop all local servers, and close all connections."""
        connections, self._connections = list(self._connections.values()), OrderedDict()
        closing = [connection.close() for connection in connections]
        await asyncio.gather(*closing, *self._ending, return_exceptions=True)

    async def _connection(self, server: Server) -> Connection:
        if self._module is None:
            # Importing the package takes a second, which must not block the event loop. Later nothing is awaited here,
            # so that the calls of a round reach their server in their order.
            self._module = await asyncio.to_thread(importlib.import_module, "toolsimlib.hosted.connection")
        endpoint = server.endpoint
        found: Connection | None = self._connections.get(endpoint)
        if found is None:
            found = self._connections[endpoint] = self._module.Connection(server, server.timeout, clock=self._clock)
        self._connections.move_to_end(endpoint)
        self._close_idle()
        return found

    def _close_idle(self) -> None:
        now = self._clock()
        idle = [
            key
            for key, connection in self._connections.items()
            if not connection.is_busy and now - connection.used > IDLE_SECONDS
        ]
        over = len(self._connections) - MAX_CONNECTIONS
        for key in {*idle, *list(self._connections)[: max(over, 0)]}:
            if key.command:
                continue
            task = asyncio.create_task(self._connections.pop(key).close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
