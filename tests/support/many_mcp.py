"""An MCP server over stdio with any number of tools, each of which has a long description."""

from __future__ import annotations

import sys
from collections.abc import Callable

from mcp.server.mcpserver import MCPServer

server = MCPServer("many", log_level="CRITICAL")


def operation(number: int) -> Callable[..., str]:
    def run(path: str, mode: str = "r", count: int = 1, recursive: bool = False) -> str:
        return f"{number}: {path}"

    run.__name__ = f"operation_{number}"
    run.__doc__ = f"Do operation number {number} on a file. " + "It takes a path, and says what it did. " * 8
    return run


if __name__ == "__main__":
    for index in range(int(sys.argv[1])):
        server.add_tool(operation(index))
    server.run()
