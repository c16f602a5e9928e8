"""A registry of backends by address that records each backend's server software, APIs and rejected features.

A backend is probed when the first API request for it arrives, with GET requests for pages that only one kind of server
has (``request/engine.py``). Its answers to requests show which features and API paths it rejects (``attempt.py``).

1. Only backends that the operator named are probed: the target of a reverse mode, ``toolsim_upstream``, or one of
   ``toolsim_models``. Hosts that clients reach through the forward proxy are not probed, and a built-in backend needs
   no probe.
2. The first request waits for the probe for at most ``WAIT_SECONDS``; later requests never wait. A backend that does
   not answer the probe is probed again after a while, in parallel with the requests.
3. A probe contains no secret except the operator's key for that backend. Redirects are not followed, and the size of a
   response is limited.
4. If a connection fails, a different server might run at the address next time. So the backend is probed again. Until
   a probe is answered, the facts about the previous server remain in use. The intervals between probes increase, so as
   not to burden a server that is already struggling.
5. An API whose path a backend rejected is tried last for ``MISSING_SECONDS``. After that time, the backend might have
   been updated.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

from mitmproxy import ctx

from toolsim.core.plan import Feature
from toolsim.core.policy import ApiName, Engine, Policy
from toolsim.request.engine import PROBES, Probe, engine_of
from toolsim.wire.api import Api
from toolsim.wire.apis import APIS, NO_API, apis_line, backend_of, backends_of
from toolsim.wire.json_codec import parse_object

if TYPE_CHECKING:
    from tornado.httpclient import HTTPRequest
    from tornado.simple_httpclient import SimpleAsyncHTTPClient

logger = logging.getLogger(__name__)

WAIT_SECONDS = 1.0
PROBE_SECONDS = 5.0
_MAX_PAGE_BYTES = 4 * 1024 * 1024

# Maximum number of remembered backends. A limit is needed because addresses and models can come from clients.
_MAX_BACKENDS = 256
_MAX_REFUSED = 1024

REST_SECONDS = 5.0
MAX_REST_SECONDS = 3600.0

MISSING_SECONDS = 600.0
_ORDERS: Mapping[ApiName, tuple[ApiName, ...]] = {api.name: backends_of(api) for api in APIS.values()}


class Root(NamedTuple):
    """The root of a backend's URLs: its address, and the prefix of its paths before ``/v1``."""

    scheme: str
    host: str
    port: int
    path: str = ""

    def url(self, page: str) -> str:
        """Return this root's URL with the path ``page`` appended."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}{page}"


NO_ROOT = Root("http", "", 0)
"""The root for an exchange that is answered without a backend, or whose backend has not been chosen yet."""


@dataclass(slots=True, eq=False)
class Backend:
    """A backend and the known facts about it."""

    root: Root
    # The server software, or None until the backend has answered a probe.
    engine: Engine | None = None
    # Whether another server might now run at the backend's address.
    is_stale: bool = False
    # Whether the operator named the backend. Other backends receive only the requests that clients address to them.
    is_named: bool = False
    # Whether this is the built-in backend that toolsim started.
    is_builtin: bool = False
    # The APIs in which the backend cannot count tokens.
    uncounted: set[ApiName] = field(default_factory=set)
    # The APIs whose paths the backend rejected, with the time (monotonic clock) until which each API is tried last.
    missing: dict[ApiName, float] = field(default_factory=dict)
    # The most recent log line about the backend's APIs.
    logged: str = ""
    # The context windows that the backend reported, by model ("" for any model), and the time when they expire (see
    # ``windows.py``).
    windows: Mapping[str, int] = field(default_factory=dict)
    windows_until: float = 0.0
    # Pairs of a model and a feature that the backend rejected for this model.
    refused: set[tuple[str, Feature]] = field(default_factory=set)
    # The models whose most recent complete answer had no token counts.
    without_usage: set[str] = field(default_factory=set)
    asking: asyncio.Task[None] | None = None
    # The time of the last probe, and the minimum number of seconds before the next probe.
    asked_at: float | None = None
    rest: float = REST_SECONDS

    @property
    def is_known(self) -> bool:
        """Whether the server at the backend's address has been identified."""
        return self.engine is not None and not self.is_stale

    def may_be_asked(self, now: float) -> bool:
        """Return whether to probe the server now. If so, record ``now`` as the time of the probe.

        Each probe lengthens the interval before the next probe.
        """
        if self.asking is not None or self.is_known:
            return False
        if self.asked_at is not None:
            since = now - self.asked_at
            if since < self.rest:
                return False
            # The interval between probes is reset after a long pause.
            self.rest = min(2 * self.rest, MAX_REST_SECONDS) if since < 4 * self.rest else REST_SECONDS
        self.asked_at = now
        return True

    def is_now(self, engine: Engine) -> None:
        """Record the identified engine.

        If a connection has failed since the last probe, the server might have been replaced. In this case, forget the
        APIs and features that the backend lacked.
        """
        if self.is_stale:
            self.refused.clear()
            self.uncounted.clear()
            self.missing.clear()
        self.engine, self.is_stale = engine, False

    def mark_stale(self) -> None:
        """Record that the backend could not be reached."""
        self.is_stale = True

    def known_for(self, policy: Policy) -> Policy:
        """Return the operator's policy, with the identified engine in place of "auto".

        Until the engine has been identified, "auto" is replaced by "unknown".
        """
        return replace(policy, engine=self.engine or "unknown") if policy.engine == "auto" else policy

    def apis_for(self, client: Api, chosen: ApiName | Literal["auto"]) -> tuple[ApiName, ...]:
        """Return the APIs to try for a client, in order (rule 5). ``chosen`` is the operator's setting.

        For a backend that the operator did not name, only one API is tried.
        """
        if chosen != "auto" or not self.is_named:
            return (backend_of(client, chosen).name,)
        order = _ORDERS[client.name]
        if not self.missing:
            return order
        now = time.monotonic()
        self.missing = {api: until for api, until in self.missing.items() if until > now}
        return tuple(sorted(order, key=self.missing.__contains__))

    def has(self, found: ApiName, rejected: Collection[ApiName]) -> None:
        """Record that the backend accepted the API ``found`` after rejecting the paths of the ``rejected`` APIs."""
        self.rejects(rejected)
        self.missing.pop(found, None)
        self._log(logging.INFO, f"APIs {apis_line([found], self.missing)}")

    def has_none(self) -> None:
        """Log that the backend offers none of the APIs.

        The result is not remembered, since the backend might still be starting.
        """
        self._log(logging.WARNING, f"it {NO_API}: is the base URL correct?")

    def _log(self, level: int, line: str) -> None:
        if line != self.logged:
            self.logged = line
            logger.log(level, "toolsim: the backend at %s: %s", self.root.url("/v1"), line)

    def rejects(self, apis: Collection[ApiName]) -> None:
        """Remember that the backend rejected the paths of these APIs, so that they are tried last for a while."""
        self.missing |= dict.fromkeys(apis, time.monotonic() + MISSING_SECONDS)

    def refuses(self, model: str, feature: Feature) -> None:
        """Remember that the backend rejected a feature for a model, so that it is not tried again."""
        if len(self.refused) >= _MAX_REFUSED:
            self.refused.clear()
        self.refused.add((model, feature))


class BackendRegistry:
    """All known backends. Only the ``_MAX_BACKENDS`` most recently used backends are kept."""

    def __init__(self) -> None:
        self._known: dict[Root, Backend] = {}

    def at(self, scheme: str, host: str, port: int, prefix: str = "") -> Backend:
        """Return the backend at an address. ``prefix`` is the path before the API's endpoint."""
        root = Root(scheme, host, port, prefix.removesuffix("/v1").rstrip("/"))
        backend = self._known.pop(root, None)
        if backend is None or (backend.is_stale and backend.asked_at is None):
            # After a failed connection, only a probe can reset ``is_stale``. A backend that has never been probed is
            # replaced instead, because it might never be probed.
            backend = Backend(root, is_named=backend.is_named if backend is not None else False)
        # The backend is inserted last. The first backend, which is the least recently used, is evicted first.
        self._known[root] = backend
        if len(self._known) > _MAX_BACKENDS:
            del self._known[next(iter(self._known))]
        return backend

    def ask(self, backend: Backend, key: str) -> Awaitable[None] | None:
        """Start probing a backend with the operator's key for it, if a probe is due.

        Return an awaitable for the first request, which has to wait for the probe. Return None for later requests.
        """
        is_first = backend.asked_at is None
        if backend.may_be_asked(time.monotonic()):
            backend.asking = asyncio.get_running_loop().create_task(_recognise(backend, key))
        return _waited(backend.asking) if backend.asking is not None and is_first else None

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks of all running probes."""
        return [backend.asking for backend in self._known.values() if backend.asking is not None]

    def stop(self) -> None:
        """Cancel all running probes."""
        for task in self.tasks():
            task.cancel()


async def _waited(asking: asyncio.Task[None]) -> None:
    await asyncio.wait({asking}, timeout=WAIT_SECONDS)


async def _recognise(backend: Backend, key: str) -> None:
    client = await page_client(len(PROBES))
    pages = [asyncio.ensure_future(_get(client, backend.root, probe, key)) for probe in PROBES]
    try:
        answered = 0
        for page in asyncio.as_completed(pages):
            engine = await page
            answered += engine is not None
            if engine is not None and engine != "unknown":
                if backend.engine != engine:
                    logger.info("toolsim: the backend at %s is %s", backend.root.url(""), engine)
                backend.is_now(engine)
                return
        if answered == len(pages):
            backend.is_now("unknown")
    finally:
        backend.asking = None
        for page in pages:
            page.cancel()
        await asyncio.gather(*pages, return_exceptions=True)
        client.close()


async def page_client(pages: int = 1) -> SimpleAsyncHTTPClient:
    """Return an HTTP client for probing a backend with at most ``pages`` concurrent requests."""
    # Importing the client takes half of the startup time. A thread imports it, so that no other request has to wait.
    await asyncio.to_thread(import_module, "toolsim.proxy.paced_client")
    from toolsim.proxy.paced_client import PacedClient

    return PacedClient(force_instance=True, max_clients=pages, max_body_size=_MAX_PAGE_BYTES, max_header_size=65536)


def page_request(url: str, key: str, seconds: float, body: str | None = None) -> HTTPRequest:
    """Return a request that fetches a page of a backend, with the operator's key for the backend (rule 3).

    If ``body`` is not None, the request is a POST with this JSON text.
    """
    from tornado.httpclient import HTTPRequest

    return HTTPRequest(
        url,
        method="GET" if body is None else "POST",
        headers={"accept": "application/json"}
        | ({} if body is None else {"content-type": "application/json"})
        | ({"authorization": f"Bearer {key}"} if key else {}),
        body=body,
        connect_timeout=seconds,
        request_timeout=seconds,
        follow_redirects=False,
        validate_cert=not ctx.options.ssl_insecure,
        ca_certs=ctx.options.ssl_verify_upstream_trusted_ca,
    )


async def _get(client: SimpleAsyncHTTPClient, root: Root, probe: Probe, key: str) -> Engine | None:
    """Return the engine that a page identifies, "unknown" for an unknown server, or None if there was no response."""
    from tornado.httpclient import HTTPClientError

    try:
        answer = await client.fetch(page_request(root.url(probe.path), key, PROBE_SECONDS), raise_error=False)
    except (HTTPClientError, OSError, ValueError):
        # Tornado reports a timeout as an HTTP error, although there was no response.
        return None
    # If the operator's base URL ends with ``/api``, which is the path of Ollama's own API, the probe for vLLM's
    # ``/version`` has in fact requested Ollama's ``/api/version``.
    probe = next((other for other in PROBES if other.path == root.path + probe.path), probe)
    return engine_of(probe, answer.code, answer.headers, parse_object(answer.body) or {}) or "unknown"
