"""Adds the sizes of context windows to a backend's list of models (``request/context_window.py``).

1. Only backends that the operator named are queried, and only for models whose entries have no size. They are queried
   when a client requests the list. The server software determines which pages are queried. If the software is not known
   yet, all pages are tried.
2. The client waits for at most ``WAIT_SECONDS``. If the server does not answer, the list is unchanged.
3. The requests for these pages contain the key of the client's own request, which is sent to the same server.
4. The sizes are remembered for ``FRESH_SECONDS``, so that a client cannot cause many requests to a server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from toolsim.core.policy import Engine
from toolsim.proxy.backend_registry import Backend, page_client, page_request
from toolsim.request.context_window import PAGES, SHOW, listed_window, shown_window, windows_on, with_window
from toolsim.wire.json_codec import dump, parse_object
from toolsim.wire.json_fields import mappings, string

if TYPE_CHECKING:
    from tornado.simple_httpclient import SimpleAsyncHTTPClient

WAIT_SECONDS = 2.0
FRESH_SECONDS = 30.0

_MAX_SHOWN = 32
"""Maximum number of models for which the backend is queried individually."""
_PAGES_OF: Mapping[Engine | None, Sequence[str]] = {
    None: PAGES,
    "llama.cpp": ("/props",),
    "ollama": ("/api/ps",),
    "lmstudio": ("/api/v0/models",),
}


async def with_windows(document: Mapping[str, Any], backend: Backend, authorization: str) -> dict[str, Any] | None:
    """Return a model list, or the entry of one model, with context window sizes added.

    Return None if no size could be added. ``authorization`` is the value of the ``Authorization`` header for the
    backend, or "" to send none.
    """
    is_one = document.get("object") == "model"
    listed = [document] if is_one else document.get("data")
    if not isinstance(listed, list):
        return None
    names = [string(model.get("id")) for model in mappings(listed) if listed_window(model) is None]
    windows = await _windows(backend, names, authorization) if names else {}
    added = [
        with_window(model, windows.get(string(model.get("id"))) or windows.get(""))
        if isinstance(model, dict)
        else model
        for model in listed
    ]
    if added == listed:
        return None
    return added[0] if is_one else {**document, "data": added}


async def _windows(backend: Backend, names: Sequence[str], authorization: str) -> Mapping[str, int]:
    """Return the sizes of the context windows by model. A size under the key "" applies to any model."""
    pages = _PAGES_OF.get(backend.engine if not backend.is_stale else None, ())
    now = time.monotonic()
    if pages and backend.windows_until < now:
        backend.windows_until = now + FRESH_SECONDS
        client = await page_client(_MAX_SHOWN)
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                backend.windows = await _ask(client, backend, pages, names, authorization)
        client.close()
    return backend.windows


async def _ask(
    client: SimpleAsyncHTTPClient,
    backend: Backend,
    pages: Sequence[str],
    names: Sequence[str],
    authorization: str,
) -> dict[str, int]:
    found: dict[str, int] = {}
    documents = await asyncio.gather(*(_page(client, backend, page, authorization) for page in pages))
    for page, document in zip(pages, documents, strict=True):
        if document is not None:
            found |= windows_on(page, document)
    is_ollama = any(
        page == "/api/ps" and document is not None and "models" in document
        for page, document in zip(pages, documents, strict=True)
    )
    if not is_ollama:
        return found
    asked = [name for name in names if name not in found][:_MAX_SHOWN]
    shown = await asyncio.gather(*(_page(client, backend, SHOW, authorization, {"model": name}) for name in asked))
    for name, document in zip(asked, shown, strict=True):
        if document is not None and (window := shown_window(document)):
            found[name] = window
    return found


async def _page(
    client: SimpleAsyncHTTPClient, backend: Backend, page: str, authorization: str, body: object = None
) -> dict[str, Any] | None:
    from tornado.httpclient import HTTPClientError

    try:
        request = page_request(backend.root.url(page), "", WAIT_SECONDS)
        if authorization:
            request.headers["authorization"] = authorization
        if body is not None:
            request.method, request.body = "POST", dump(body).encode()
            request.headers["content-type"] = "application/json"
        answer = await client.fetch(request)
    except (HTTPClientError, OSError, ValueError):
        return None
    return parse_object(answer.body)
