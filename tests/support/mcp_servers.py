"""MCP servers for tests: one that is built with the official package, one that misbehaves, and one that searches."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.ports import free_port

HERE = Path(__file__).parent
BAD: dict[str, Any] = {"command": sys.executable, "args": [str(HERE / "bad_mcp.py")]}
OFFICIAL: dict[str, Any] = {"command": sys.executable, "args": [str(HERE / "official_mcp.py"), "stdio"]}

SEARCHER: dict[str, Any] = {"command": sys.executable, "args": [str(HERE / "search_mcp.py")], "web_search": "find"}


@contextmanager
def over_http(way: str = "streamable-http", *, niceness: int = 0) -> Iterator[str]:
    """Run the official server over streamable HTTP (or ``sse``); yield its URL."""
    port = free_port()
    line = ["nice", "-n", str(niceness), sys.executable, str(HERE / "official_mcp.py"), way, str(port)]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, "the server has ended"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/{'sse' if way == 'sse' else 'mcp'}"
    finally:
        process.kill()
        process.wait()
