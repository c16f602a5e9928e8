"""Finds what writes to a client or a backend, and bounds what is sent to a client that reads nothing.

The system would take megabytes, which it costs us to make.

The bound is one of bytes that wait to be sent. Those on their way, which depend on how far away the client is, do not
count: so nobody gets less for it.

Relies on this internal of mitmproxy 12.2: ``Proxyserver.connections`` has the handler of each client, and its
``transports`` the writer.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from mitmproxy import ctx
from mitmproxy.connection import Client, Connection

UNSENT_BYTES = 128 * 1024
"""How many bytes wait for a client before what makes them is paused."""


class Unread:
    """An addon that bounds what waits for each client. The system's default applies where it has no such option."""

    def client_connected(self, client: Client) -> None:
        """Set the bound of one connection."""
        writer = writer_of(client)
        own = writer.get_extra_info("socket") if writer is not None else None
        if own is not None and client.transport_protocol == "tcp":
            with suppress(AttributeError, OSError):
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def bound_buffers(own: socket.socket, size: int) -> None:
    """Bound what the kernel buffers, each way, for a connection, or for all that a listening socket accepts."""
    for option in socket.SO_RCVBUF, socket.SO_SNDBUF:
        with suppress(OSError):
            own.setsockopt(socket.SOL_SOCKET, option, size)


def writer_of(client: Client, connection: Connection | None = None) -> asyncio.StreamWriter | None:
    """Return what writes to a client, or to another ``connection`` that is open for it; None if that is closed."""
    server = ctx.master.addons.get("proxyserver")  # type: ignore[no-untyped-call]
    handler = server.connections.get(client.id) if server is not None else None
    io = handler.transports.get(connection or client) if handler is not None else None
    return io.writer if io is not None and isinstance(io.writer, asyncio.StreamWriter) else None
