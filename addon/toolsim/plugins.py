"""Optional modules, which the core imports only through this table.

Each is imported when an option or a request needs it. To add a module, add a row.
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
"""By the value of ``toolsim_backend``."""
LOOPBACK_SERVER = "toolsim.backends.loopback"
"""The module with ``Loopback``, the server in front of each built-in backend."""

SOCKETS = "toolsim.sockets.server"
"""The module with ``SocketServer``, which serves WebSocket connections of the Responses API on a client's request."""
BACKGROUND = "toolsim.background.endpoints"
"""The module with ``BackgroundAnswers``; ``proxy/background.py`` describes its interface."""
MCP = "toolsim.mcp.engine"
"""The module that communicates with MCP servers; ``mcp/runtime.py`` describes its interface."""


class StoreKind(NamedTuple):
    """A kind of store. ``module``: its ``open_store(place, bounds)`` returns a ``Store`` without opening it yet."""

    module: str
    location: Literal["none", "path", "url"]
    """The rest of its address: nothing but the kind, the path of a file, or a URL."""
    words: str = ""
    package: str = ""
    """The third-party package that it requires; the extra that installs it has the same name."""


_REDIS = StoreKind("toolsim.stores.redis_server", "url", "a Redis server", "redis")
STORES: dict[str, StoreKind] = {
    "memory": StoreKind("toolsim.stores.sqlite", "none"),
    "sqlite": StoreKind("toolsim.stores.sqlite", "path"),
    "redis": _REDIS,
    "rediss": _REDIS,
    "unix": _REDIS,
}
"""By the beginning of the address in ``toolsim_store``."""
