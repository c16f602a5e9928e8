"""The settings of an MCP server: its location, the allowed tools, and the tools that need approval.

The runtime reads the list of servers from the operator's file and from requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Filter:
    """A selection of a server's tools, by ``names`` or by whether they declare themselves read-only.

    ``excluded``: names of tools that are not included.
    """

    names: frozenset[str] | None = None
    read_only: bool | None = None
    excluded: frozenset[str] = frozenset()

    def fits(self, name: str, *, read_only: bool) -> bool:
        """Return whether the filter includes a tool."""
        named = self.names is None or name in self.names
        return named and name not in self.excluded and (self.read_only is None or self.read_only == read_only)


@dataclass(frozen=True, slots=True)
class Server:
    """One server, by ``command`` or ``url``.

    ``allowed``: filters, all of which a tool has to match; ``free``: the same for calls without approval.
    """

    label: str
    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    folder: str = ""
    url: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    kind: Literal["stdio", "http", "sse"] = "stdio"
    allowed: tuple[Filter, ...] = ()
    free: tuple[Filter, ...] = ()
    timeout: float = SECONDS
    """Time limit in seconds for startup and for each call."""
    web_search: str = ""
    """The tool that runs the web searches of requests, "" for none."""
    defers: bool = False
    """Whether its tools are shown only after a search has found them; ``deferred``: individual tools, by name."""
    deferred: tuple[tuple[str, bool], ...] = ()

    @property
    def endpoint(self) -> Server:
        """The server without its tool rules, since servers that differ only in these share a connection."""
        return replace(self, allowed=(), free=(), web_search="", defers=False, deferred=())

    @property
    def secrets(self) -> tuple[str, ...]:
        """Secrets that must never be echoed: header and environment values."""
        return tuple(value for _, value in (*self.headers, *self.environment) if len(value) > 2)

    def allows(self, tool: str, *, read_only: bool) -> bool:
        """Return whether a tool may be called at all."""
        return all(rule.fits(tool, read_only=read_only) for rule in self.allowed)

    def is_deferred(self, tool: str) -> bool:
        """Return whether a tool is shown only after a search has found it."""
        return dict(self.deferred).get(tool, self.defers)

    def needs_approval(self, tool: str, *, read_only: bool) -> bool:
        """Return whether a call of a tool needs approval."""
        return not self.free or not all(rule.fits(tool, read_only=read_only) for rule in self.free)
