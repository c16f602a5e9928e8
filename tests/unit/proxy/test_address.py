"""Detection of this machine's addresses, and parsing of backend URLs."""

from __future__ import annotations

import socket

import pytest
from support.each import each
from toolsim.proxy.address import Upstream, is_listener, is_loopback, parse_url, url_host

HERE = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", "a.localhost"]
HERE += ["LOCALHOST", "localhost.", "127.1", "0x7f.1", "2130706433", "0177.0.0.1"]
ELSEWHERE = ["10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "localhost.evil", "127.0.0.1.evil", ""]
ELSEWHERE += ["f", "1.2.3.4.5", "127.1 "]


@each("address", HERE)
def test_loopback_addresses_are_recognized(address: str) -> None:
    """Every spelling of a loopback address or of localhost is recognized."""
    assert is_loopback(address)


@each("address", ELSEWHERE)
def test_other_addresses_are_not_loopback(address: str) -> None:
    """An address that might belong to another machine does not count as a loopback address."""
    assert not is_loopback(address)


def test_listener_is_recognized() -> None:
    """A host and port are recognized as toolsim's own listener only if the port matches and the host is certain to be
    this machine.
    """
    sockname = ("192.168.1.5", 8080)
    for host in ("localhost", "LocalHost", "127.0.0.1", "127.1", "0.0.0.0", "::", "192.168.1.5", socket.gethostname()):
        assert is_listener(host, 8080, sockname)
    assert not is_listener("localhost", 8081, sockname)
    assert not is_listener("rebound.example", 8080, sockname)
    assert not is_listener("localhost", 8080, None)
    assert is_listener("::1", 8080, ("::1", 8080, 0, 0))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h", Upstream("http", "h", 80)),
        ("https://h/base/v1/", Upstream("https", "h", 443, "/base/v1")),
        ("http://[::1]:8000/v1", Upstream("http", "::1", 8000, "/v1")),
    ],
)
def test_backend_url_is_parsed(url: str, expected: Upstream) -> None:
    """In a backend's URL, the port defaults to the scheme's port, and a slash at the end of the path is removed."""
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    "url", ["", "h", "ftp://h", "http://", "http://[::1", "http://h:x", "http://h/?a", "http://a b"]
)
def test_invalid_url_is_refused(url: str) -> None:
    """The error for an invalid URL quotes the URL, and suggests a correction if only the scheme is missing."""
    with pytest.raises(ValueError, match=r"^got '.*', expected a URL such as") as refused:
        parse_url(url)
    assert str(refused.value).endswith("; did you mean http://h?") == (url == "h")


@pytest.mark.parametrize(
    ("host", "shown"),
    [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("", "127.0.0.1"), ("::1", "[::1]"), ("10.0.0.1", "10.0.0.1")],
)
def test_wildcard_address_is_shown_as_loopback(host: str, shown: str) -> None:
    """A wildcard address is shown as the loopback address in URLs."""
    assert url_host(host) == shown
