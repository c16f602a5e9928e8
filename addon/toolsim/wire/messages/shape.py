"""Elements of the Messages API other than requests and answers: headers, errors and the list of models.

1. A client sends its key as ``x-api-key`` or, like the clients of other APIs, as a Bearer token. Servers of the other
   APIs, and some servers of this API (vLLM), accept only a Bearer token. Anthropic's own server accepts an API key as
   ``x-api-key`` and a login as a Bearer token, and rejects a request that contains both.
2. A backend of this API requires the API version, which only this API's clients send.
3. Features requested by ``anthropic-beta`` are dropped for a backend with another API, and reported. toolsim implements
   the features that clients rely on (deferred tools, and system messages between other messages). All other features
   control Anthropic's server.
4. Claude Code and the SDKs use an error's ``type`` and status to decide how to proceed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from toolsim.core.errors import ApiError
from toolsim.wire.api import WINDOW_FIELDS, HeaderChange
from toolsim.wire.errors import CONTEXT_EXCEEDED, read_error
from toolsim.wire.errors import is_too_long as is_prompt_too_long
from toolsim.wire.json_codec import dump, parse_object
from toolsim.wire.json_fields import mappings, seconds, string

_KEY, _VERSION, _BETAS = "x-api-key", "anthropic-version", "anthropic-beta"
_OWN = (_KEY, _VERSION, _BETAS, "anthropic-dangerous-direct-browser-access")
_CURRENT = "2023-06-01"
_ANTHROPICS, _LOGIN = "sk-ant-", "sk-ant-oat"
# Limits for the log, because a client can send any text as the name of a beta feature.
_MAX_BETAS, _MAX_NAME = 20, 60

_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}

_CODES: Mapping[str, str] = {
    "rate_limit_exceeded": "rate_limit_error",
    "insufficient_quota": "rate_limit_error",
    "server_is_overloaded": "overloaded_error",
}
"""The Messages API's error types for OpenAI's error codes. If an error has a code, the type depends on the code rather
than on the HTTP status. The code is more specific, and errors within a stream have no status.
"""

_TOO_LONG = "prompt is too long"


def other_backend_headers(headers: Mapping[str, str]) -> HeaderChange:
    """Return the changes to a Messages client's headers for a backend with another API (rules 1 and 3 in the module
    docstring).
    """
    key = headers.get(_KEY)
    given = {"authorization": f"Bearer {key}"} if key and "authorization" not in headers else {}
    betas = [name for beta in headers.get(_BETAS, "").split(",") if (name := beta.strip())]
    dropped = tuple(f"{_BETAS}:{name[:_MAX_NAME]}" for name in betas[:_MAX_BETAS])
    return HeaderChange(given, _OWN, dropped)


def own_backend_headers(headers: Mapping[str, str]) -> HeaderChange:
    """Return the changes to any client's headers for a backend of this API (rules 1 and 2 in the module docstring)."""
    given = {} if _VERSION in headers else {_VERSION: _CURRENT}
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() != "bearer" or _KEY in headers or token.startswith(_LOGIN):
        return HeaderChange(given)
    without = ("authorization",) if token.startswith(_ANTHROPICS) else ()
    return HeaderChange({**given, _KEY: token.strip()}, without)


def error_answer(status: int, body: bytes) -> bytes:
    """Convert an error body from another API's shape. A body in this API's own shape is returned unchanged."""
    document = parse_object(body)
    if document is not None and document.get("type") == "error":
        return body
    error = read_error(document if document is not None else body.decode("utf-8", "replace").strip()[:2_000])
    status = error.status if error.code == CONTEXT_EXCEEDED else status
    return dump(error_body(replace(error, status=status))).encode()


THREAD_NOT_FOUND = "thread_not_found"
"""Error code for a request that continues a thread, which is an error because toolsim does not store threads."""


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of an error response, or the data of an ``error`` event."""
    kind = _CODES.get(error.code or "") or _TYPES.get(error.status, "api_error")
    message = error.message
    is_too_long = error.code == CONTEXT_EXCEEDED or is_prompt_too_long(message)
    if kind == "invalid_request_error" and is_too_long and not message.startswith(_TOO_LONG):
        # Claude Code compacts the conversation only if an error message begins with ``_TOO_LONG``.
        message = f"{_TOO_LONG}: {message}"
    details: dict[str, Any] = {}
    if error.code == THREAD_NOT_FOUND:
        # The code ``thread_not_found`` makes the SDK send the entire conversation.
        details = {"details": {"error_code": error.code}}
    return {
        "type": "error",
        "error": {"type": kind, "message": message} | details,
        "request_id": f"req_{secrets.token_hex(12)}",
    }


def model_list(body: bytes) -> bytes:
    """Convert a list of models, or one model, from OpenAI's shape. Any other body is returned unchanged."""
    document = parse_object(body)
    if document is not None and document.get("object") == "model" and string(document.get("id")):
        return dump(_model(document)).encode()
    if document is None or not isinstance(document.get("data"), list) or "has_more" in document:
        return body
    models = [_model(model) for model in mappings(document["data"]) if string(model.get("id"))]
    ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {"first_id": None, "last_id": None}
    return dump({"data": models, "has_more": False, **ends}).encode()


def _model(model: Any) -> dict[str, Any]:
    # The API requires a creation time; 1970 means unknown.
    created = datetime.fromtimestamp(min(seconds(model.get("created")) or 0, 2**32), UTC)
    name = model["id"]
    # The context window is sent under the names of this API and of the other APIs (see ``proxy/windows.py``).
    windows = {field: model[field] for field in WINDOW_FIELDS if model.get(field)}
    windows = {**dict.fromkeys(["max_input_tokens"], next(iter(windows.values()))), **windows} if windows else {}
    shown = {"type": "model", "id": name, "display_name": name, "created_at": f"{created:%Y-%m-%dT%H:%M:%SZ}"}
    return shown | windows
