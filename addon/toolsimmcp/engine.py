"""What the house is given: ``Engine`` of ``toolsimlib.hosted.engine``."""

from __future__ import annotations

import importlib.util

from toolsimlib.hosted.engine import Pool

from toolsimmcp import pool
from toolsimmcp.file import read_file

__all__ = ["missing", "open_pool", "read_file"]


def open_pool() -> Pool:
    """Return a pool without connections."""
    return pool.Pool()


def missing() -> str:
    """Return what has to be installed, "" if nothing is missing."""
    if importlib.util.find_spec("mcp") is not None:
        return ""
    return "the package 'mcp' is missing: pip install 'mitmproxy-toolsim[mcp]'"
