"""Implements ``Engine`` of ``toolsim.mcp.runtime``."""

from __future__ import annotations

import importlib.util

from toolsim.installation import command_for_extra
from toolsim.mcp import pool
from toolsim.mcp.declared import may_be_named, read_file, read_tool
from toolsim.mcp.runtime import Pool

__all__ = ["may_be_named", "missing", "open_pool", "read_file", "read_tool"]


def open_pool() -> Pool:
    """Return a pool without connections."""
    return pool.Pool()


def missing() -> str:
    """Return what has to be installed, "" if nothing is missing."""
    if importlib.util.find_spec("mcp") is not None:
        return ""
    return f"the package 'mcp' is missing: {command_for_extra('mcp')}"
