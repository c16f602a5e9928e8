"""Connections to backends: detects loops, and limits the time of connecting.

*Loops.* A target may be this very proxy, by more names than we can list: ``LOCALHOST``, ``127.1``, any name that
resolves to it. One such request would use up all file descriptors. So we recognise connections by their addresses: a
connection that we open to our own listener arrives there with the address that it left with. We remember each one with
the listeners that its request has passed, and refuse a request that returns to one of them. Another listener of the
same process is no loop. We compare both ends: a client on this machine may have the very port of one of our connections
to somewhere else, and a busy machine reuses each port many times.

*Time.* mitmproxy waits for a connection as long as the operating system does, minutes. Its hook ``server_connect`` runs
in the task that then connects, and a cancelled task ends in an ordinary connection error (``mitmproxy.proxy.server``
12.2). So a timer cancels it, until the connection is up: with TLS, until the handshake is over.
"""

from __future__ import annotations

import asyncio

from mitmproxy.connection import Client, Connection, Server
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.tls import TlsData

_Address = tuple[str, int]
# Source and target address: no two open connections share both.
_Ends = tuple[_Address, _Address]


class Connections:
    """An addon that tracks the connections that we open, until they are closed.

    ``timeout``: seconds that connecting may take; 0 = as long as the system tries.
    """

    def __init__(self) -> None:
        self.timeout = 0.0
        self._passed: dict[_Ends, frozenset[_Address]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # -- hooks --

    async def server_connect(self, data: ServerConnectionHookData) -> None:
        """Limit the time of connecting; async, so that it runs in the task that connects."""
        self.opening(data.server, self.timeout)

    def server_connected(self, data: ServerConnectionHookData) -> None:
        """Remember a connection."""
        self.opened(data.client, data.server)

    def server_connect_error(self, data: ServerConnectionHookData) -> None:
        """Forget one that could not be opened."""
        self.closed(data.server)

    def server_disconnected(self, data: ServerConnectionHookData) -> None:
        """Forget one that was closed."""
        self.closed(data.server)

    def tls_established_server(self, data: TlsData) -> None:
        """Stop the clock of connecting."""
        self.secured(data.conn)

    def tls_failed_server(self, data: TlsData) -> None:
        """Stop the clock here too."""
        self.secured(data.conn)

    # -- the connections --

    def opening(self, server: Server, timeout: float) -> None:
        """Give the running task ``timeout`` seconds to connect; 0 = as long as it takes."""
        task = asyncio.current_task()
        if timeout and task is not None:
            self._stop_timer(server)
            self._timers[server.id] = asyncio.get_running_loop().call_later(timeout, task.cancel, "timed out")

    def opened(self, client: Client, server: Server) -> None:
        """Remember a connection that was opened for ``client``."""
        if not server.tls:
            self._stop_timer(server)
        ends = _ends(server.sockname, server.peername)
        if ends is not None and client.sockname is not None:
            self._passed[ends] = self._before(client) | {_address(client.sockname)}

    def secured(self, connection: Connection) -> None:
        """Note that a TLS handshake is over, or has failed."""
        self._stop_timer(connection)

    def closed(self, server: Server) -> None:
        """Forget a connection that is closed, or could not be opened."""
        self._stop_timer(server)
        if (ends := _ends(server.sockname, server.peername)) is not None:
            self._passed.pop(ends, None)

    def is_circle(self, client: Client) -> bool:
        """Return whether the requests of a connection have passed its listener before."""
        return client.sockname is not None and _address(client.sockname) in self._before(client)

    def _before(self, client: Client) -> frozenset[_Address]:
        ends = _ends(client.peername, client.sockname)
        return self._passed.get(ends, frozenset()) if ends is not None else frozenset()

    def _stop_timer(self, connection: Connection) -> None:
        if (timer := self._timers.pop(connection.id, None)) is not None:
            timer.cancel()


def _ends(sender: tuple[object, ...] | None, receiver: tuple[object, ...] | None) -> _Ends | None:
    return (_address(sender), _address(receiver)) if sender is not None and receiver is not None else None


def _address(name: tuple[object, ...]) -> _Address:
    """Return an address without flow label and scope, an IPv4 address mapped into IPv6 as itself."""
    host, port = str(name[0]).removeprefix("::ffff:").partition("%")[0], name[1]
    return host, port if isinstance(port, int) else 0
