"""Programs that tests need and that might not be installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_CLIENTS = Path(os.environ.get("TOOLSIM_TEST_CLIENTS") or Path(__file__).parents[1] / "clients")
"""The folder of clients that npm has installed. By default, it is the folder with the pinned versions."""
NODE_CLIENTS = _CLIENTS / "node"
AGENTS = _CLIENTS / "agents"


def codex() -> str | None:
    """Return the path of Codex: CODEX_BIN, the binary among the JavaScript clients, or the binary on the PATH. Return
    None if no binary is found.
    """
    installed = NODE_CLIENTS / "node_modules" / ".bin"
    return os.environ.get("CODEX_BIN") or shutil.which("codex", path=installed) or shutil.which("codex")


def mcp_server(name: str) -> str | None:
    """Return the path of a published MCP server in the folder MCP_BIN or, if MCP_BIN is not set, among the JavaScript
    clients. Return None if it is not installed.
    """
    folder = os.environ.get("MCP_BIN") or NODE_CLIENTS / "node_modules" / ".bin"
    return shutil.which(f"mcp-server-{name}", path=folder)


def agent(name: str) -> str | None:
    """Return the path of an agent program that `make test-clients` installs, or None if it is not installed."""
    return shutil.which(name, path=AGENTS / "node_modules" / ".bin")
