from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.core.errors import ApiError
from toolsim.wire.errors import error_body, no_answer, read_error

WHOLE = {"message": "out", "type": "tokens", "code": "rate_limit_exceeded", "param": "input"}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (WHOLE, ApiError("out", "tokens", "rate_limit_exceeded", "input", 502)),
        ({"error": WHOLE}, ApiError("out", "tokens", "rate_limit_exceeded", "input", 502)),
        ({"type": "error", "message": "out", "code": 429}, ApiError("out", "server_error", "429", None, 502)),
        ({"detail": "out"}, ApiError("out", status=502)),
        ("out", ApiError("out", status=502)),
        ({"error": "Model m not found"}, ApiError("Model m not found", status=502)),
        ({}, ApiError("The backend reported an error.", status=502)),
        (None, ApiError("The backend reported an error.", status=502)),
        ({"message": {"a": 1}, "code": True}, ApiError("The backend reported an error.", status=502)),
    ],
)
def test_read_error(error: object, expected: ApiError) -> None:
    """Errors of every common shape are read: flat, nested, bare text, numeric codes."""
    assert read_error(error) == expected


def test_no_answer() -> None:
    """The error contains what the backend sent instead of an answer, or else what was expected."""
    assert no_answer({"object": "error", "message": "out", "code": 400}, "choices").message == "out"
    assert no_answer({"detail": "out"}, "choices").message == "out"
    error = no_answer({"output": []}, "choices")
    assert (error.code, error.status, "'choices'" in error.message) == ("backend_bad_answer", 502, True)


@given(st.text(), st.none() | st.text())
def test_error_body(message: str, code: str | None) -> None:
    """The body has the four keys that OpenAI's schema requires, and is JSON in UTF-8 whatever the message holds."""
    error = json.loads(error_body(ApiError(message, code=code)).decode())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] == message.encode("utf-8", "replace").decode()
