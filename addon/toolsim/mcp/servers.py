"""Defines the settings of an MCP server: its location, the allowed tools, and the tools that need approval.

The runtime parses these settings from the operator's file and from requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter for a server's tools, by name and by whether they declare themselves read-only."""

    names: frozenset[str] | None = None
    """The accepted names, or None to accept all names."""
    read_only: bool | None = None
    """Whether to accept only tools that are read-only (True) or only tools that are not (False). None accepts both."""
    excluded: frozenset[str] = frozenset()
    """The names that the filter rejects."""

    def fits(self, name: str, *, read_only: bool) -> bool:
        """Return whether the filter selects a tool."""
        named = self.names is None or name in self.names
        return named and name not in self.excluded and (self.read_only is None or self.read_only == read_only)


@dataclass(frozen=True, slots=True)
class Server:
    """The settings of one server, which has either a ``command`` or a ``url``."""

    label: str
    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    folder: str = ""
    url: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    kind: Literal["stdio", "http", "sse"] = "stdio"
    allowed: tuple[Filter, ...] = ()
    """Filters for the allowed tools. A tool is allowed if it matches all of these filters."""
    free: tuple[Filter, ...] = ()
    """A tool needs no approval if it matches all of these filters. Without filters, every tool needs approval."""
    timeout: float = SECONDS
    """Timeout of the startup and of each call, in seconds."""
    web_search: str = ""
    """The name of the tool that runs web searches for requests with ``web_search``, or "" if there is none."""
    defers: bool = False
    """Whether the model sees the server's tools only after a tool search has found them.

    ``deferred`` overrides this for individual tools.
    """
    deferred: tuple[tuple[str, bool], ...] = ()

    @property
    def endpoint(self) -> Server:
        """The settings without the rules for tools. Servers that differ only in these rules share a connection."""
        return replace(self, allowed=(), free=(), web_search="", defers=False, deferred=())

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values of headers and environment variables, which must not appear in the log or in answers."""
        return tuple(value for _, value in (*self.headers, *self.environment) if len(value) > 2)

    def allows(self, tool: str, *, read_only: bool) -> bool:
        """Return whether the model may call a tool, with or without approval."""
        return all(rule.fits(tool, read_only=read_only) for rule in self.allowed)

    def is_deferred(self, tool: str) -> bool:
        """Return whether the model sees a tool only after a tool search has found it."""
        return dict(self.deferred).get(tool, self.defers)

    def needs_approval(self, tool: str, *, read_only: bool) -> bool:
        """Return whether calls to a tool need approval."""
        return not self.free or not all(rule.fits(tool, read_only=read_only) for rule in self.free)
