"""The part of a conversation that only the backend holds, as far as a request shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolsimlib.wire.lenient import string


def stored_history(body: Mapping[str, Any]) -> str | None:
    """Return the id of the answer that a request continues, "" for a conversation, None if the request is complete."""
    previous = body.get("previous_response_id")
    if previous is None:
        return None if body.get("conversation") is None else ""
    return string(previous)


def continued_context(body: Mapping[str, Any]) -> str:
    """Return the id of the answer that a request continues, "" unless the model certainly sees everything before it."""
    return string(body.get("previous_response_id")) if _is_whole(body) else ""


def is_kept_whole(body: Mapping[str, Any]) -> bool:
    """Return whether the backend is to store everything that the model sees."""
    return _is_whole(body) and body.get("store") is not False


def _is_whole(body: Mapping[str, Any]) -> bool:
    """Return whether nothing is removed from a context, by its backend or by others who share it."""
    may_lose = string(body.get("truncation")) == "auto" or bool(body.get("context_management"))
    return not may_lose and body.get("conversation") is None
