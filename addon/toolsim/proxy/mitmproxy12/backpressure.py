"""Applies backpressure: limits the data that is buffered for a client that does not read.

Without a limit, the kernel would buffer megabytes of an answer, all of which the backend would generate even if the
client never read it.

The limit applies only to bytes that have not been sent yet. Bytes in transit do not count, so a long round-trip time
does not reduce throughput.

Relies on these internals of mitmproxy 12.2: ``Proxyserver.connections`` contains the handler of each client, and the
handler's ``transports`` contain the writers.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from mitmproxy import ctx
from mitmproxy.connection import Client, Connection
from mitmproxy.proxy.server import ConnectionHandler

HIGH_WATER_BYTES = 128 * 1024
"""The number of unsent bytes above which the producer of an answer is paused."""


class ClientBackpressure:
    """An addon that limits the unsent bytes for each client, on systems that have a socket option for this."""

    def client_connected(self, client: Client) -> None:
        """Limit the unsent bytes of a new connection."""
        writer = writer_of(client)
        own = writer.get_extra_info("socket") if writer is not None else None
        if own is not None and client.transport_protocol == "tcp":
            with suppress(AttributeError, OSError):
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, HIGH_WATER_BYTES)


def bound_buffers(own: socket.socket, size: int) -> None:
    """Limit the kernel's send and receive buffers to ``size`` bytes each.

    If the socket is a listening socket, the limit applies to each connection that it accepts.
    """
    for option in socket.SO_RCVBUF, socket.SO_SNDBUF:
        with suppress(OSError):
            own.setsockopt(socket.SOL_SOCKET, option, size)


def handler_of(client: Client) -> ConnectionHandler | None:
    """Return the handler of a client's connection, or None if the connection is closed."""
    server = ctx.master.addons.get("proxyserver")  # type: ignore[no-untyped-call]
    handler: ConnectionHandler | None = server.connections.get(client.id) if server is not None else None
    return handler


def writer_of(client: Client, connection: Connection | None = None) -> asyncio.StreamWriter | None:
    """Return the writer of a client's connection. Return None if the connection is closed or is not a stream.

    If ``connection`` is a connection to a backend that was opened for the client, return the writer of that connection.
    """
    handler = handler_of(client)
    io = handler.transports.get(connection or client) if handler is not None else None
    return io.writer if io is not None and isinstance(io.writer, asyncio.StreamWriter) else None
