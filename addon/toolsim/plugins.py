"""Optional modules that the core finds by name, and never imports in any other way.

Each is imported when an option or a request needs it. To add one, add a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class Builtin(NamedTuple):
    """A built-in backend. ``module``: its ``backend_of(settings)`` returns a ``TextBackend``."""

    module: str
    words: str


BUILTIN: Mapping[str, Builtin] = {
    "codex": Builtin("toolsim.backends.codex.backend", "your Codex login"),
    "local": Builtin("toolsim.backends.local", "a model file"),
    "scripted": Builtin("toolsim.backends.scripted.backend", "a scripted model (toolsim_backend=scripted)"),
}
"""By what ``toolsim_backend`` says."""
LOOPBACK_SERVER = "toolsim.backends.loopback"
"""Has the server, ``Loopback``, in front of each."""

SOCKETS = "toolsim.sockets.server"
"""Has ``SocketServer``, which serves the WebSocket connections of the Responses API, once a client asks for one."""
BACKGROUND = "toolsim.background.endpoints"
"""Has ``BackgroundAnswers``; ``proxy/background.py`` says what it does."""
MCP = "toolsim.mcp.engine"
"""Speaks with MCP servers; ``mcp/runtime.py`` says what it has."""


class StoreKind(NamedTuple):
    """A kind of store. ``module``: its ``open_store(place, bounds)`` returns a ``Store``, and opens nothing yet."""

    module: str
    location: Literal["none", "path", "url"]
    """What its address says: nothing but its kind; the path of a file after it; or it is a URL."""
    words: str = ""
    package: str = ""
    """That of another project which it needs; the extra that installs it has the same name."""


_REDIS = StoreKind("toolsim.stores.redis_server", "url", "a Redis server", "redis")
STORES: dict[str, StoreKind] = {
    "memory": StoreKind("toolsim.stores.sqlite", "none"),
    "sqlite": StoreKind("toolsim.stores.sqlite", "path"),
    "redis": _REDIS,
    "rediss": _REDIS,
    "unix": _REDIS,
}
"""By how the address begins that ``toolsim_store`` says."""
