"""Paths, hosts and headers."""

from __future__ import annotations

import socket

import pytest
from toolsimlib.proxy.options import Origins, Upstream
from toolsimlib.proxy.route import cors, dialect, endpoint, is_bearer, is_listener, is_loopback, join, preflight

PATHS: list[tuple[str, str | None]] = [
    ("/v1/responses", "responses"),
    ("/v1/responses/", "responses"),
    ("/responses?x=/models", "responses"),
    ("/openai/deployments/x/chat/completions?api-version=1", "chat"),
    ("/v1/models", "models"),
    ("/v1/models/gpt", None),
    ("/v1/responses/resp_1", None),
    ("/v1/myresponses", None),
    ("/v1/completions", None),
    ("/", None),
    ("", None),
    ("*", None),
]


@pytest.mark.parametrize(("path", "expected"), PATHS)
def test_endpoint(path: str, expected: str | None) -> None:
    """The path's end decides, its query does not."""
    assert endpoint(path) == expected


def test_dialect() -> None:
    """Only a POST to one of the two endpoints may declare tools."""
    assert dialect("POST", "/v1/responses") == "responses"
    assert dialect("POST", "/chat/completions") == "chat"
    assert dialect("GET", "/v1/responses") is None
    assert dialect("POST", "/v1/models") is None


@pytest.mark.parametrize(
    ("base", "path", "expected"),
    [
        ("", "/v1/responses?a=1", "/v1/responses?a=1"),
        ("/v1", "/v1/responses?a=1", "/v1/responses?a=1"),
        ("/v2", "/x/chat/completions/", "/v2/chat/completions"),
        ("/v2", "/files", "/files"),
    ],
)
def test_join(base: str, path: str, expected: str) -> None:
    """An upstream's path replaces what precedes the endpoint."""
    assert join(Upstream("http", "h", 80, base), path) == expected


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", "a.localhost"])
def test_loopback(address: str) -> None:
    """All of these stay on this machine."""
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "localhost.evil", "127.0.0.1.evil", ""]
)
def test_not_loopback(address: str) -> None:
    """None of these certainly does."""
    assert not is_loopback(address)


def test_listener() -> None:
    """A target is the listener if its port is, and its name certainly means this machine."""
    sockname = ("192.168.1.5", 8080)
    for host in ("localhost", "127.0.0.1", "192.168.1.5", socket.gethostname()):
        assert is_listener(host, 8080, sockname)
    assert not is_listener("localhost", 8081, sockname)
    assert not is_listener("rebound.example", 8080, sockname)
    assert not is_listener("localhost", 8080, None)
    assert is_listener("::1", 8080, ("::1", 8080, 0, 0))


@pytest.mark.parametrize("header", ["Bearer key", "bearer key", "BEARER   key "])
def test_bearer(header: str) -> None:
    """The scheme's case and spaces do not matter."""
    assert is_bearer(header, "key")


@pytest.mark.parametrize("header", ["", "key", "Bearer", "Bearer keys", "Bearer KEY", "Basic key", "Bearer k\udce9y"])
def test_not_bearer(header: str) -> None:
    """Anything else is refused, and nothing raises."""
    assert not is_bearer(header, "key")


def test_cors() -> None:
    """A listed origin is named; there is no header for others, and none without one."""
    origins = Origins(("app://x",))
    assert cors(origins, "app://x")["access-control-allow-origin"] == "app://x"
    assert cors(origins, "app://y") == cors(origins, None) == {}


def test_preflight() -> None:
    """A preflight gets what it asks for, unless that is no list of headers; other requests get nothing."""
    origins = Origins(("app://x",))
    asked = {"origin": "app://x", "access-control-request-method": "POST"}
    assert preflight(origins, {"origin": "app://x"}) is None
    assert preflight(origins, asked | {"origin": "app://y"}) is None
    for headers, expected in (("a, x-b", "a, x-b"), ("a\r\nx: y", "authorization, content-type")):
        answer = preflight(origins, asked | {"access-control-request-headers": headers})
        assert answer is not None
        assert answer["access-control-allow-headers"] == expected
        assert "access-control-allow-private-network" not in answer
    private = preflight(origins, asked | {"access-control-request-private-network": "true"})
    assert private is not None
    assert private["access-control-allow-private-network"] == "true"
