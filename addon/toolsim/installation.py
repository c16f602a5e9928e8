"""Generates the command that adds packages to toolsim's environment, for messages about missing packages.

The type of the environment is recognized by the files that its installer leaves there: uv's receipt for a tool, or
pipx's metadata. In all other environments, pip adds packages, or uv if pip is missing. The commands name packages
rather than an extra of toolsim, so that they also work if the wheel's file has been deleted, or if mitmproxy loads the
script from a checkout.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "eval": ("openai>=3,<4", "rich>=13,<16"),
    "local": ("xllamacpp>=2026.10",),
    "mcp": ("mcp>=2.3,<3",),
    "redis": ("redis>=6,<9",),
    "otel": ("opentelemetry-sdk>=1.45,<2", "opentelemetry-exporter-otlp-proto-http>=1.45,<2"),
}
"""The extras that a message can suggest. They repeat pyproject.toml, because that file is not available at run time."""


def command_for_extra(extra: str) -> str:
    """Return the command that installs an extra. An extra that is not in ``EXTRAS`` is the name of a package."""
    return install_command(EXTRAS.get(extra, (extra,)))


def install_command(requirements: Sequence[str], *, dependencies: bool = True) -> str:
    """Return the command that adds packages to this environment, by default with their dependencies."""
    environment = Path(sys.prefix)
    no_dependencies = [] if dependencies else ["--no-deps"]
    if getattr(sys, "frozen", False):
        # The Python environment in mitmproxy's standalone programs cannot be extended.
        return _line(["uv", "tool", "install", "mitmproxy", *_each("--with", requirements)])
    if (environment / "pipx_metadata.json").is_file() and (name := _pipx_name(environment)):
        options = [] if dependencies else ["--pip-args=--no-deps"]
        return _line(["pipx", "inject", *options, name, *requirements])
    # uv can add packages to a tool only with their dependencies.
    if dependencies and (tool := _uv_tool(environment)):
        return _line(["uv", "tool", "install", *tool, *_each("--with", requirements)])
    if find_spec("pip") is None:
        return _line(["uv", "pip", "install", "--python", sys.executable, *no_dependencies, *requirements])
    return _line([sys.executable, "-m", "pip", "install", *no_dependencies, *requirements])


def _pipx_name(environment: Path) -> str:
    try:
        found = json.loads((environment / "pipx_metadata.json").read_text(encoding="utf-8"))
        return str(found["main_package"]["package"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _uv_tool(environment: Path) -> list[str]:
    """Return the arguments of ``uv tool install`` that reinstall toolsim, or [] if toolsim is not a uv tool."""
    try:
        receipt = tomllib.loads((environment / "uv-receipt.toml").read_text(encoding="utf-8"))
        tool, *others = receipt["tool"]["requirements"]
        arguments = [*(["--editable"] if "editable" in tool else []), _requirement(tool)]
        for other in others:
            arguments += ["--with-editable" if "editable" in other else "--with", _requirement(other)]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return arguments


def _requirement(entry: Mapping[str, Any]) -> str:
    """Return an entry of uv's receipt as a command-line argument."""
    extras = f"[{','.join(entry['extras'])}]" if entry.get("extras") else ""
    for key in ("directory", "editable", "path"):
        if key in entry:
            return f"{entry[key]}{extras}"
    if "git" in entry:
        repository, _, revision = entry["git"].partition("?rev=")
        return f"{entry['name']}{extras} @ git+{repository}{'@' if revision else ''}{revision}"
    if "url" in entry:
        return f"{entry['name']}{extras} @ {entry['url']}"
    return f"{entry['name']}{extras}{entry.get('specifier', '')}"


def _each(flag: str, values: Sequence[str]) -> Iterator[str]:
    for value in values:
        yield from (flag, value)


def _line(arguments: Sequence[str]) -> str:
    """Quote arguments for the shell. cmd.exe does not support single quotes, and a bare ``>`` would redirect output."""
    if os.name == "nt":
        return " ".join(f'"{word}"' if set(word) & set(" <>|&^") else word for word in arguments)
    return shlex.join(arguments)
