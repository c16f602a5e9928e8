"""The startup banner, which shows the version, the backend and its models, and the addresses to use.

The models are requested in the background, with a short timeout, so that a backend that is down or slow delays nothing.
If the backend does not answer, this is logged. The models are requested only if the log is for people
(``toolsim_log=text``). With any other log, the backend receives only requests from clients.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mitmproxy import ctx
from mitmproxy.proxy.mode_specs import ProxyMode, ReverseMode

from toolsim.plugins import BUILTIN
from toolsim.proxy.address import is_loopback, other_places, url_host
from toolsim.proxy.backend_registry import page_client, page_request
from toolsim.proxy.builtin import BuiltinBackend
from toolsim.proxy.options.models_file import names_line
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.reporting.connect_errors import explain
from toolsim.proxy.reporting.log import FIELDS
from toolsim.proxy.reporting.summary import listed, printable
from toolsim.proxy.route import METRICS, MODELS, OVERVIEW
from toolsim.stores.url import StoreUrl
from toolsim.version import __version__
from toolsim.wire.apis import APIS
from toolsim.wire.json_fields import loaded, mappings, string

if TYPE_CHECKING:
    from tornado.simple_httpclient import SimpleAsyncHTTPClient

logger = logging.getLogger(__name__)

ASK_SECONDS = 5.0
"""Timeout for listing the models, in seconds. A Codex app-server takes several seconds to start."""
_PAUSE = 0.1
_DAY_SECONDS = 24 * 3600
_MAX_SHOWN = 6
_MAX_LINE_CHARS = 200


class StartupBanner:
    """Logs the banner at each start, once the built-in backend ``builtin`` is running."""

    def __init__(self, builtin: BuiltinBackend) -> None:
        self._builtin = builtin
        self._task: asyncio.Task[None] | None = None

    def start(self, settings: Settings, started: asyncio.Task[None]) -> None:
        """Log the banner in the background, once the task ``started`` has started the built-in backend."""
        self.stop()
        if ctx.options.toolsim_log != "off":
            self._task = asyncio.get_running_loop().create_task(self._greet(settings, started))

    def stop(self) -> None:
        """Cancel the pending banner and its request for the models."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _greet(self, settings: Settings, started: asyncio.Task[None]) -> None:
        await asyncio.wait([started])
        # The banner is delayed, so that it is not logged if mitmproxy exits because of an error at startup.
        await asyncio.sleep(_PAUSE)
        is_text = ctx.options.toolsim_log == "text"
        modes = [ProxyMode.parse(mode) for mode in ctx.options.mode]
        url = backend_url(settings, modes)
        listeners = _listeners()
        origins = [f"http://{url_host(host)}:{port}" for host, port in listeners]
        text = _as_text(settings, url, origins, getattr(ctx.master, "web_url", ""))
        logger.info("%s", text, extra={FIELDS: _as_fields(settings, url, origins)})
        if not is_text:
            return
        if not settings.api_key and any(not is_loopback(host) for host, _ in listeners):
            logger.warning(
                "without toolsim_api_key, anyone who can reach this machine can use the backend; to accept "
                "connections only from this machine, omit --host, or use --listen-host 127.0.0.1"
            )
        try:
            async with asyncio.timeout(ASK_SECONDS):
                models = await self._builtin.models() if settings.builtin else await ask_models(url, settings)
        except (TimeoutError, OSError) as problem:
            models = printable(explain(problem, ASK_SECONDS), _MAX_LINE_CHARS)
        if isinstance(models, str):
            logger.warning("cannot list the backend's models: %s", models)
        elif models:
            logger.info("models: %s", listed(models, _MAX_SHOWN, _MAX_LINE_CHARS))


async def ask_models(url: str, settings: Settings) -> Sequence[str] | str:
    """Return the model IDs of the backend at a base URL, or a description of the backend's problem.

    Raises OSError if the backend cannot be reached.
    """
    if not url:
        return []
    client = await page_client()
    from tornado.httpclient import HTTPClientError

    try:
        answer = await client.fetch(page_request(url + MODELS, settings.upstream_key, ASK_SECONDS))
    except HTTPClientError as problem:
        match problem.code:
            case 401 | 403:
                if settings.upstream_key:
                    return f"it rejects toolsim_upstream_key (HTTP {problem.code})"
                return "it requires a key: have clients send it, or set toolsim_upstream_key"
            case 404 | 405:
                return await _other_place(client, url, settings)
            case 599:
                return f"it does not answer ({printable(explain(problem), _MAX_LINE_CHARS)})"
        return f"it returned HTTP {problem.code} for {url}{MODELS}"
    finally:
        client.close()
    listed = loaded(answer.body.decode("utf-8", "replace"))
    if listed is None:
        return f"the answer to {url}{MODELS} is not JSON; is this an API?"
    return [string(model.get("id")) for model in mappings(listed.get("data"))]


async def _other_place(client: SimpleAsyncHTTPClient, url: str, settings: Settings) -> Sequence[str] | str:
    """Check why a base URL has no list of models.

    If the base URL has an API that lacks such a list, return an empty list. Otherwise, return a description of the
    problem, which suggests another URL if possible.
    """
    for api in APIS.values():
        request = page_request(url + api.path_suffix, settings.upstream_key, ASK_SECONDS, "{}")
        # A status of 404 or 405 means that there is no API. An API rejects the empty body with a different status.
        if (await client.fetch(request, raise_error=False)).code not in (404, 405):
            return []
    for place in other_places(url):
        answer = await client.fetch(page_request(place + MODELS, settings.upstream_key, ASK_SECONDS), raise_error=False)
        if answer.code == 200 and loaded(answer.body.decode("utf-8", "replace")) is not None:
            return f"{url} has no API; did you mean {place}?"
    return f"{url} has no API; is the path correct?"


def backend_url(settings: Settings, modes: Sequence[ProxyMode]) -> str:
    """Return the base URL of the backend, or "" if the backend is built in or there is no backend."""
    if settings.builtin is not None:
        return ""
    if (upstream := settings.upstream) is not None:
        return f"{upstream.scheme}://{url_host(upstream.host)}:{upstream.port}{upstream.path or '/v1'}"
    for mode in modes:
        if isinstance(mode, ReverseMode) and mode.scheme in ("http", "https"):
            host, port = mode.address
            return f"{mode.scheme}://{url_host(host)}:{port}/v1"
    return ""


def backend_words(settings: Settings, url: str) -> str:
    """Return a human-readable description of the backends, or "" if there is no backend.

    ``url`` is the backend's base URL, or "" if the backend is built in or there is no backend.
    """
    backend = BUILTIN[settings.builtin].words if settings.builtin else url
    if settings.model is not None and settings.builtin == "local":
        backend = settings.model.name
    if settings.models is None:
        return backend
    names = names_line(settings.models.current())
    by_model = f"the backends of {settings.models.file.name} ({printable(names, _MAX_LINE_CHARS)})"
    return f"{by_model} and {backend}" if backend else by_model


def _as_text(settings: Settings, url: str, origins: Sequence[str], web: str) -> str:
    """Return the banner as human-readable text. ``web`` is the address of mitmweb, or "" if mitmweb is not running."""
    backend = backend_words(settings, url) or "no backend (set a backend, or use a reverse mode)"
    lines = [f"toolsim {__version__} in front of {backend}"]
    for origin in origins:
        key = "toolsim_api_key" if settings.api_key else "any"
        lines.append(f"base URL for clients  {origin}/v1  (key: {key})")
        lines.append(f"overview              {origin}{OVERVIEW}")
        lines.append(f"metrics               {origin}{METRICS}")
    if web:
        lines.append(f"turns in a browser    {web}")
    if settings.store is not None:
        lines.append(stored_line(settings.store))
    return "\n  ".join(lines)


def stored_line(store: StoreUrl) -> str:
    """Describe where and for how long conversations are stored, and how to disable storage."""
    where = "in memory" if store.kind == "memory" else f"in {re.sub(r'//[^/@]*@', '//', store.location)}"
    days = round(store.bounds.seconds / _DAY_SECONDS)
    return f"stored conversations  {where}, for {days} days; to disable storage: --set toolsim_store="


def _as_fields(settings: Settings, url: str, origins: Sequence[str]) -> dict[str, Any]:
    return {
        "message": "toolsim is up",
        "version": __version__,
        "backend": settings.builtin or url,
        "base_urls": [f"{origin}/v1" for origin in origins],
        "wants_key": bool(settings.api_key),
    }


def _listeners() -> list[tuple[str, int]]:
    server = ctx.master.addons.get("proxyserver")  # type: ignore[no-untyped-call]
    addresses = dict.fromkeys((str(address[0]), int(address[1])) for address in server.listen_addrs()) if server else []
    ports: dict[int, str] = {}
    for host, port in addresses:
        # By default, mitmproxy listens on both IPv4 and IPv6. One of the two addresses is enough for the banner.
        ports.setdefault(port, host)
    return [(host, port) for port, host in ports.items()]
