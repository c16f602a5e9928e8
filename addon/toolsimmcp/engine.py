"""What the house is given: ``Engine`` of ``toolsimlib.hosted.engine``."""

from __future__ import annotations

import importlib.util

from toolsimmcp.file import read_file
from toolsimmcp.pool import Pool as open_pool

__all__ = ["missing", "open_pool", "read_file"]


def missing() -> str:
    """Return what has to be installed, "" if nothing is missing."""
    if importlib.util.find_spec("mcp") is not None:
        return ""
    return "the package 'mcp' is missing: pip install 'mitmproxy-toolsim[mcp]'"
