"""Detects requests that return to the listener that sent them.

The target of a request can be this proxy itself, under more names than can be listed: ``LOCALHOST``, ``127.1``, or any
name that resolves to it. A single request of this kind would exhaust all file descriptors. A request can return in two
ways:

1. *Directly.* A connection that the proxy opens to its own listener arrives there with the source address from which
   the proxy opened it (``Connections``). Each connection is remembered together with the listeners that its request has
   passed through, and a request that returns to one of these listeners is refused. A request from one listener to
   another in the same process is not a loop. Both the source and the target are compared, because a client on this
   machine can use the same source port as one of the proxy's connections to another target, and a busy machine reuses
   ports often.
2. *Through another proxy.* If two proxies name each other as their backend, only the request reveals the loop: its
   ``Via`` header names the proxies that have forwarded it (RFC 9110, 7.6.3). Each listener adds a unique name to the
   requests that it sends to a backend, and refuses requests with its own name. Requests that merely pass through this
   proxy to another host are not marked.
"""

from __future__ import annotations

import secrets
from hashlib import sha256

from mitmproxy.connection import Client
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from toolsim.proxy.access import Refusal
from toolsim.proxy.metadata import is_resent

LOOP = Refusal("The request has returned to the proxy that sent it.", code="loop_detected", status=508, reason="loop")

_VIA = "via"

_Address = tuple[str, int]
# The source and target addresses of a connection. No two open connections have the same pair.
_Ends = tuple[_Address, _Address]


class ProxyLoopDetector:
    """Detects requests that have returned to this proxy, and marks outgoing requests."""

    def __init__(self) -> None:
        self.connections = Connections()
        """The addon that tracks connections. mitmproxy calls its hooks."""
        self._via = Via()

    def is_loop(self, flow: HTTPFlow) -> bool:
        """Return whether a request has already passed through the listener on which it arrived."""
        client = flow.client_conn
        # A flow that the operator replays is exempt, because its Via header has contained this listener's name since
        # its first run.
        is_signed = not is_resent(flow) and self._via.has_passed(flow.request.headers.get(_VIA, ""), client)
        return is_signed or self.connections.is_loop(client)

    def add_via(self, flow: HTTPFlow) -> None:
        """Add the name of the listener on which a request arrived to the request's ``Via`` header."""
        headers = flow.request.headers
        headers[_VIA] = self._via.signed(headers.get(_VIA, ""), flow.client_conn)


class Connections:
    """An addon that tracks the connections opened by the proxy until they are closed."""

    def __init__(self) -> None:
        self._passed: dict[_Ends, frozenset[_Address]] = {}

    def server_connected(self, data: ServerConnectionHookData) -> None:
        """Remember a connection, and the listeners through which its client's requests have passed."""
        ends = _ends(data.server.sockname, data.server.peername)
        if ends is not None and data.client.sockname is not None:
            self._passed[ends] = self._before(data.client) | {_address(data.client.sockname)}

    def server_disconnected(self, data: ServerConnectionHookData) -> None:
        """Forget a connection that was closed."""
        if (ends := _ends(data.server.sockname, data.server.peername)) is not None:
            self._passed.pop(ends, None)

    def is_loop(self, client: Client) -> bool:
        """Return whether the requests on a connection have already passed through the listener that accepted it."""
        return client.sockname is not None and _address(client.sockname) in self._before(client)

    def _before(self, client: Client) -> frozenset[_Address]:
        ends = _ends(client.peername, client.sockname)
        return self._passed.get(ends, frozenset()) if ends is not None else frozenset()


def _ends(sender: tuple[object, ...] | None, receiver: tuple[object, ...] | None) -> _Ends | None:
    return (_address(sender), _address(receiver)) if sender is not None and receiver is not None else None


def _address(name: tuple[object, ...]) -> _Address:
    """Return a socket address as host and port, without IPv6's flow label and scope ID.

    An IPv4-mapped IPv6 address is converted to the IPv4 address.
    """
    host, port = str(name[0]).removeprefix("::ffff:").partition("%")[0], name[1]
    return host, port if isinstance(port, int) else 0


class Via:
    """Marks requests with the name of the listener on which they arrived."""

    def __init__(self) -> None:
        self._seed = secrets.token_hex(16)

    def has_passed(self, via: str, client: Client) -> bool:
        """Return whether a request has already passed through the listener that accepted the client's connection.

        ``via`` is the request's Via header, or "" if it has none.
        """
        return bool(via) and self._name(client) in _names(via)

    def signed(self, via: str, client: Client) -> str:
        """Return the value of a ``Via`` header with the listener's name at the end.

        If the name already occurs in ``via``, as in a resent flow, the earlier occurrence is removed.
        """
        own = self._name(client)
        foreign = [entry for entry in _entries(via) if own not in entry.split()]
        return ", ".join([*foreign, f"1.1 {own}"])

    def _name(self, client: Client) -> str:
        host, port = (client.sockname or ("", 0))[:2]
        return f"toolsim-{sha256(f'{self._seed} {host} {port}'.encode()).hexdigest()[:16]}"


def _names(via: str) -> set[str]:
    return {word for entry in _entries(via) for word in entry.split()[1:2]}


def _entries(via: str) -> list[str]:
    return [entry.strip() for entry in via.split(",") if entry.strip()]
