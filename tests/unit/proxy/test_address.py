"""Which hosts are this machine."""

from __future__ import annotations

import socket

import pytest
from toolsimlib.proxy.address import is_listener, is_loopback

HERE = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", "a.localhost"]
HERE += ["LOCALHOST", "localhost.", "127.1", "0x7f.1", "2130706433", "0177.0.0.1"]
ELSEWHERE = ["10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "localhost.evil", "127.0.0.1.evil", ""]
ELSEWHERE += ["f", "1.2.3.4.5", "127.1 "]


@pytest.mark.parametrize("address", HERE)
def test_loopback(address: str) -> None:
    """All of these stay on this machine."""
    assert is_loopback(address)


@pytest.mark.parametrize("address", ELSEWHERE)
def test_not_loopback(address: str) -> None:
    """None of these certainly does."""
    assert not is_loopback(address)


def test_listener() -> None:
    """A target is the listener if its port is, and its name certainly means this machine."""
    sockname = ("192.168.1.5", 8080)
    for host in ("localhost", "LocalHost", "127.0.0.1", "127.1", "0.0.0.0", "::", "192.168.1.5", socket.gethostname()):
        assert is_listener(host, 8080, sockname)
    assert not is_listener("localhost", 8081, sockname)
    assert not is_listener("rebound.example", 8080, sockname)
    assert not is_listener("localhost", 8080, None)
    assert is_listener("::1", 8080, ("::1", 8080, 0, 0))
