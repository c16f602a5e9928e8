"""Determines a model's context window, in tokens, from the pages of inference servers.

A server reports the context window in its list of models, or on a separate page:

| server          | page               | field                                                                 |
|-----------------|--------------------|-----------------------------------------------------------------------|
| llama.cpp       | ``/props``         | ``default_generation_settings.n_ctx``: per slot, hence per request    |
| vLLM, SGLang    | ``/v1/models``     | ``max_model_len``                                                     |
| Ollama          | ``/api/ps``        | ``context_length`` of a loaded model: the configured window           |
|                 | ``/api/show``      | ``num_ctx`` of its parameters, or ``….context_length`` (trained)      |
| LM Studio       | ``/api/v0/models`` | ``loaded_context_length``, or ``max_context_length``                  |
| hosted gateways | ``/v1/models``     | one of ``WINDOW_FIELDS``                                              |

The configured window takes precedence over the window that the model was trained with, because a client that trusts the
larger number never compacts its conversation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolsim.wire.api import WINDOW_FIELDS
from toolsim.wire.json_fields import mapping, mappings, string

PAGES = ("/props", "/api/ps", "/api/v0/models")
"""Paths, relative to the server's root, of pages that report context windows and do not require a request body."""
SHOW = "/api/show"
"""Ollama's page for one model, which requires a POST of ``{"model": NAME}``."""

_LISTED = ("max_model_len", "loaded_context_length", "context_length", "context_window", "max_context_length")
_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)\s*$", re.MULTILINE)


def listed_window(model: Mapping[str, Any]) -> int | None:
    """Return the context window in an entry of a model list, or None if the entry has none."""
    return next((number for field in _LISTED if (number := _count(model.get(field)))), None)


def windows_on(page: str, document: Mapping[str, Any]) -> dict[str, int]:
    """Return the context windows reported by ``page`` (one of ``PAGES``), by model. The key "" stands for any model."""
    match page:
        case "/props":
            slot = _count(mapping(document.get("default_generation_settings")).get("n_ctx"))
            return {"": slot} if slot else {}
        case "/api/ps":
            loaded = mappings(document.get("models"))
            found = {
                string(model.get(field)): _count(model.get("context_length"))
                for model in loaded
                for field in ("name", "model")
            }
        case _:
            found = {string(model.get("id")): listed_window(model) for model in mappings(document.get("data"))}
    return {name: number for name, number in found.items() if name and number}


def shown_window(document: Mapping[str, Any]) -> int | None:
    """Return the context window from Ollama's page for one model (``SHOW``), or None if the page has none."""
    set_to = _NUM_CTX.search(string(document.get("parameters")))
    if set_to is not None:
        return int(set_to[1]) or None
    facts = mapping(document.get("model_info"))
    return next((_count(value) for name, value in facts.items() if name.endswith(".context_length")), None)


def with_window(model: Mapping[str, Any], window: int | None) -> dict[str, Any]:
    """Return an entry of a model list, with the context window added as each of the ``WINDOW_FIELDS`` that it lacks."""
    number = listed_window(model) or window
    return {**dict.fromkeys(WINDOW_FIELDS, number), **model} if number else dict(model)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
