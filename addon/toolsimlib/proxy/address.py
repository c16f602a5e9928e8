"""Addresses: the backend that a URL names, and whether a host is this machine."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where requests are sent instead; ``path`` (without a slash at its end) goes before the endpoint's."""

    scheme: str
    host: str
    port: int
    path: str = ""


def is_loopback(address: str) -> bool:
    """Return whether an IP address, or the name ``localhost``, stays on this machine."""
    if address == "localhost" or address.endswith(".localhost"):
        return True
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def is_listener(host: str, port: int, sockname: tuple[str | int, ...] | None) -> bool:
    """Return whether a request's target is the very socket (``sockname``) that it came in on.

    Only names that certainly mean this machine count: a foreign name that merely resolves to it may be a web page's
    attempt to reach it (DNS rebinding).
    """
    if not sockname or port != sockname[1]:
        return False
    return is_loopback(host) or host in (sockname[0], socket.gethostname())
