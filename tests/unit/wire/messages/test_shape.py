"""Error formats and headers of the Messages API, as Claude Code and the SDKs expect them."""

from __future__ import annotations

import json

import pytest
from mitmproxy.http import Headers
from toolsim.proxy.head import for_backend
from toolsim.wire.apis import CHAT, MESSAGES
from toolsim.wire.messages.shape import error_answer

VERSION = {"anthropic-version": "2023-06-01"}


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
def test_backend_error_is_converted(status: int, body: str, kind: str, message: str) -> None:
    """A backend's error in any format is converted to the Messages API's format. An error about a prompt that is too
    long has the message that Claude Code expects.
    """
    answer = json.loads(error_answer(status, body.encode()))
    assert answer["type"] == "error"
    assert answer["request_id"].startswith("req_")
    assert answer["error"] == {"type": kind, "message": message}


def test_messages_error_is_unchanged() -> None:
    """An error that is already in the Messages API's format is returned unchanged, byte for byte."""
    body = b'{"type":"error", "error":{"type":"overloaded_error","message":"Overloaded"}}'
    assert error_answer(529, body) is body


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        ({"authorization": "Bearer k"}, {"authorization": "Bearer k", "x-api-key": "k", **VERSION}),
        ({"authorization": "bearer sk-ant-api03-k"}, {"x-api-key": "sk-ant-api03-k", **VERSION}),
        ({"authorization": "Bearer sk-ant-oat01-k"}, {"authorization": "Bearer sk-ant-oat01-k", **VERSION}),
        ({"authorization": "Basic k"}, {"authorization": "Basic k", **VERSION}),
        ({}, VERSION),
    ],
)
def test_client_of_another_api_gets_messages_headers(sent: dict[str, str], got: dict[str, str]) -> None:
    """If the client uses another API, a Messages backend receives a version header, and the client's key is moved to
    ``x-api-key``.
    """
    headers = Headers(**sent)
    assert for_backend(headers, CHAT, MESSAGES) == []
    assert dict(headers) == got


def test_messages_client_headers_are_unchanged() -> None:
    """A Messages backend receives a Messages client's headers unchanged. For any other backend, headers specific to the
    Messages API are removed, and the key is moved to ``Authorization``.
    """
    sent = {**VERSION, "x-api-key": "k", "anthropic-beta": "a-1, b-2,", "accept": "*/*"}
    headers = Headers([(name.encode(), value.encode()) for name, value in sent.items()])
    assert for_backend(headers, MESSAGES, MESSAGES) == []
    assert dict(headers) == sent
    assert for_backend(headers, MESSAGES, CHAT) == ["anthropic-beta:a-1", "anthropic-beta:b-2"]
    assert dict(headers) == {"accept": "*/*", "authorization": "Bearer k"}
    assert for_backend(headers, MESSAGES, CHAT) == []


def test_logged_headers_are_limited() -> None:
    """The list of dropped headers that is logged is limited in length, as are its entries."""
    headers = Headers(**{"anthropic-beta": ",".join(["x" * 1000] * 1000)})
    dropped = for_backend(headers, MESSAGES, CHAT)
    assert len(dropped) <= 20
    assert max(map(len, dropped)) <= 80
