"""Recognising a backend: which server answers at its address.

A backend is asked once, by GETs of pages that only one kind of server has (``request/engine.py``), when the first API
request for it comes in:

1. Only what the operator named is asked: the target of a reverse mode, or ``toolsim_upstream``. A host that a client
   merely passes through to is none of our business, and a built-in backend needs no query.
2. The first request waits for the answers, ``WAIT_SECONDS`` at most; later ones never wait. A backend that answers
   later, or not at all, is asked again after a while, in parallel with the requests (``known.py``).
3. No secret is sent but ``toolsim_upstream_key``. Redirects are not followed, and an answer has a size limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mitmproxy import ctx

from toolsimlib.plan import Engine
from toolsimlib.proxy.known import Backend, KnownBackends, Root
from toolsimlib.request.engine import PROBES, Probe, engine_of

if TYPE_CHECKING:
    from tornado.simple_httpclient import SimpleAsyncHTTPClient

logger = logging.getLogger(__name__)

WAIT_SECONDS = 1.0
PROBE_SECONDS = 5.0
_MAX_PAGE_BYTES = 4 * 1024 * 1024


class Recogniser:
    """Finds out a backend's engine before the first request for it is rewritten."""

    def __init__(self, known: KnownBackends) -> None:
        self.key = ""
        """The operator's, for the backend."""
        self.is_open = False
        """Whether the engine is to be found out."""
        self.known = known

    def ask(self, backend: Backend) -> Awaitable[None] | None:
        """Ask a backend which server it is; return what the first request waits for."""
        if not self.is_open:
            return None
        is_first = backend.asked_at is None
        task = self._ask(backend)
        return self._answered(task) if task is not None and is_first else None

    async def _answered(self, task: asyncio.Task[None]) -> None:
        await asyncio.wait({task}, timeout=WAIT_SECONDS)

    def stop(self) -> None:
        """Stop asking."""
        for task in self.known.tasks():
            task.cancel()

    def _ask(self, backend: Backend) -> asyncio.Task[None] | None:
        if backend.may_be_asked(time.monotonic()):
            backend.asking = asyncio.get_running_loop().create_task(self._recognise(backend))
        return backend.asking

    async def _recognise(self, backend: Backend) -> None:
        # Half of what a start would import, and only needed here: in a thread, so that no other request waits for it.
        await asyncio.to_thread(import_module, "tornado.simple_httpclient")
        from tornado.simple_httpclient import SimpleAsyncHTTPClient

        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        client = SimpleAsyncHTTPClient(
            force_instance=True, max_clients=len(PROBES), max_body_size=_MAX_PAGE_BYTES, max_header_size=65536
        )
        pages = [asyncio.ensure_future(_get(client, backend.root, probe, headers)) for probe in PROBES]
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


async def _get(client: SimpleAsyncHTTPClient, root: Root, probe: Probe, headers: Mapping[str, str]) -> Engine | None:
    """Return the engine that a page shows, ``unknown`` if it shows none, None if there was no answer."""
    from tornado.httpclient import HTTPClientError, HTTPRequest

    request = HTTPRequest(
        root.url(probe.path),
        headers={"accept": "application/json", **headers},
        connect_timeout=PROBE_SECONDS,
        request_timeout=PROBE_SECONDS,
        follow_redirects=False,
        validate_cert=not ctx.options.ssl_insecure,
        ca_certs=ctx.options.ssl_verify_upstream_trusted_ca,
    )
    try:
        answer = await client.fetch(request, raise_error=False)
    except (HTTPClientError, OSError, ValueError):
        # A timeout is an HTTP error to Tornado, though no response ever came.
        return None
    if answer.code == 599:  # Tornado's own: nothing came back.
        return None
    return engine_of(probe, answer.code, answer.headers, _object(answer.body)) or "unknown"


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
