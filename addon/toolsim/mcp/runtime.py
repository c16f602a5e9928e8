"""Defines the protocol of the runtime for MCP tools, and imports the runtime named in ``plugins.py``."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from toolsim.mcp.catalog import RemoteTool
from toolsim.mcp.outcome import ToolOutcome
from toolsim.mcp.servers import Server
from toolsim.plugins import MCP


class Caller(NamedTuple):
    """The client and the answer for which a server receives a request.

    ``owner`` identifies the client by its key, and ``answer`` is the ID of the answer's flow.
    """

    owner: str = ""
    answer: str = ""


NO_CALLER = Caller()


class Pool(Protocol):
    """This proxy's connections to servers, which are opened when needed."""

    async def tools(self, server: Server, who: Caller = NO_CALLER) -> Sequence[RemoteTool]:
        """Return a server's tools.

        If this fails, raises an exception whose message contains no confidential information.
        """

    async def call(
        self, server: Server, tool: str, arguments: Mapping[str, Any], limit: int, who: Caller = NO_CALLER
    ) -> ToolOutcome:
        """Call a server's tool. ``limit`` is the maximum size of the output in bytes. Never raises an exception."""

    async def close(self) -> None:
        """Stop all local servers, and close all connections."""


class McpRuntime(Protocol):
    """The protocol (interface) of a module that implements the runtime."""

    def missing(self) -> str:
        """Return a message for the operator if a package is missing, or "" if all packages are installed."""

    def read_file(self, text: str, environment: Mapping[str, str]) -> tuple[Server, ...]:
        """Parse the operator's file.

        Raises ValueError if the file is invalid. The message does not contain values from the file, which might be
        secret.
        """

    def read_tool(
        self, declared: Mapping[str, Any], param: str, known: Mapping[str, Server], hosts: Collection[str]
    ) -> Server:
        """Parse an ``mcp`` tool of a request. ``known`` contains the servers in the operator's file, by label.

        ``hosts`` contains the hosts that a client can name, as ``host`` (https) or ``host:port``. Raises BadRequest if
        the tool is invalid, or its server is unknown or not allowed.
        """

    def is_host_allowed(self, server: Server, hosts: Collection[str]) -> bool:
        """Return whether a request can use the URL of ``server``. See ``read_tool`` for ``hosts``."""

    def open_pool(self) -> Pool:
        """Return a pool without connections."""


def engine() -> McpRuntime:
    """Return the runtime's module, which is imported on the first call."""
    return cast(McpRuntime, importlib.import_module(MCP))
