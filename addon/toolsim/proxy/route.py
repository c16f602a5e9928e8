"""Routing, implemented as pure functions that choose a request's route based on its path, host and headers.

A request reaches the proxy in one of three ways, which determines how it can be handled:

1. *reverse*: mitmproxy is a reverse proxy for one backend. All requests are for that backend, and toolsim is the server
   that the client sees: it serves metrics, checks the key and answers preflight requests.
2. *direct*: the target of the request is the listener itself, although mitmproxy is an ordinary proxy. The request is
   for the built-in backend or for ``toolsim_upstream``; if neither is available, it cannot be forwarded.
3. *through*: the request is for another host. If it is allowed (see ``access``), it passes through unchanged. However,
   if ``toolsim_upstream`` is set, API requests are redirected there, for clients whose base URL cannot be changed.

A built-in backend can be the target in all three cases, so it is recognized by its address.

With ``toolsim_models``, the target of a turn depends on the model that its body names. So ``decide`` returns a
``Choose`` in place of the target, and ``choose`` returns the target once the body has arrived. All other rules apply
unchanged. A request that names no model is sent to the default backend, to which all requests would be sent without
``toolsim_models``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from toolsim.core.errors import ApiError, BadRequest
from toolsim.proxy.access import Incoming, Refusal, check_forward, check_server
from toolsim.proxy.address import LOOPBACK, Upstream, leads_here
from toolsim.proxy.cors import cors_headers, preflight_headers
from toolsim.proxy.options.models_file import ModelEntry, entry_for, names_line
from toolsim.proxy.options.settings import Settings
from toolsim.wire.api import Api
from toolsim.wire.apis import APIS, RESPONSES, api_of_path
from toolsim.wire.responses.operations import Action, action_of, action_path, turn_path
from toolsim.wire.responses.resources import resource_of

NOT_UP = ApiError("The backend is not running.", code="backend_unavailable", status=503, retry_after=1)
USE_HTTP = Refusal(
    "WebSocket connections are disabled on this proxy: use HTTP.",
    "invalid_request_error",
    status=426,
    reason="websocket",
)
_USE_HTTP = {"upgrade": "HTTP/1.1", "connection": "upgrade"}

Page = Literal["", "metrics", "health", "ready", "overview", "overview_public"]
"""The name of a built-in page, or "" for no page."""
METRICS = "/toolsim/metrics"
OVERVIEW = "/toolsim/"
PAGES: Mapping[str, Page] = {
    OVERVIEW: "overview",
    "/toolsim": "overview",
    METRICS: "metrics",
    "/toolsim/health": "health",
    "/toolsim/ready": "ready",
    "/api/hello": "health",  # Claude Code requests this path at startup.
}
WITHOUT_KEY = ("health", "ready")
"""The pages that are available to clients without a key, such as load balancers.

The pages contain no secrets. If a key is set, even web pages can request them, because the rules for web pages do not
apply to a listener with a key (``access``, rule 3).
"""
MODELS = "/models"
_MAX_MODEL_CHARS = 200
_MAX_NAMES_CHARS = 2_000
_ENDPOINTS = ", ".join([*(f"/v1{api.path_suffix}" for api in APIS.values()), f"/v1{MODELS}", OVERVIEW])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Pass the request on to its target."""

    to_builtin: bool = False
    """Whether the target is the built-in backend."""
    authorization: str | None = None
    """The ``Authorization`` header for the backend. None keeps the client's header, and "" removes it."""
    key: str = ""
    """The operator's key for the backend, or "" if there is none."""
    model: str = ""
    """The model's name at the backend, or "" if it is the name that the client uses."""
    action: Action | None = None
    """The auxiliary operation, or None if the request is not auxiliary."""


@dataclass(frozen=True, slots=True)
class Forward(Pass):
    """Send the request to ``path`` on ``upstream`` instead of to its original target."""

    upstream: Upstream
    path: str


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer the request with an error or with ``page``. ``headers`` are added to the response."""

    error: ApiError | None = None
    page: Page = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Serve:
    """Answer the request from the store."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Open a WebSocket connection, and handle each message on it as a separate request."""


Default = Pass | Respond | None
"""The route of requests for models that match no entry in the models file, or None if there is no default backend."""


@dataclass(frozen=True, slots=True)
class Choose:
    """Send the request to its model's backend, which ``choose`` determines.

    ``action`` has the same meaning as in ``Pass``.
    """

    default: Default
    action: Action | None = None


@dataclass(frozen=True, slots=True)
class ListModels:
    """Answer the request with the models of all backends."""

    default: Default


Route = Pass | Respond | Serve | Upgrade | Choose | ListModels


def decide(request: Incoming, settings: Settings, builtin_port: int | None) -> Route:
    """Return the route of a request.

    ``builtin_port`` is the port of the built-in backend, or None while it is not running.
    """
    plain = request.path.partition("?")[0]
    models = settings.models
    is_replay_of_ours = request.is_resent and models is not None and models.leads_to(request.host, request.port)
    we_are_the_server = request.is_reverse or request.is_direct or is_replay_of_ours
    takes_over = we_are_the_server or settings.upstream is not None
    named = action_of(request.path) if takes_over else None
    action = named if request.method == "POST" else None
    path = turn_path(request.path) if named else request.path
    ending = endpoint(path)
    upstream = _other_target(request, ending, settings, builtin_port)
    chooses = models is not None and (we_are_the_server or upstream is not None)
    page = _page(request, plain, settings) if we_are_the_server else ""
    host, port = (upstream.host, upstream.port) if upstream else (request.host, request.port)
    to_builtin = leads_to(host, port, builtin_port)
    is_stored = settings.store is not None and takes_over and resource_of(request.path) is not None
    concerns_us = bool(page or is_stored or upstream or to_builtin or (ending and we_are_the_server))
    is_guarded = concerns_us or we_are_the_server
    operators_key = None if to_builtin else settings.upstream_key or None
    authorization = _authorization(request, settings, operators_key) if is_guarded else None
    origin = request.headers.get("origin")
    cors = cors_headers(settings.origins, origin) if origin else {}

    is_taken_over = is_guarded and settings.upstream is not None
    if request.is_forward and not (we_are_the_server or is_taken_over or request.is_resent):
        has_key = request.proxy_user is not None
        error = check_forward(settings, has_key=has_key, is_guessing=request.is_guessing)
        if error is not None:
            return Respond(error)
    if is_guarded and not request.is_resent:
        is_preflight = request.method == "OPTIONS" and concerns_us
        if is_preflight and (allowed := preflight_headers(settings.origins, request.headers)):
            return Respond(headers=allowed)
        of_builtin = to_builtin or (is_stored and settings.builtin is not None)
        error = check_server(request, settings, is_through=not we_are_the_server, to_builtin=of_builtin)
        if error is not None and page == "overview" and settings.api_key:
            return Respond(page="overview_public")
        if error is not None and not (page in WITHOUT_KEY and settings.api_key):
            return Respond(error, headers=cors)
    if page:
        return Respond(page=page)
    if is_stored:
        return Serve()
    api = api_of_path(request.path)
    if api is not None and request.headers.get("upgrade", "").lower() == "websocket":
        is_served = api is RESPONSES and request.method == "GET" and settings.websocket
        return Upgrade() if is_served else Respond(USE_HTTP, headers=cors | _USE_HTTP)
    key = settings.upstream_key if is_guarded and not to_builtin else ""
    default: Default
    if upstream is not None and not upstream.port:
        default = Respond(NOT_UP, headers=cors)
    elif upstream is not None:
        target = target_path(upstream, request.path)
        default = Forward(upstream, target, to_builtin=to_builtin, authorization=authorization, key=key, action=action)
    elif request.is_reverse or not we_are_the_server:
        default = Pass(to_builtin=to_builtin, authorization=authorization, key=key, action=action)
    else:
        default = None
    if chooses and api_of(request.method, request.path, action) is not None:
        return Choose(default, action)
    if chooses and ending.startswith(MODELS) and request.method in ("GET", "HEAD"):
        return ListModels(default)
    if default is not None:
        return default
    message = f"No such endpoint: {request.method} {plain}. Available endpoints: {_ENDPOINTS}."
    if ending:
        message = "This proxy has no backend: set toolsim_backend, toolsim_upstream or a reverse mode."
    return Respond(ApiError(message, "invalid_request_error", "not_found", status=404), headers=cors)


def choose(
    request: Incoming, settings: Settings, choice: Choose, entries: Sequence[ModelEntry], model: str | None
) -> Pass | Respond:
    """Return the route of a request for ``model``.

    ``model`` is "" if the request names no model, and None if its body is not a JSON object.
    """
    entry = entry_for(entries, model) if model else None
    if entry is not None:
        return forward_to(entry, request, settings, choice.action)
    return choice.default or Respond(no_model(entries, model))


def forward_to(entry: ModelEntry, request: Incoming, settings: Settings, action: Action | None = None) -> Forward:
    """Return the route that sends a request to the backend of an entry in the models file."""
    target, authorization = target_path(entry.upstream, request.path), _authorization(request, settings, entry.key)
    key = entry.key or ""
    return Forward(entry.upstream, target, authorization=authorization, key=key, model=entry.model, action=action)


def no_model(entries: Sequence[ModelEntry], model: str | None) -> ApiError:
    """Return the error for a request whose model matches no entry."""
    if model is None:
        return BadRequest("The request body is not a JSON object.").error
    names = names_line(entries)[:_MAX_NAMES_CHARS]
    if not model:
        return BadRequest(f"'model' is missing: expected one of {names}.", "model", "missing_required_parameter").error
    message = f"The model {model[:_MAX_MODEL_CHARS]!r} does not exist on this proxy. Available models: {names}."
    return ApiError(message, "invalid_request_error", "model_not_found", "model", status=404)


def target_path(upstream: Upstream, path: str) -> str:
    """Return the path of a request at ``upstream``. The request may be a turn or an auxiliary operation."""
    named = action_of(path)
    if named is None:
        return join(upstream, path)
    turn = turn_path(path)
    return action_path(join(upstream, turn), named, api_of_path(turn))


def _page(request: Incoming, plain: str, settings: Settings) -> Page:
    """Return the built-in page that a request to this server names, or "" if it names no page.

    In reverse mode, or with an upstream, ``/`` belongs to the backend.
    """
    if request.method not in ("GET", "HEAD"):
        return ""
    is_root = plain == "/" and request.is_direct and settings.builtin is not None and settings.upstream is None
    return PAGES[OVERVIEW] if is_root else PAGES.get(plain, "")


def leads_to(host: str, port: int, builtin_port: int | None) -> bool:
    """Return whether an address is the address of the built-in backend."""
    return port == builtin_port and leads_here(host)


def endpoint(path: str) -> str:
    """Return the suffix of a path that identifies an API endpoint, such as "/responses", or "" if there is none.

    The query is ignored.
    """
    api = api_of_path(path)
    if api is not None:
        return api.path_suffix
    plain = path.partition("?")[0].rstrip("/")
    if plain.endswith(MODELS):
        return MODELS
    # A path such as "/v1/models/NAME" names a single model. The "/v1" is required, because "/models/…" could be a page
    # of any website.
    one = re.search(rf"/v1({MODELS}/.+)$", plain)
    return one[1] if one else ""


def prefix(path: str) -> str:
    """Return the path before the endpoint of an API request."""
    path = turn_path(path) if action_of(path) else path
    plain = path.partition("?")[0].rstrip("/")
    return plain.removesuffix(endpoint(path))


def api_of(method: str, path: str, action: Action | None = None) -> Api | None:
    """Return the API of a turn or of the auxiliary operation ``action``, or None if the request is neither."""
    return api_of_path(turn_path(path) if action else path) if method == "POST" else None


def join(upstream: Upstream, path: str) -> str:
    """Return the path of an API request at ``upstream``. The upstream's path replaces the part before the endpoint."""
    ending = endpoint(path)
    if not upstream.path or not ending:
        return path
    query = path.partition("?")[1:]
    return upstream.path + ending + "".join(query)


def _other_target(request: Incoming, ending: str, settings: Settings, builtin_port: int | None) -> Upstream | None:
    """Return the backend to which an API request is redirected, or None if the request keeps its own target.

    If the built-in backend is selected but not running, the port of the result is 0.
    """
    if not ending:
        return None
    if settings.upstream is not None:
        # "/models" is also a page on many websites. API clients send a key, so a request without a key is not
        # redirected.
        if not request.is_direct and ending.startswith(MODELS) and "authorization" not in request.headers:
            return None
        return settings.upstream
    if settings.builtin is not None and request.is_direct:
        return Upstream("http", LOOPBACK, builtin_port or 0)
    return None


def _authorization(request: Incoming, settings: Settings, key: str | None) -> str | None:
    """Return the ``Authorization`` header for a backend, "" to send none, or None to keep the client's header.

    ``key`` is the operator's key for the backend. If it is "", no key is sent. If it is None, the client's key is kept,
    unless it is a key for this proxy.
    """
    if key is not None:
        return f"Bearer {key}" if key else ""
    if settings.api_key is None:
        return None
    # A client that sends a key to the forward proxy can send a different key to the backend.
    is_ours = request.proxy_user is None or request.user is not None
    return "" if is_ours else None
