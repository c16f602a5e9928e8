"""Tests for the conversion of Codex's errors to OpenAI's format."""

import json

from support.each import each
from toolsim.backends.codex.errors import turn_error


@each(
    ("info", "status", "code"),
    [
        ("unauthorized", 401, "invalid_api_key"),
        ({"httpConnectionFailed": {"httpStatusCode": 401}}, 401, "invalid_api_key"),
        ({"responseStreamConnectionFailed": {"httpStatusCode": None}}, 502, "server_error"),
        ({"responseTooManyFailedAttempts": {"httpStatusCode": 429}}, 429, "rate_limit_exceeded"),
        ("contextWindowExceeded", 400, "context_length_exceeded"),
        ({"responseStreamConnectionFailed": {"httpStatusCode": 413}}, 400, None),
        ("modelNotFound", 404, "model_not_found"),
        ("serverOverloaded", 503, "server_is_overloaded"),
        ("somethingNew", 502, "server_error"),
        (None, 502, "server_error"),
        ({"odd": 3}, 502, "server_error"),
    ],
)
def test_turn_errors(info: object, status: int, code: str | None) -> None:
    """Each error type from Codex is converted to an HTTP status and, if possible, an error code. Unknown types become
    status 502.
    """
    error = turn_error({"message": "m", "codexErrorInfo": info})
    assert (error.status, error.code) == (status, code)
    assert (error.retry_after is not None) == (status >= 500)


def test_quoted_400_keeps_its_message() -> None:
    """If Codex's message quotes an error object from the model server, the message, code and parameter of that object
    are kept.
    """
    body = {"error": {"message": "no such effort", "code": "unsupported_value", "param": "reasoning.effort"}}
    error = turn_error({"message": json.dumps(body), "codexErrorInfo": "other"})
    assert (error.message, error.code, error.param, error.status) == (
        "no such effort",
        "unsupported_value",
        "reasoning.effort",
        400,
    )


def test_quoted_chatgpt_400_is_not_retryable() -> None:
    """If Codex's message quotes an error from ChatGPT (``{"detail": …}``), the client receives the text in ``detail``
    with status 400 and without Retry-After, because a retry would fail again.
    """
    error = turn_error({"message": json.dumps({"detail": "That model is not supported."}), "codexErrorInfo": "other"})
    assert (error.message, error.status, error.retry_after) == ("That model is not supported.", 400, None)
