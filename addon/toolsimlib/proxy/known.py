"""A cache of facts about each backend, by its address: which server it is, and what it has refused.

Filled by ``recognise.py`` and from answers (``exchange.py``), and dropped when a backend cannot be reached: next time
there may be a different server at its address.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from toolsimlib.plan import Engine, Feature

# Addresses and models may come from clients, so their number needs a limit.
_MAX_BACKENDS = 256
_MAX_REFUSED = 1024


class Root(NamedTuple):
    """The root of a backend's URLs: its address, and the prefix of its paths before ``/v1``."""

    scheme: str
    host: str
    port: int
    path: str = ""

    def url(self, page: str) -> str:
        """Return the URL of a page."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}{page}"


@dataclass(slots=True, eq=False)
class Backend:
    """One backend. ``engine``: None until it was asked; ``refused``: what it has refused, by model.

    ``counts``: whether it may have an endpoint that counts tokens.
    """

    root: Root
    engine: Engine | None = None
    counts: bool = True
    refused: set[tuple[str, Feature]] = field(default_factory=set)
    asking: asyncio.Task[None] | None = None
    asked_at: float | None = None

    def refuses(self, model: str, feature: Feature) -> None:
        """Remember that a feature is not to be attempted again."""
        if len(self.refused) >= _MAX_REFUSED:
            self.refused.clear()
        self.refused.add((model, feature))


class KnownBackends:
    """All backends that requests were sent to, the last ``_MAX_BACKENDS`` of them."""

    def __init__(self) -> None:
        self._known: dict[Root, Backend] = {}

    def at(self, scheme: str, host: str, port: int, prefix: str = "") -> Backend:
        """Return the facts about the backend there; ``prefix``: the path before the API's endpoint."""
        root = Root(scheme, host, port, prefix.removesuffix("/v1").rstrip("/"))
        backend = self._known.pop(root, None) or Backend(root)
        # In the order of lookup: the least recently looked up is evicted first.
        self._known[root] = backend
        if len(self._known) > _MAX_BACKENDS:
            del self._known[next(iter(self._known))]
        return backend

    def forget(self, backend: Backend) -> None:
        """Forget a backend that could not be reached."""
        if self._known.get(backend.root) is backend:
            del self._known[backend.root]

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks that are asking backends at the moment."""
        return [backend.asking for backend in self._known.values() if backend.asking is not None]
