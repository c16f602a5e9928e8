"""A cache of facts about each backend, by its address: which server it is, and what it has refused.

Filled by ``recognise.py`` and from answers (``exchange.py``), and dropped when a backend cannot be reached: next time
there may be a different server at its address.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from toolsimlib.plan import Engine, Feature, HeldCatalogue

# Addresses and models may come from clients, so their number needs a limit.
_MAX_BACKENDS = 256
_MAX_REFUSED = 1024
# Some 5 MB. A request that continues a forgotten answer sends the catalogue once more.
_MAX_HELD = 20_000
_MAX_ID = 256
_REFERS = re.compile(rb'"previous_response_id"\s*:\s*"([^"\\]{1,256})"')


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


class HeldCatalogues:
    """The catalogues that backends hold in contexts, by the id of the last answer: the most recently used ones."""

    def __init__(self) -> None:
        self._held: dict[tuple[Root, str], HeldCatalogue] = {}

    def note(self, root: Root, id: str, held: HeldCatalogue) -> None:
        """Remember what the context of an answer holds."""
        if len(id) > _MAX_ID:
            return
        self._held[root, id] = held if held.answer else HeldCatalogue(held.digest, id)
        if len(self._held) > _MAX_HELD:
            del self._held[next(iter(self._held))]

    def forget(self, root: Root, id: str) -> None:
        """Forget the catalogue of an answer's context, and of all answers that have it from the same request."""
        if (held := self._held.get((root, id))) is not None:
            self._held = {key: kept for key, kept in self._held.items() if key[0] != root or kept != held}

    def before(self, root: Root, body: bytes) -> dict[str, HeldCatalogue]:
        """Return what is cached for the answers that a request, as received, may continue."""
        if not self._held:
            return {}
        ids = {found.decode("utf-8", "replace") for found in _REFERS.findall(body)}
        known = {id: held for id in ids if (held := self._held.pop((root, id), None))}
        # In the order of use: the least recently used are evicted first.
        self._held |= {(root, id): held for id, held in known.items()}
        return known


@dataclass(slots=True, eq=False)
class Backend:
    """One backend. ``engine``: None until it was asked; ``refused``: what it has refused, by model.

    ``counts``: whether it may have an endpoint that counts tokens. ``held``: the catalogues that backends hold.
    """

    root: Root
    engine: Engine | None = None
    counts: bool = True
    held: HeldCatalogues = field(default_factory=HeldCatalogues)
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
        self._held = HeldCatalogues()

    def at(self, scheme: str, host: str, port: int, prefix: str = "") -> Backend:
        """Return the facts about the backend there; ``prefix``: the path before the API's endpoint."""
        root = Root(scheme, host, port, prefix.removesuffix("/v1").rstrip("/"))
        backend = self._known.pop(root, None) or Backend(root, held=self._held)
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
