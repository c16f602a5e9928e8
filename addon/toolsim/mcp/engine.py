"""Implements the ``McpRuntime`` protocol in ``toolsim.mcp.runtime`` with the ``mcp`` package."""

from __future__ import annotations

import importlib.util

from toolsim.installation import command_for_extra
from toolsim.mcp import pool
from toolsim.mcp.runtime import Pool
from toolsim.mcp.server_config import is_host_allowed, read_file, read_tool

__all__ = ["is_host_allowed", "missing", "open_pool", "read_file", "read_tool"]


def open_pool() -> Pool:
    """Return a pool without connections."""
    return pool.Pool()


def missing() -> str:
    """Return a message if the ``mcp`` package is missing, or "" if it is installed."""
    if importlib.util.find_spec("mcp") is not None:
        return ""
    return f"the package 'mcp' is missing: {command_for_extra('mcp')}"
