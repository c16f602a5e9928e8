"""Programs that tests need and that might not be installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_CLIENTS = Path(os.environ.get("TOOLSIM_TEST_CLIENTS") or Path(__file__).parents[1] / "clients")
"""The folder of the clients that npm installs, by default the folder with the pinned versions."""
NODE_CLIENTS = _CLIENTS / "node"
AGENTS = _CLIENTS / "agents"


def codex() -> str | None:
    """Return the Codex binary: CODEX_BIN, the JavaScript clients' binary, or the binary on the path."""
    installed = NODE_CLIENTS / "node_modules" / ".bin"
    return os.environ.get("CODEX_BIN") or shutil.which("codex", path=installed) or shutil.which("codex")


def mcp_server(name: str) -> str | None:
    """Return a published MCP server from the folder MCP_BIN or from the JavaScript clients."""
    folder = os.environ.get("MCP_BIN") or NODE_CLIENTS / "node_modules" / ".bin"
    return shutil.which(f"mcp-server-{name}", path=folder)


def agent(name: str) -> str | None:
    """Return an agent program that the tests install, or None if it is not installed."""
    return shutil.which(name, path=AGENTS / "node_modules" / ".bin")
