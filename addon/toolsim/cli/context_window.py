"""Determines a model's context window by querying a server (see ``request/context_window.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolsim.cli.probe import Unreachable, ask
from toolsim.request.context_window import PAGES, SHOW, listed_window, shown_window, windows_on
from toolsim.wire.json_fields import mappings

_SECONDS = 3.0


def context_window(base_url: str, model: str, *, key: str = "") -> int | None:
    """Return a model's context window (maximum number of tokens in prompt and answer), or None if it is unknown.

    ``base_url`` is the base URL of toolsim or of a backend, with ``/v1``, as clients use it. ``key`` is the server's
    key, or "" for none. The function can block for several seconds, so call it in a thread. Never raises an exception.
    """
    url = base_url.rstrip("/")
    listed = mappings((_page(f"{url}/models", key) or {}).get("data"))
    found = next((listed_window(each) for each in listed if each.get("id") == model), None)
    if found is not None:
        return found
    root = url.removesuffix("/v1")
    for page in PAGES:
        document = _page(root + page, key)
        if document is None:
            continue
        windows = windows_on(page, document)
        if found := windows.get(model) or windows.get(""):
            return found
        if page == "/api/ps" and "models" in document:
            return shown_window(_page(root + SHOW, key, {"model": model}) or {})
    return None


def _page(url: str, key: str, body: object = None) -> Mapping[str, Any] | None:
    try:
        answer = ask(url, key=key, json_body=body, seconds=_SECONDS)
    except (Unreachable, ValueError):
        return None
    return answer.body if answer.status == 200 else None
