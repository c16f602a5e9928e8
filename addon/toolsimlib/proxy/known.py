"""A cache of facts about each backend, by its address: which server it is, and what it has refused.

Filled by ``recognise.py`` and from answers (``exchange.py``). When a backend cannot be reached there may be a different
server at its address next time: what is known of it is assumed until a server there has answered again. It is asked
only now and then, and more and more rarely, so that a server that struggles is not asked more for struggling.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from toolsimlib.plan import Engine, Feature, Policy

# Addresses and models may come from clients, so their number needs a limit.
_MAX_BACKENDS = 256
_MAX_REFUSED = 1024

REST_SECONDS = 5.0
MAX_REST_SECONDS = 3600.0


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
    """One backend."""

    root: Root
    # None until it has answered.
    engine: Engine | None = None
    # Whether there may be another server at its address now.
    is_doubtful: bool = False
    # Whether it may have an endpoint that counts tokens.
    counts: bool = True
    # What it has refused, by model.
    refused: set[tuple[str, Feature]] = field(default_factory=set)
    asking: asyncio.Task[None] | None = None
    # When it was last asked which server it is, and for how many seconds after that it is not asked again.
    asked_at: float | None = None
    rest: float = REST_SECONDS

    @property
    def is_known(self) -> bool:
        """Whether the server at its address has said which one it is."""
        return self.engine is not None and not self.is_doubtful

    def may_be_asked(self, now: float) -> bool:
        """Return whether to find out now which server it is; if so, the next time is further away."""
        if self.asking is not None or self.is_known:
            return False
        if self.asked_at is not None:
            since = now - self.asked_at
            if since < self.rest:
                return False
            # After a long quiet time the pauses are short again.
            self.rest = min(2 * self.rest, MAX_REST_SECONDS) if since < 4 * self.rest else REST_SECONDS
        self.asked_at = now
        return True

    def is_now(self, engine: Engine) -> None:
        """Note which server has answered. If it was in doubt, it may have been started with other options."""
        if self.is_doubtful:
            self.refused.clear()
            self.counts = True
        self.engine, self.is_doubtful = engine, False

    def doubt(self) -> None:
        """Note that it could not be reached."""
        self.is_doubtful = True

    def known_for(self, policy: Policy) -> Policy:
        """Return the operator's policy with the engine, as far as it is known by now."""
        return replace(policy, engine=self.engine or "unknown") if policy.engine == "auto" else policy

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
        backend = self._known.pop(root, None)
        if backend is None or (backend.is_doubtful and backend.asked_at is None):
            # One that is never asked could stay in doubt for ever.
            backend = Backend(root)
        # In the order of lookup: the least recently looked up is evicted first.
        self._known[root] = backend
        if len(self._known) > _MAX_BACKENDS:
            del self._known[next(iter(self._known))]
        return backend

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks that are asking backends at the moment."""
        return [backend.asking for backend in self._known.values() if backend.asking is not None]
