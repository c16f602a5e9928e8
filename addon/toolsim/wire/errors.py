"""Parses and writes error objects in the format of OpenAI's APIs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolsim.core.errors import ApiError

NO_WORDS = ApiError("The backend reported an error.", status=502)
"""Result of ``read_error`` for an error object without any information."""
CONTEXT_EXCEEDED = "context_length_exceeded"
"""OpenAI's error code for a prompt that is too long. It causes clients to compact the conversation."""
_MAX_DETAILS = 5
# Match the error messages of OpenAI, llama.cpp, vLLM, SGLang, Ollama, LM Studio, Mistral and Anthropic about a prompt
# that is too long.
_SAYS_TOO_LONG = (
    r"exceed(?:s|ed)?|maximum|longer than|greater than|too (?:long|large|many)|overflow|only \d|does not fit"
)
_WINDOW = r"context[ _-]?(?:length|size|window|limit)|context the overflow|maximum model length"
_TOO_LONG = re.compile(
    rf"exceed_context_size|prompt is too long|\b(?:{_SAYS_TOO_LONG})\b.{{0,120}}?(?:{_WINDOW})"
    rf"|(?:{_WINDOW}).{{0,80}}?(?:{_SAYS_TOO_LONG})",
    re.IGNORECASE | re.DOTALL,
)
NO_PATH = (404, 405, 501)
"""HTTP statuses that servers return for an unknown path."""


def read_error(error: object) -> ApiError:
    """Return the error that a backend reports in any common shape: a flat object, a nested object, or plain text."""
    if isinstance(error, dict) and isinstance(error.get("error"), dict | str):
        error = error["error"]
    if isinstance(error, dict):
        read = ApiError(
            _text(error.get("message")) or _detail(error.get("detail")) or NO_WORDS.message,
            type=_text(error.get("type"), not_="error") or "server_error",
            code=_text(error.get("code")) or None,
            param=_text(error.get("param")) or None,
            status=502,
        )
    else:
        read = replace(NO_WORDS, message=_text(error) or NO_WORDS.message)
    if read.code == CONTEXT_EXCEEDED or is_too_long(f"{read.type} {read.message}"):
        return replace(read, type="invalid_request_error", code=CONTEXT_EXCEEDED, status=400)
    return read


def is_too_long(text: str) -> bool:
    """Return whether an error message reports that a prompt exceeds the model's context window."""
    return _TOO_LONG.search(text) is not None


def rejects_path(status: int, body: Mapping[str, Any] | None, model: str) -> bool:
    """Return whether an HTTP error means that the server does not have the path.

    ``body`` is the JSON object of the error, or None. ``model`` is the requested model, or "" if it is unknown. A 404
    error that names the model or an invalid field does not count, because it is an error in the request.
    """
    if status != 404 or body is None:
        return status in NO_PATH
    error = read_error(dict(body))
    words = f"{error.type} {error.message}"
    is_about_model = (error.code or "").startswith("model") or "model_not_found" in words or _names(model, words)
    return not (error.param or is_about_model)


def _names(model: str, words: str) -> bool:
    """Return whether the text ``words`` contains a model's name, and not only as part of a longer name or a path."""
    name = rf"(?<![\w./:-]){re.escape(model)}(?![\w/-]|[.:]\w)"
    return bool(model) and re.search(name, words, re.IGNORECASE) is not None


def no_answer(body: Mapping[str, Any], expected: str) -> ApiError:
    """Return the error for a 2xx response that lacks the field ``expected``. If the response contains an error from the
    backend, return that error, because some backends report errors with a 2xx status.
    """
    if _text(body.get("message")) or _detail(body.get("detail")):
        return read_error(body)
    message = f"The backend's answer has no '{expected}': it might use another API (see toolsim_backend)."
    return ApiError(message, code="backend_bad_answer", status=502)


def error_body(error: ApiError) -> bytes:
    """Return the JSON body of an HTTP error response."""
    return json.dumps({"error": error.body()}, ensure_ascii=False).encode("utf-8", "replace")


def error_fields(error: ApiError) -> dict[str, Any]:
    """Return the fields of a Responses ``error`` event: flat, as in the API, and nested, as some clients expect."""
    return {"code": error.code, "message": error.message, "param": error.param, "error": error.body()}


def _detail(detail: object) -> str:
    """Return FastAPI's ``detail`` as text. The value can be a string or a list of field errors."""
    if not isinstance(detail, list):
        return _text(detail)
    found = [(item.get("loc"), _text(item.get("msg"))) for item in detail if isinstance(item, dict)]
    lines = [f"{'.'.join(map(_text, loc))}: {text}" if isinstance(loc, list) else text for loc, text in found if text]
    return "; ".join(lines[:_MAX_DETAILS])


def _text(value: Any, not_: str = "") -> str:
    """Return a string or number as text, and "" for any other value. Error codes and messages can be numbers."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    text = str(value)
    return "" if text == not_ else text
