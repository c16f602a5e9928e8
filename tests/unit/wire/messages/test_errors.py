"""Errors as Claude Code and the SDKs tell them apart."""

from __future__ import annotations

import json

import pytest
from toolsimlib.wire.messages.errors import error_answer


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, '{"error":{"message":"Bad.","type":"invalid_request_error"}}', "invalid_request_error", "Bad."),
        (401, '{"error":{"message":"No key."}}', "authentication_error", "No key."),
        (404, '{"detail":"Not Found"}', "not_found_error", "Not Found"),
        (429, '{"error":"slow down"}', "rate_limit_error", "slow down"),
        (500, "<html>oops</html>", "api_error", "<html>oops</html>"),
        (503, "", "api_error", "The backend reported an error."),
        (
            400,
            '{"error":{"message":"This model\'s maximum context length is 8 tokens","code":"context_length_exceeded"}}',
            "invalid_request_error",
            "prompt is too long: This model's maximum context length is 8 tokens",
        ),
        (
            400,
            '{"error":{"code":400,"message":"the request exceeds the available context size"}}',
            "invalid_request_error",
            "prompt is too long: the request exceeds the available context size",
        ),
    ],
)
def test_a_backends_error_in_this_apis_shape(status: int, body: str, kind: str, message: str) -> None:
    """Whatever its shape; its words are kept, and a prompt that does not fit is named as Claude Code expects it."""
    answer = json.loads(error_answer(status, body.encode()))
    assert answer["type"] == "error"
    assert answer["request_id"].startswith("req_")
    assert answer["error"] == {"type": kind, "message": message}


def test_an_error_of_this_api_stays_as_it_is() -> None:
    """Byte for byte."""
    body = b'{"type":"error", "error":{"type":"overloaded_error","message":"Overloaded"}}'
    assert error_answer(529, body) is body
