"""Detects requests that return by way of another proxy: ``Via`` names who has forwarded them (RFC 9110, 7.6.3).

``connect`` recognises a connection that leads back to the listener it left. If two proxies name each other as their
backend, each connection leads to the other one, and only the request itself can show where it has been. So each
listener signs what it sends to a backend with a unique name, and refuses what bears its own.

Another listener of the same process has another name: a request may pass several. What merely goes through this proxy
to some other host is not signed.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from hashlib import sha256

from mitmproxy.connection import Client

from toolsimlib.errors import ApiError

LOOP = ApiError("The request has come back to the proxy that sent it.", code="loop_detected", status=508)

VIA = "via"


class Via:
    """Signs requests in the name of the listener that they came in on."""

    def __init__(self) -> None:
        self._seed = secrets.token_hex(16)

    def has_passed(self, via: str, client: Client) -> bool:
        """Return whether a request with this header has passed the client's listener before; "" = it has none."""
        return bool(via) and self._name(client) in _names(via)

    def signed(self, via: str, client: Client) -> str:
        """Return the header with the listener's name; one that is there already (a flow sent again) is replaced."""
        own = self._name(client)
        foreign = [entry for entry in _entries(via) if own not in entry.split()]
        return ", ".join([*foreign, f"1.1 {own}"])

    def _name(self, client: Client) -> str:
        host, port = (client.sockname or ("", 0))[:2]
        return _name(self._seed, host, port)


@lru_cache(maxsize=64)
def _name(seed: str, host: str, port: int) -> str:
    return f"toolsim-{sha256(f'{seed} {host} {port}'.encode()).hexdigest()[:16]}"


def _names(via: str) -> set[str]:
    return {word for entry in _entries(via) for word in entry.split()[1:2]}


def _entries(via: str) -> list[str]:
    return [entry.strip() for entry in via.split(",") if entry.strip()]
