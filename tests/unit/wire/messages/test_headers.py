"""Headers between clients and backends of the Messages API and of others."""

from __future__ import annotations

import pytest
from mitmproxy.http import Headers
from toolsimlib.proxy.in_shape import for_backend
from toolsimlib.wire.dialect import CHAT, MESSAGES

VERSION = {"anthropic-version": "2023-06-01"}


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
def test_a_client_of_another_api(sent: dict[str, str], got: dict[str, str]) -> None:
    """A backend of this API gets its version, and the key in the form, or in both forms, that it may know."""
    headers = Headers(**sent)
    assert for_backend(headers, CHAT, MESSAGES) == []
    assert dict(headers) == got


def test_a_client_of_this_api() -> None:
    """A backend of this API gets what it has sent; one of another API its key, and nothing that only this one has."""
    sent = {**VERSION, "x-api-key": "k", "anthropic-beta": "a-1, b-2,", "accept": "*/*"}
    headers = Headers([(name.encode(), value.encode()) for name, value in sent.items()])
    assert for_backend(headers, MESSAGES, MESSAGES) == []
    assert dict(headers) == sent
    assert for_backend(headers, MESSAGES, CHAT) == ["anthropic-beta:a-1", "anthropic-beta:b-2"]
    assert dict(headers) == {"accept": "*/*", "authorization": "Bearer k"}
    assert for_backend(headers, MESSAGES, CHAT) == []


def test_the_log_stays_short() -> None:
    """However much a client asks for."""
    headers = Headers(**{"anthropic-beta": ",".join(["x" * 1000] * 1000)})
    dropped = for_backend(headers, MESSAGES, CHAT)
    assert len(dropped) <= 20
    assert max(map(len, dropped)) <= 80
