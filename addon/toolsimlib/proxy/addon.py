"""The addon: mitmproxy's hooks, in the order of a request's way."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Coroutine, Iterable
from dataclasses import replace
from typing import Any

from mitmproxy import ctx
from mitmproxy.addonmanager import Loader
from mitmproxy.connection import Client
from mitmproxy.exceptions import OptionsError
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy.mode_specs import ProxyMode, ReverseMode
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from toolsimlib.backends.codex.backend import CodexBackend
from toolsimlib.backends.loopback import TOKEN, Loopback, TextBackend
from toolsimlib.backends.scripted import ScriptedBackend
from toolsimlib.errors import ApiError, BadRequest
from toolsimlib.plan import Dialect, Policy
from toolsimlib.proxy import cut, keep, options, route, telemetry
from toolsimlib.proxy.exchange import OPEN, Exchange, decoded, refusal
from toolsimlib.proxy.notes import REPORT, is_stored, recorded_policy
from toolsimlib.report import Report
from toolsimlib.request.rewrite import rewrite_request

logger = logging.getLogger(__name__)

# Long enough to be rare, short enough for clients that give up after 30 s without an event.
KEEPALIVE_SECONDS = 10.0

MODE_HEADER = "x-proxy-output-mode"
LOOPBACK = "127.0.0.1"


class ToolSim:
    """Function calling for text-only backends.

    ``keepalive``: seconds after which a client that hears nothing because a call is being held back gets a sign.
    """

    def __init__(self, *, keepalive: float = KEEPALIVE_SECONDS) -> None:
        self._keepalive = keepalive
        self._settings = options.Settings()
        self._metrics = telemetry.Metrics()
        self._loopback: Loopback | None = None
        self._is_running = False
        # Connections of clients that were let through to a backend of our own.
        self._admitted: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def load(self, loader: Loader) -> None:
        """Register the options."""
        for warning in options.register(loader, os.environ):
            logger.warning(warning)
        cut.install()

    def configure(self, updated: Iterable[str]) -> None:
        """Parse the options. Raises OptionsError for a bad value."""
        updated = set(updated)
        if not any(name.startswith(options.PREFIX) or name in ("mode", "listen_host") for name in updated):
            return
        before, self._settings = self._settings, options.parse(ctx.options)
        modes = [ProxyMode.parse(mode) for mode in ctx.options.mode]
        hosts = [mode.listen_host(ctx.options.listen_host) for mode in modes]
        self._check_listeners(hosts)
        reverse = any(isinstance(mode, ReverseMode) for mode in modes)
        if (reverse or self._settings.own_backend or self._settings.upstream) and (
            ctx.options.connection_strategy == "eager"
        ):
            # Eagerly connected, a target that is down or does not exist ends the client's connection before we hear of
            # the request; and requests that are sent elsewhere need no live target.
            ctx.options.update(connection_strategy="lazy")  # type: ignore[no-untyped-call]
        if self._is_running and _own(before) != _own(self._settings):
            self._spawn(self._serve())

    def running(self) -> Awaitable[None]:
        """Start a backend of our own. Not async: a reload of the script calls it without waiting."""
        self._is_running = True
        return self._spawn(self._serve())

    def done(self) -> Awaitable[None]:
        """Stop it. Not async, for the same reason; at mitmproxy's end the returned task is waited for."""
        self._is_running = False
        cut.uninstall()
        return self._spawn(self._stop())

    def requestheaders(self, flow: HTTPFlow) -> None:
        """Let every request through as it arrives, but for those whose body we have to read or that we answer."""
        request = flow.request
        if flow.response is not None and not is_stored(flow):
            return
        kind = route.endpoint(request.path)
        answer = self._answer_ourselves(flow, kind)
        if answer is not None:
            flow.response = answer
        elif dialect := route.dialect(request.method, request.path):
            # Whatever ``stream_large_bodies`` says: the body has to be read.
            request.stream = False
            self._open(flow, Report(client=dialect))
        else:
            request.stream = True

    def request(self, flow: HTTPFlow) -> None:
        """Rewrite a request of ours."""
        exchange = OPEN.get(flow.id)
        dialect = route.dialect(flow.request.method, flow.request.path)
        if exchange is None or dialect is None or (flow.response is not None and not is_stored(flow)):
            return
        exchange.heard()
        try:
            self._rewrite(flow, dialect, exchange)
        except BadRequest as bad:
            error = bad.error
        except Exception:
            logger.exception("toolsim failed to rewrite a request; please report this.")
            error = ApiError("toolsim failed to rewrite the request.", code="internal_error")
        else:
            return
        flow.response = exchange.refuse(error)

    def responseheaders(self, flow: HTTPFlow) -> None:
        """Decide how an answer reaches the client."""
        response = flow.response
        assert response is not None
        if route.endpoint(flow.request.path):
            _add_cors(response, self._cors(flow))
        exchange = OPEN.get(flow.id)
        if exchange is not None:
            exchange.begin(flow)
        elif response.raw_content is None:
            response.stream = True

    def response(self, flow: HTTPFlow) -> None:
        """Rewrite a whole answer; in any case the exchange is over."""
        exchange = OPEN.get(flow.id)
        if exchange is not None:
            exchange.finish(flow)
            assert flow.response is not None
            _add_cors(flow.response, self._cors(flow))
            self._close(flow.id, flow, flow.response.status_code)

    def error(self, flow: HTTPFlow) -> None:
        """Forget an exchange that was aborted."""
        self._close(flow.id, flow, None)

    def client_disconnected(self, client: Client) -> None:
        """Forget what a client has left behind, even where no other hook told of it."""
        self._admitted.discard(client.id)
        for flow_id, exchange in list(OPEN.items()):
            if exchange.client_id == client.id:
                self._close(flow_id, None, None)

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """Keep clients on other machines from tunnelling to a backend of our own past all checks."""
        loopback = self._loopback
        if loopback is None or data.server.address is None or data.server.address[1] != loopback.port:
            return
        if not _is_local(data.client) and data.client.id not in self._admitted:
            data.server.error = "toolsim: this port is not for other machines"

    # -- a request's way --

    def _answer_ourselves(self, flow: HTTPFlow, kind: route.Endpoint | None) -> Response | None:
        """Send a request where it belongs, or return the answer to one that goes nowhere."""
        request, settings = flow.request, self._settings
        reverse = isinstance(flow.client_conn.proxy_mode, ReverseMode)
        direct = route.is_listener(request.host, request.port, flow.client_conn.sockname)
        plain = request.path.partition("?")[0]
        is_metrics = (reverse or direct) and plain == route.METRICS and request.method in ("GET", "HEAD")
        headers = self._cors(flow)
        target = self._target(flow, kind, direct)
        own = self._is_own(target.host, target.port) if target else self._is_own(request.host, request.port)
        if is_metrics or target or own or (kind and (reverse or direct)):
            allowed = route.preflight(settings.origins, request.headers) if request.method == "OPTIONS" else None
            if allowed is not None:
                return Response.make(200, headers=allowed)
            error = self._check_access(flow, own=own)
            if error is not None:
                return refusal(error, headers)
        if is_metrics:
            text = self._metrics.text(len(OPEN))
            return Response.make(200, text, {"content-type": self._metrics.content_type})
        if kind == "responses" and request.headers.get("upgrade", "").lower() == "websocket":
            error = ApiError("WebSocket mode is not served here: use HTTP.", "invalid_request_error", status=426)
            return refusal(error, headers | {"upgrade": "HTTP/1.1", "connection": "upgrade"})
        if target:
            if not target.port:
                error = ApiError("The backend is not up.", code="backend_unavailable", status=503, retry_after=1)
                return refusal(error, headers)
            request.scheme, request.host, request.port = target.scheme, target.host, target.port
            request.path = route.join(target, request.path)
        elif direct and not reverse:
            message = f"No such endpoint: {request.method} {plain}. There are /responses, /chat/completions, /models."
            if kind:
                message = "This is a proxy without a backend: set toolsim_backend, toolsim_upstream or a reverse mode."
            return refusal(ApiError(message, "invalid_request_error", "not_found", status=404), headers)
        if own and self._loopback is not None:
            request.headers[TOKEN] = self._loopback.token
        return None

    def _target(self, flow: HTTPFlow, kind: route.Endpoint | None, direct: bool) -> options.Upstream | None:
        """Return the backend for an API request that does not name it; its port is 0 while our own is not up."""
        settings = self._settings
        if kind is None:
            return None
        if settings.upstream is not None:
            # "/models" is also a page of many web sites; API clients send a key.
            named = not direct and kind == "models" and "authorization" not in flow.request.headers
            return None if named else settings.upstream
        if settings.own_backend is not None and direct:
            return options.Upstream("http", LOOPBACK, self._loopback.port if self._loopback else 0)
        return None

    def _check_access(self, flow: HTTPFlow, *, own: bool) -> ApiError | None:
        """Return why this client may not have an answer; a backend of our own is guarded against web pages too."""
        settings, request = self._settings, flow.request
        if settings.api_key:
            if not route.is_bearer(request.headers.get("authorization", ""), settings.api_key):
                message = "Incorrect API key provided: toolsim_api_key is set, and this is not it."
                return ApiError(message, "invalid_request_error", "invalid_api_key", status=401)
        elif own:
            if settings.own_backend == "codex" and not _is_local(flow.client_conn):
                message = "The codex backend is served to other machines only with toolsim_api_key."
                return ApiError(message, "invalid_request_error", "forbidden", status=403)
            origin = request.headers.get("origin")
            if origin and not settings.origins.allow(origin):
                message = f"The origin {origin} is not listed in toolsim_cors_origins."
                return ApiError(message, "invalid_request_error", "forbidden", status=403)
        if own:
            self._admitted.add(flow.client_conn.id)
        return None

    def _rewrite(self, flow: HTTPFlow, dialect: Dialect, exchange: Exchange) -> None:
        request = flow.request
        try:
            body = decoded(request)
        except ValueError as problem:
            raise BadRequest(f"The request body cannot be decoded: {problem}") from problem
        mode = request.headers.get(MODE_HEADER)
        rewritten = rewrite_request(
            dialect, request.path, body, self._policy(flow), output_mode=mode, report=exchange.report
        )
        if rewritten is None:
            return
        # What the client sent stays in the flow: mitmweb shows it, and revert brings it back.
        flow.backup()  # type: ignore[no-untyped-call]
        exchange.plan = rewritten.plan
        for name in ("content-encoding", "transfer-encoding", MODE_HEADER):
            request.headers.pop(name, None)
        request.headers["accept-encoding"] = "identity"
        request.path = rewritten.path
        request.content = rewritten.body

    def _policy(self, flow: HTTPFlow) -> Policy:
        policy = self._settings.policy
        if self._is_own(flow.request.host, flow.request.port):
            return replace(policy, backend="responses")
        changed = ctx.options.has_changed
        by_hand = [name for name in Policy.__dataclass_fields__ if changed(options.PREFIX + name)]  # type: ignore[no-untyped-call]
        return recorded_policy(flow, policy, by_hand)

    def _is_own(self, host: str, port: int) -> bool:
        """Tell whether an address is that of a backend of our own."""
        loopback = self._loopback
        return loopback is not None and port == loopback.port and route.is_loopback(host)

    def _cors(self, flow: HTTPFlow) -> dict[str, str]:
        return route.cors(self._settings.origins, flow.request.headers.get("origin"))

    # -- exchanges under way --

    def _open(self, flow: HTTPFlow, report: Report) -> None:
        keep.forget(flow)
        OPEN[flow.id] = Exchange(
            report,
            client_id=flow.client_conn.id,
            cors=self._cors(flow),
            keepalive=self._keepalive,
            idle_timeout=self._settings.idle_timeout,
        )

    def _close(self, flow_id: str, flow: HTTPFlow | None, status: int | None) -> None:
        exchange = OPEN.pop(flow_id, None)
        if exchange is None or (exchange.plan is None and exchange.report.error is None):
            return
        report, seconds = exchange.report, exchange.seconds()
        if status is None:
            report.error = report.error or "aborted"
        self._metrics.count(report, status, seconds)
        logger.info("toolsim %s", telemetry.line(report, status, seconds))
        if flow is not None:
            said = {"status": status, "seconds": round(seconds, 3), "missing_bytes": exchange.keeper.missing}
            flow.metadata[REPORT] = report.as_dict() | said
            flow.comment = flow.comment or telemetry.comment(report, status)
            flow.marked = flow.marked or telemetry.marker(report, status)
            exchange.keeper.settle(flow)

    # -- a backend of our own --

    def _check_listeners(self, hosts: list[str]) -> None:
        if self._settings.own_backend != "codex" or self._settings.api_key:
            return
        for host in hosts:
            # Without a host mitmproxy listens everywhere; requests from other machines are then refused one by one.
            if host and not route.is_loopback(host):
                message = f"toolsim_backend=codex on {host} would lend your login to others: set toolsim_api_key."
                raise OptionsError(message)  # type: ignore[no-untyped-call]

    async def _serve(self) -> None:
        await self._stop()
        settings = self._settings
        if settings.own_backend is None:
            return
        loopback = Loopback(_make_backend(settings), settings.own_port)
        try:
            await loopback.start()
        except OSError as problem:
            logger.error("toolsim cannot serve its %s backend: %s", settings.own_backend, problem)
            return
        self._loopback = loopback
        logger.info(
            "toolsim: the %s backend answers on this listener, under /v1, and on %s:%d",
            settings.own_backend,
            LOOPBACK,
            loopback.port,
        )

    async def _stop(self) -> None:
        loopback, self._loopback = self._loopback, None
        if loopback is not None:
            await loopback.stop()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _own(settings: options.Settings) -> tuple[object, ...]:
    """Return what a backend of our own depends on."""
    return settings.own_backend, settings.own_port, settings.codex_command


def _make_backend(settings: options.Settings) -> TextBackend:
    if settings.own_backend == "scripted":
        return ScriptedBackend()
    return CodexBackend(settings.codex_command)


def _is_local(client: Client) -> bool:
    return bool(client.peername) and route.is_loopback(str(client.peername[0]))


def _add_cors(response: Response, headers: dict[str, str]) -> None:
    if not headers or "access-control-allow-origin" in response.headers:
        return
    varies = response.headers.get("vary", "")
    response.headers.update(headers)
    if varies and "origin" not in varies.lower():
        response.headers["vary"] = f"{varies}, Origin"
