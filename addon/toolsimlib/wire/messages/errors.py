"""Errors in the Messages API's own shape. Claude Code and the SDKs decide by ``type`` and status what to do next."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolsimlib.errors import ApiError
from toolsimlib.wire.errors import read_error
from toolsimlib.wire.json_codec import dump, parse_object

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
"""Codes of OpenAI's that say more than the status, which a failure within a stream does not have."""

# How servers say that a prompt does not fit: OpenAI, vLLM, llama.cpp.
_TOO_LONG = re.compile(r"context[ _](?:length|size|window)|exceeds? the (?:available|maximum) context", re.IGNORECASE)


def error_answer(status: int, body: bytes) -> bytes:
    """Return the body of an error that is written in another API's shape; one in this API's own stays as it is."""
    document = parse_object(body)
    if document is not None and document.get("type") == "error":
        return body
    error = read_error(document if document is not None else body.decode("utf-8", "replace").strip()[:2_000])
    return dump(error_body(replace(error, status=status))).encode()


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of an error answer, or the data of an ``error`` event."""
    kind = _CODES.get(error.code or "") or _TYPES.get(error.status, "api_error")
    message = error.message
    if kind == "invalid_request_error" and (error.code == "context_length_exceeded" or _TOO_LONG.search(message)):
        # Claude Code compacts the conversation if an error begins with these words, and only then.
        message = f"prompt is too long: {message}"
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": f"req_{secrets.token_hex(12)}",
    }
