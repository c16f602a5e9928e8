"""Lists optional modules in tables. The core imports these modules only through the tables.

A module is imported when an option or a request needs it. To add a module, add a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class Builtin(NamedTuple):
    """A built-in backend. ``module`` names a module whose ``backend_of(settings)`` returns a ``TextBackend``."""

    module: str
    words: str
    """A short name for the startup banner, such as "a model file"."""
    help: str
    """What the backend does, such as "runs a model file in this process", for the help of ``toolsim_backend``."""


BUILTIN: Mapping[str, Builtin] = {
    "codex": Builtin("toolsim.backends.codex.backend", "your Codex login", "runs the Codex app-server with your login"),
    "local": Builtin("toolsim.backends.local", "a model file", "runs a model file in this process"),
    "scripted": Builtin(
        "toolsim.backends.scripted.backend",
        "a scripted model (toolsim_backend=scripted)",
        "is a deterministic model for experiments",
    ),
}
"""The built-in backends, by the value of ``toolsim_backend``."""
LOOPBACK_SERVER = "toolsim.backends.loopback"
"""The module with ``Loopback``, the server in front of a built-in backend."""

SOCKETS = "toolsim.sockets.server"
"""The module with ``SocketServer``, which serves WebSocket connections to the Responses API."""
BACKGROUND = "toolsim.background.endpoints"
"""The module with ``BackgroundAnswers``. ``proxy/background.py`` describes its interface."""
MCP = "toolsim.mcp.engine"
"""The module that communicates with MCP servers. ``mcp/runtime.py`` describes its interface."""


class StoreKind(NamedTuple):
    """A type of store. ``module`` names a module whose ``open_store(place, bounds)`` returns an unopened ``Store``."""

    module: str
    location: Literal["none", "path", "url"]
    """The type of the location in the store's URL: none, a file path, or a URL."""
    words: str = ""
    package: str = ""
    """The third-party package that the store requires. The extra that installs it has the same name."""


_REDIS = StoreKind("toolsim.stores.redis_server", "url", "a Redis server", "redis")
STORES: dict[str, StoreKind] = {
    "memory": StoreKind("toolsim.stores.sqlite", "none"),
    "sqlite": StoreKind("toolsim.stores.sqlite", "path"),
    "redis": _REDIS,
    "rediss": _REDIS,
    "unix": _REDIS,
}
"""The types of stores, by the prefix of the URL in ``toolsim_store``."""
