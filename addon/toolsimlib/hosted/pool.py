"""The connections of this proxy: those to local servers stay, all others are closed when they are idle."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toolsimlib.hosted.outcome import Outcome
from toolsimlib.hosted.servers import Server

if TYPE_CHECKING:
    from toolsimlib.hosted.catalogue import RemoteTool
    from toolsimlib.hosted.connection import Connection

MAX_CONNECTIONS = 32
"""To servers that clients named: each has credentials of its own, so that two clients share none."""
IDLE_SECONDS = 300.0

MISSING = "the package 'mcp' is missing: pip install 'mitmproxy-toolsim[mcp]'"


def is_installed() -> bool:
    """Return whether servers can be asked here."""
    return importlib.util.find_spec("mcp") is not None


class Pool:
    """Opens connections, and keeps them. ``seconds``: for each question to a server."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._connections: OrderedDict[Server, Connection] = OrderedDict()
        self._ending: set[asyncio.Task[None]] = set()

    async def tools(self, server: Server) -> tuple[RemoteTool, ...]:
        """Return the tools of a server. Raises an exception whose message says, to anyone, why it has none."""
        return await (await self._connection(server)).tools()

    async def call(self, server: Server, tool: str, arguments: Mapping[str, Any], limit: int) -> Outcome:
        """Call a tool of a server; ``limit``: bytes of its output."""
        return await (await self._connection(server)).call(tool, arguments, limit)

    async def close(self) -> None:
        """End all servers that run here, and all connections."""
        connections, self._connections = list(self._connections.values()), OrderedDict()
        await asyncio.gather(*(each.close() for each in connections), *self._ending, return_exceptions=True)

    async def _connection(self, server: Server) -> Connection:
        # Importing the package takes a second, in which others go on.
        module = await asyncio.to_thread(importlib.import_module, "toolsimlib.hosted.connection")
        endpoint = server.endpoint
        found: Connection | None = self._connections.get(endpoint)
        if found is None:
            found = self._connections[endpoint] = module.Connection(server, self._seconds, clock=self._clock)
        self._connections.move_to_end(endpoint)
        self._close_idle()
        return found

    def _close_idle(self) -> None:
        now = self._clock()
        idle = [key for key, each in self._connections.items() if not each.is_busy and now - each.used > IDLE_SECONDS]
        over = len(self._connections) - MAX_CONNECTIONS
        for key in {*idle, *list(self._connections)[: max(over, 0)]}:
            if key.command:
                continue
            task = asyncio.create_task(self._connections.pop(key).close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
