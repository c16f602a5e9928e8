"""Converts Codex's errors to OpenAI's error format.

Codex reports a failed turn as ``{"message": …, "codexErrorInfo": …}``. ``codexErrorInfo`` is a word
(``"usageLimitExceeded"``), an object with the failed operation and its HTTP status (``{"httpConnectionFailed":
{"httpStatusCode": 401}}``), or ``"other"``. With ``"other"``, the message can be the complete error body from the
model's server, as JSON text.

Clients use the status to decide whether to retry, so it matters more than the message. If the same request would fail
again, the status is 4xx. If it might succeed later, the status is 429 or 5xx.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolsim.core.errors import ApiError
from toolsim.wire.json_codec import parse_object
from toolsim.wire.json_fields import count, mapping, string


class RpcError(Exception):
    """Raised if the app-server returned an error for a request."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class CodexUnavailable(Exception):
    """Raised while no app-server is running.

    ``error`` contains the reason, and the delay after which a client can retry.
    """

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def child_died(how: str) -> ApiError:
    """Return the error for an answer whose child process died.

    ``how`` is a predicate that completes the sentence "The Codex app-server …".
    """
    return ApiError(f"The Codex app-server {how}", code="backend_died", status=502, retry_after=1)


def request_rejected(error: RpcError) -> ApiError:
    """Return the error for a request that Codex itself rejects. Repeating the request would not help."""
    return ApiError(f"Codex rejected the request: {error.message}", type="invalid_request_error", status=400)


CONTEXT_EXCEEDED = ApiError(
    "The conversation is longer than the model's context window.",
    type="invalid_request_error",
    code="context_length_exceeded",
    param="input",
    status=400,
)

# HTTP status, error type and code for each ``codexErrorInfo``.
_KINDS: Mapping[str, tuple[int, str, str | None]] = {
    "usageLimitExceeded": (429, "insufficient_quota", "insufficient_quota"),
    "sessionBudgetExceeded": (429, "insufficient_quota", "insufficient_quota"),
    "rateLimitExceeded": (429, "rate_limit_error", "rate_limit_exceeded"),
    "unauthorized": (401, "authentication_error", "invalid_api_key"),
    "modelNotFound": (404, "invalid_request_error", "model_not_found"),
    "badRequest": (400, "invalid_request_error", None),
    "cyberPolicy": (400, "invalid_request_error", "invalid_prompt"),
    "misalignmentPolicyViolation": (400, "invalid_request_error", "invalid_prompt"),
    "inferenceHookDenied": (403, "invalid_request_error", "access_denied"),
    "serverOverloaded": (503, "server_error", "server_is_overloaded"),
    "flexUnavailable": (503, "server_error", "server_is_overloaded"),
    "policyCapacityUnavailable": (503, "server_error", "server_is_overloaded"),
    "internalServerError": (502, "server_error", "server_error"),
}
# The ``codexErrorInfo`` word for each HTTP status of the model's server. It is used if Codex reports only the status.
_KIND_BY_STATUS: Mapping[int, str] = {
    401: "unauthorized",
    403: "unauthorized",
    404: "modelNotFound",
    429: "rateLimitExceeded",
    400: "badRequest",
    413: "badRequest",
    422: "badRequest",
    503: "serverOverloaded",
}


def turn_error(error: Mapping[str, Any]) -> ApiError:
    """Convert the ``error`` of a failed turn to OpenAI's format. The status of an unknown error is 502."""
    message = string(error.get("message")) or "The turn failed, and Codex did not report a reason."
    info = error.get("codexErrorInfo")
    if info == "contextWindowExceeded":
        return CONTEXT_EXCEEDED
    if isinstance(info, dict):
        statuses = [count(mapping(detail), "httpStatusCode") for detail in info.values()]
        info = next((_KIND_BY_STATUS[status] for status in statuses if status in _KIND_BY_STATUS), None)
    if isinstance(info, str) and info in _KINDS:
        status, kind, code = _KINDS[info]
        if status == 401:
            message = f"The Codex login was rejected; run `codex login`: {message}"
        return ApiError(
            message,
            type=kind,
            code=code,
            param="model" if code == "model_not_found" else None,
            status=status,
            retry_after=5 if status >= 500 else None,
        )
    return _quoted_error(message) or ApiError(message, code="server_error", status=502, retry_after=1)


def _quoted_error(message: str) -> ApiError | None:
    """Return the error in ``message`` if it is an error body from the model's server, or None if it is anything else.

    If the model's server returns a 400, Codex uses the entire body as the message.
    """
    body = parse_object(message.encode())
    if not body:
        return None
    quoted = mapping(body.get("error"))
    return ApiError(
        # ChatGPT's server sends only a "detail" member, for example if the account cannot use the model.
        string(quoted.get("message")) or string(body.get("detail")) or message,
        type="invalid_request_error",
        code=string(quoted.get("code")) or None,
        param=string(quoted.get("param")) or None,
        status=400,
    )
