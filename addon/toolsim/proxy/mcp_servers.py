"""Manages the connections to MCP servers from the proxy's startup to its shutdown."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from mitmproxy.http import HTTPFlow

from toolsim.core.report import MAX_NAMES, loggable_name
from toolsim.core.tasks import spawn
from toolsim.mcp.approvals import Approvals
from toolsim.mcp.runtime import Pool, engine
from toolsim.mcp.servers import Server
from toolsim.proxy.approve import Approve
from toolsim.proxy.cors import Origins
from toolsim.proxy.options.settings import Mcp
from toolsim.rounds.hidden_calls import HiddenCalls
from toolsim.rounds.hosted_calls import McpContext

logger = logging.getLogger(__name__)


class Servers:
    """The allowed MCP servers, and the connections to them, which are closed when the list of servers changes."""

    def __init__(self) -> None:
        self._mcp = Mcp()
        self._pool: Pool | None = None
        self._approvals = Approvals()
        self._hidden = HiddenCalls()
        self.approve = Approve()
        self._tasks: set[asyncio.Task[None]] = set()

    def update(self, mcp: Mcp) -> None:
        """Apply the current options for MCP servers."""
        if mcp == self._mcp:
            return
        before, self._mcp = self._mcp, mcp
        if self._pool is not None and before.servers != mcp.servers:
            spawn(self._pool.close(), self._tasks)
            self._pool = None
        if self._pool is None and mcp.is_used:
            self._pool = engine().open_pool()

    def start(self) -> None:
        """Start the configured servers early, so that the first request need not wait and failures are logged."""
        if self._pool is not None:
            for server in self._mcp.servers:
                spawn(_first_asked(self._pool, server), self._tasks)

    def context(self, origins: Origins, flow: HTTPFlow, owner: str) -> McpContext:
        """Return the MCP context for a request from ``owner``.

        The context has no servers if the origin of the web page that sent the request is not listed. A page with an
        unlisted origin could not read the answer, but could cause tools to run.
        """
        origin = flow.request.headers.get("origin")
        if self._pool is None or not self._mcp.is_used or (origin is not None and not origins.allow(origin)):
            return McpContext(None, self._approvals, hidden=self._hidden, owner=owner)
        self.approve.watch(flow)
        mcp = self._mcp
        servers = {server.label: server for server in mcp.servers}
        desk = self.approve.desk if mcp.approval == "operator" else None
        given = (self._pool, self._approvals, servers, mcp.runs_clients, mcp.hosts)
        return McpContext(*given, hidden=self._hidden, owner=owner, desk=desk)

    async def stop(self) -> None:
        """Close the connections to all servers."""
        if self._pool is not None:
            await asyncio.gather(self._pool.close(), *self._tasks, return_exceptions=True)


async def _first_asked(pool: Pool, server: Server) -> None:
    # Errors are ignored, because they have already been logged, and later callers receive them again.
    with suppress(Exception):
        names = [tool.name for tool in await pool.tools(server)]
        if server.web_search and server.web_search not in names:
            message = "toolsim: the MCP server %r does not offer the tool %r, which its web_search names; it offers: %s"
            logger.warning(message, server.label, server.web_search, ", ".join(map(loggable_name, names[:MAX_NAMES])))
