from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.core.errors import ApiError
from toolsim.wire.errors import error_body, no_answer, read_error, rejects_path

WHOLE = {"message": "out", "type": "tokens", "code": "rate_limit_exceeded", "param": "input"}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (WHOLE, ApiError("out", "tokens", "rate_limit_exceeded", "input", 502)),
        ({"error": WHOLE}, ApiError("out", "tokens", "rate_limit_exceeded", "input", 502)),
        ({"type": "error", "message": "out", "code": 429}, ApiError("out", "server_error", "429", None, 502)),
        ({"detail": "out"}, ApiError("out", status=502)),
        (
            {"detail": [{"loc": ["body", "messages", 0], "msg": "Field required"}, {"msg": "No."}, 3, {}]},
            ApiError("body.messages.0: Field required; No.", status=502),
        ),
        ({"detail": []}, ApiError("The backend reported an error.", status=502)),
        ("out", ApiError("out", status=502)),
        ({"error": "Model m not found"}, ApiError("Model m not found", status=502)),
        ({}, ApiError("The backend reported an error.", status=502)),
        (None, ApiError("The backend reported an error.", status=502)),
        ({"message": {"a": 1}, "code": True}, ApiError("The backend reported an error.", status=502)),
    ],
)
def test_read_error(error: object, expected: ApiError) -> None:
    """Errors are parsed in every common format: flat, nested, as plain text, and with numeric codes."""
    assert read_error(error) == expected


def test_missing_answer_error() -> None:
    """If a response body contains no answer, the error quotes the backend's message. If there is no message, the error
    names the field that is missing.
    """
    assert no_answer({"object": "error", "message": "out", "code": 400}, "choices").message == "out"
    assert no_answer({"detail": "out"}, "choices").message == "out"
    error = no_answer({"output": []}, "choices")
    assert (error.code, error.status, "'choices'" in error.message) == ("backend_bad_answer", 502, True)


@given(st.text(), st.none() | st.text())
def test_error_body(message: str, code: str | None) -> None:
    """An error body has the four keys in OpenAI's schema, and is valid JSON regardless of the message."""
    error = json.loads(error_body(ApiError(message, code=code)).decode())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] == message.encode("utf-8", "replace").decode()


@pytest.mark.parametrize(
    ("status", "body", "model", "expected"),
    [
        (404, None, "any", True),
        (404, {"detail": "Not Found"}, "any", True),
        (404, {"error": {"message": "Invalid URL (POST /v1/responses)", "param": None, "code": None}}, "any", True),
        (404, {"error": "no handler for /v1/responses"}, "responses", True),
        (404, {"error": "many routes, none of them this one"}, "any", True),
        (404, {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}, "any", True),
        (405, {"error": {"code": "model_not_found"}}, "any", True),
        (501, None, "", True),
        (404, {"error": {"message": "?", "code": "model_not_found"}}, "any", False),
        (404, {"error": {"message": "?", "type": "model_not_found"}}, "", False),
        (404, {"error": {"message": 'model "qwen2.5:3b" not found'}}, "qwen2.5:3b", False),
        (404, {"error": "model 'a/b' not found, try pulling it first"}, "A/B", False),
        (404, {"error": {"message": "The model does not exist: gpt-4."}}, "gpt-4", False),
        (404, {"error": {"message": "The model does not exist: gpt-4.1"}}, "gpt-4", True),
        (404, {"error": {"message": "No item rs_1.", "param": "input"}}, "any", False),
        (400, {"detail": "Not Found"}, "any", False),
        (200, None, "any", False),
        (500, None, "any", False),
    ],
)
def test_errors_that_reject_a_path(status: int, body: dict[str, Any] | None, model: str, expected: bool) -> None:
    """Only an error about an unknown path means that the backend rejects the path. All other errors are passed on to
    the client.
    """
    assert rejects_path(status, body, model) is expected
