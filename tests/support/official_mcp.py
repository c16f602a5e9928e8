"""An MCP server built with the official package. Arguments: ``stdio``, ``streamable-http PORT`` or ``sse PORT``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("official", log_level="CRITICAL")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def slow(seconds: float) -> str:
    """Wait for some seconds."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool()
def header(context: Context[Any, Any], name: str) -> str:
    """Return a header of the request, or "" if the header is missing."""
    return context.request_context.request.headers.get(name, "")


if __name__ == "__main__":
    way, *port = sys.argv[1:]
    more: dict[str, Any] = {"host": "127.0.0.1", "port": int(port[0])} if port else {}
    server.run(transport=way, **more)  # type: ignore[arg-type]
