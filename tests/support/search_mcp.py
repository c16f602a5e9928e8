"""An MCP server over stdio that searches a small simulated web, built with the official package.

Some queries are special: ``slow`` takes a minute, ``huge`` returns a megabyte, and ``nested`` returns JSON with 2,000
levels.
"""

from __future__ import annotations

import asyncio
import json

from mcp.server.mcpserver import MCPServer

server = MCPServer("search", log_level="CRITICAL")

PAGES = [
    {"title": "Herons of Europe", "url": "https://birds.example/heron", "snippet": "The grey heron is common."},
    {"title": "Heron shop", "url": "https://shop.example/heron", "snippet": "Herons for your garden."},
]


@server.tool()
async def find(n: int = 10, q: str = "") -> str:
    """Search the web."""
    if q == "slow":
        await asyncio.sleep(60)
    if q == "huge":
        return "x" * 1_000_000
    if q == "nested":
        return '{"results":' * 2_000
    return json.dumps({"query": q, "results": PAGES[:n]})


@server.tool()
def shout(text: str) -> str:
    """Return a text in capitals."""
    return text.upper()


if __name__ == "__main__":
    server.run()
