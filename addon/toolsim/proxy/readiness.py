"""The pages for load balancers and supervisors that show whether the proxy is alive, and whether it is ready to answer.

Both pages are served without a key, so they reveal nothing that a key protects: no address, no model, no version.

1. ``/toolsim/health``: 200 as long as the process serves requests, even during a drain.
2. ``/toolsim/ready``: 503 during a drain, or if the backend or a required store cannot be reached; otherwise 200. If
   there are several backends (``toolsim_models``), one reachable backend is enough: requests for the other models fail,
   but taking the proxy out of service would make all requests fail.
3. Frequent checks are cheap: the proxy only connects to a backend, without sending a request, and the result is valid
   for ``FRESH_SECONDS`` and for all concurrent checks.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy.mode_specs import ReverseMode, UpstreamMode

from toolsim.proxy.builtin import BuiltinBackend
from toolsim.proxy.drain import Drain
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.response_store import ResponseStore
from toolsim.stores.record import StoreError

FRESH_SECONDS = 2.0
CHECK_SECONDS = 1.0
"""Time limit, in seconds, for checking the backend or the store.

The limit is short, because a load balancer such as HAProxy waits for the page at most as long as the interval between
its checks.
"""

_HEADERS = {"content-type": "application/json", "cache-control": "no-store"}


@dataclass(frozen=True, slots=True)
class Readiness:
    """Creates the health page and the readiness page according to the settings."""

    settings: Settings
    builtin: BuiltinBackend
    memory: ResponseStore
    drain: Drain
    _checks: dict[object, tuple[float, asyncio.Task[bool]]] = field(default_factory=dict)

    def health(self, _flow: HTTPFlow) -> Response:
        """Return the health page."""
        return Response.make(200, json.dumps({"status": "ok"}), _HEADERS)

    async def ready(self, flow: HTTPFlow) -> Response:
        """Return the readiness page for the listener of this flow."""
        self.drain.asked_at = time.monotonic()
        backend, store = await asyncio.gather(self._backend(flow), self._store())
        is_draining, address = self.drain.is_draining, self.settings.store
        can_store = store is not False or address is None or not address.is_required
        is_ready = not is_draining and backend is not False and can_store
        found = {"ready": is_ready, "backend": _WORDS[backend], "store": _WORDS[store], "draining": is_draining}
        return Response.make(200 if is_ready else 503, json.dumps(found), _HEADERS)

    async def _backend(self, flow: HTTPFlow) -> bool | None:
        """Return whether any backend can be reached, or None if the listener has no backend."""
        if self.settings.models is None:
            return await self._default_backend(flow)
        upstreams = [entry.upstream for entry in self.settings.models.current()]
        addresses = dict.fromkeys((upstream.host, upstream.port) for upstream in upstreams)
        checks = (self._checked(address, _is_reachable(*address)) for address in addresses)
        return any(await asyncio.gather(self._default_backend(flow), *checks))

    async def _default_backend(self, flow: HTTPFlow) -> bool | None:
        """Return whether the default backend can be reached, or None if there is no default backend."""
        mode, upstream = flow.client_conn.proxy_mode, self.settings.upstream
        if isinstance(mode, UpstreamMode):
            address = mode.address
        elif upstream is not None:
            address = upstream.host, upstream.port
        elif isinstance(mode, ReverseMode):
            address = mode.address
        elif self.settings.builtin is not None:
            return self.builtin.port is not None
        else:
            return None
        return await self._checked(address, _is_reachable(*address))

    async def _store(self) -> bool | None:
        """Return whether the store can be reached, or None if the proxy has no store."""
        return await self._checked("store", self._has_store()) if self.memory.is_on else None

    async def _has_store(self) -> bool:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await self.memory.find("", ["readiness"])
        except (StoreError, TimeoutError):
            return False
        return True

    async def _checked(self, key: object, check: Coroutine[Any, Any, bool]) -> bool:
        """Return the result of a check. If a recent result is available, return it without checking again."""
        began, task = self._checks.get(key, (0.0, None))
        if task is None or time.monotonic() - began > FRESH_SECONDS:
            task = asyncio.create_task(check)
            self._checks[key] = time.monotonic(), task
        else:
            check.close()
        # The check is shielded, so that it continues for other clients if a client disconnects.
        return await asyncio.shield(task)


_WORDS = {True: "reachable", False: "unreachable", None: "none"}


async def _is_reachable(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, UnicodeError):
        return False
    writer.close()
    return True
