"""Routing. Pure: paths, hosts and headers in, a decision out.

A request reaches the proxy in one of three ways, which determines how it can be handled:

1. *reverse*: mitmproxy is a reverse proxy for one backend. All requests are for that backend, and toolsim is the server
   that the client sees: it serves metrics, checks the key and answers preflights.
2. *direct*: the target of the request is the listener itself, although mitmproxy is an ordinary proxy. It is for the
   built-in backend or for ``toolsim_upstream``; without either it cannot be forwarded.
3. *through*: the request is for another host. It is left unchanged if it may pass at all (see ``access``), unless
   ``toolsim_upstream`` takes over the API requests of clients whose base URL cannot be set.

A built-in backend can be the target in all three cases, so it is recognized by its address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from toolsim.core.errors import ApiError
from toolsim.proxy.access import Incoming, Refusal, check_forward, check_server, is_bearer
from toolsim.proxy.address import LOOPBACK, Upstream, leads_here
from toolsim.proxy.cors import cors_headers, preflight_headers
from toolsim.proxy.options.settings import Settings
from toolsim.wire.api import Api
from toolsim.wire.dialect import APIS, RESPONSES, api_of_path
from toolsim.wire.responses.actions import Action, action_of, action_path, turn_path
from toolsim.wire.responses.resources import resource_of

USE_HTTP = Refusal(
    "WebSocket mode is not served here: use HTTP.", "invalid_request_error", status=426, reason="websocket"
)
_USE_HTTP = {"upgrade": "HTTP/1.1", "connection": "upgrade"}

Page = Literal["", "metrics", "health", "ready", "overview", "overview_public"]
"""A built-in page; "" = none."""
METRICS = "/toolsim/metrics"
OVERVIEW = "/toolsim/"
PAGES: Mapping[str, Page] = {
    OVERVIEW: "overview",
    "/toolsim": "overview",
    METRICS: "metrics",
    "/toolsim/health": "health",
    "/toolsim/ready": "ready",
    "/api/hello": "health",  # Claude Code requests this at startup.
}
WITHOUT_KEY = ("health", "ready")
"""Pages for clients without a key, such as load balancers.

With a key set they are for everybody: they contain no secrets, and no other rule applies to a listener with a key
(``access``, rule 3).
"""
MODELS = "/models"
_ENDPOINTS = ", ".join([*(f"/v1{api.path_suffix}" for api in APIS.values()), f"/v1{MODELS}", OVERVIEW])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Let the request pass to its target; ``to_builtin``: the target is the built-in backend.

    ``authorization``: the header of that name for the backend; None = the client's own, "" = none. ``action``: the
    auxiliary operation, if it is not a turn.
    """

    to_builtin: bool = False
    authorization: str | None = None
    action: Action | None = None


@dataclass(frozen=True, slots=True)
class Forward(Pass):
    """Send the request to ``upstream`` instead, with ``path``."""

    upstream: Upstream
    path: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the request here: with an error, or with ``page``. ``headers`` are added."""

    error: ApiError | None = None
    page: Page = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Serve:
    """Answer the request from the store."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Answer the requests on this connection, a WebSocket, as separate requests."""


Route = Pass | Answer | Serve | Upgrade


def decide(request: Incoming, settings: Settings, builtin_port: int | None) -> Route:
    """Return the route of a request; ``builtin_port``: the port of the built-in backend, None while it is not up."""
    plain = request.path.partition("?")[0]
    we_are_the_server = request.is_reverse or request.is_direct
    takes_over = we_are_the_server or settings.upstream is not None
    named = action_of(request.path) if takes_over else None
    action = named if request.method == "POST" else None
    path = turn_path(request.path) if named else request.path
    ending = endpoint(path)
    page = _page(request, plain, settings) if we_are_the_server else ""
    upstream = _other_target(request, ending, settings, builtin_port)
    host, port = (upstream.host, upstream.port) if upstream else (request.host, request.port)
    to_builtin = leads_to(host, port, builtin_port)
    is_stored = settings.store is not None and takes_over and resource_of(request.path) is not None
    concerns_us = bool(page or is_stored or upstream or to_builtin or (ending and we_are_the_server))
    is_guarded = concerns_us or we_are_the_server
    authorization = _authorization(request, settings, to_builtin=to_builtin) if is_guarded else None
    origin = request.headers.get("origin")
    cors = cors_headers(settings.origins, origin) if origin else {}

    is_taken_over = is_guarded and settings.upstream is not None
    if request.is_forward and not (we_are_the_server or is_taken_over or request.is_resent):
        error = check_forward(settings, has_key=request.has_proxy_key)
        if error is not None:
            return Answer(error)
    if is_guarded and not request.is_resent:
        is_preflight = request.method == "OPTIONS" and concerns_us
        if is_preflight and (allowed := preflight_headers(settings.origins, request.headers)):
            return Answer(headers=allowed)
        of_builtin = to_builtin or (is_stored and settings.builtin is not None)
        error = check_server(request, settings, is_through=not we_are_the_server, to_builtin=of_builtin)
        if error is not None and page == "overview" and settings.api_key:
            return Answer(page="overview_public")
        if error is not None and not (page in WITHOUT_KEY and settings.api_key):
            return Answer(error, headers=cors)
    if page:
        return Answer(page=page)
    if is_stored:
        return Serve()
    api = api_of_path(request.path)
    if api is not None and request.headers.get("upgrade", "").lower() == "websocket":
        is_served = api is RESPONSES and request.method == "GET" and settings.websocket
        return Upgrade() if is_served else Answer(USE_HTTP, headers=cors | _USE_HTTP)
    if upstream is not None:
        if not upstream.port:
            down = ApiError("The backend is not up.", code="backend_unavailable", status=503, retry_after=1)
            return Answer(down, headers=cors)
        target = join(upstream, path)
        target = action_path(target, named, api_of_path(path)) if named else target
        return Forward(upstream, target, to_builtin=to_builtin, authorization=authorization, action=action)
    if request.is_direct and not request.is_reverse:
        message = f"No such endpoint: {request.method} {plain}. There are {_ENDPOINTS}."
        if ending:
            message = "This is a proxy without a backend: set toolsim_backend, toolsim_upstream or a reverse mode."
        return Answer(ApiError(message, "invalid_request_error", "not_found", status=404), headers=cors)
    return Pass(to_builtin=to_builtin, authorization=authorization, action=action)


def _page(request: Incoming, plain: str, settings: Settings) -> Page:
    """Return the built-in page that a request to this server names.

    In reverse mode, or with an upstream, ``/`` belongs to the backend.
    """
    if request.method not in ("GET", "HEAD"):
        return ""
    is_root = plain == "/" and request.is_direct and settings.builtin is not None and settings.upstream is None
    return PAGES[OVERVIEW] if is_root else PAGES.get(plain, "")


def leads_to(host: str, port: int, builtin_port: int | None) -> bool:
    """Return whether an address belongs to the built-in backend."""
    return port == builtin_port and leads_here(host)


def endpoint(path: str) -> str:
    """Return the suffix that makes a path (with its query) an API endpoint, such as "/responses"; "" if none."""
    api = api_of_path(path)
    if api is not None:
        return api.path_suffix
    plain = path.partition("?")[0].rstrip("/")
    if plain.endswith(MODELS):
        return MODELS
    # One model. Without the version, "/models/…" could be any website's page.
    one = re.search(rf"/v1({MODELS}/.+)$", plain)
    return one[1] if one else ""


def prefix(path: str) -> str:
    """Return the path before the endpoint of an API request."""
    path = turn_path(path) if action_of(path) else path
    plain = path.partition("?")[0].rstrip("/")
    return plain.removesuffix(endpoint(path))


def api_of(method: str, path: str, action: Action | None = None) -> Api | None:
    """Return the API of a request that can declare tools; ``action``: its auxiliary operation."""
    return api_of_path(turn_path(path) if action else path) if method == "POST" else None


def join(upstream: Upstream, path: str) -> str:
    """Return the path of an API request at ``upstream``, whose own path replaces the part before the endpoint."""
    ending = endpoint(path)
    if not upstream.path or not ending:
        return path
    query = path.partition("?")[1:]
    return upstream.path + ending + "".join(query)


def _other_target(request: Incoming, ending: str, settings: Settings, builtin_port: int | None) -> Upstream | None:
    """Return the backend of an API request that does not name it; its port is 0 while the built-in one is not up."""
    if not ending:
        return None
    if settings.upstream is not None:
        # "/models" is also a page on many websites; API clients send a key.
        if not request.is_direct and ending.startswith(MODELS) and "authorization" not in request.headers:
            return None
        return settings.upstream
    if settings.builtin is not None and request.is_direct:
        return Upstream("http", LOOPBACK, builtin_port or 0)
    return None


def _authorization(request: Incoming, settings: Settings, *, to_builtin: bool) -> str | None:
    """Return the replacement of the client's key for a backend: the operator's key is only for this proxy."""
    if settings.upstream_key and not to_builtin:
        return f"Bearer {settings.upstream_key}"
    sent = request.headers.get("authorization", "")
    # A client that has sent the key to the forward proxy can send another one to the backend.
    is_ours = not request.has_proxy_key or is_bearer(sent, settings.api_key)
    return "" if settings.api_key and is_ours else None
