"""Reads recordings from files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mitmproxy.http import HTTPFlow
from mitmproxy.io import read_flows_from_paths

from toolsim.proxy.metadata import NOTE


def recorded(path: Path) -> tuple[HTTPFlow, HTTPFlow]:
    """Return the backend's side and the client's side of a recorded exchange.

    Raises ValueError or FlowReadException if the file is not a recording.
    """
    flows = [flow for flow in read_flows_from_paths([path]) if isinstance(flow, HTTPFlow)]
    sides = [flow.metadata.get(NOTE, {}).get("side") for flow in flows]
    if sides != ["backend", "client"]:
        raise ValueError(f"got flows for {sides}, expected one flow for the backend, followed by one for the client")
    backend, client = flows
    return backend, client


def flow_files(paths: Iterable[Path]) -> list[Path]:
    """Return all files among the paths, and all .flow files in the folders among the paths."""
    return [file for path in paths for file in (sorted(path.glob("*.flow")) if path.is_dir() else [path])]
