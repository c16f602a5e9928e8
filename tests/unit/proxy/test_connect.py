"""Connections that loop back, and connections that take forever."""

from __future__ import annotations

import asyncio

import pytest
from mitmproxy.connection import Client, Server
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.test import taddons, tflow
from toolsimlib.proxy.addon import ToolSim
from toolsimlib.proxy.connect import Connections

LISTENER, OTHER_LISTENER = ("127.0.0.1", 8080), ("127.0.0.1", 8081)


def client(peer: tuple[str, int], listener: tuple[str, int] = LISTENER) -> Client:
    return Client(peername=peer, sockname=listener)


def server(sockname: tuple[str, int], to: tuple[str, int] = LISTENER) -> Server:
    made = tflow.tserver_conn()
    made.sockname, made.peername, made.tls = sockname, to, False
    return made


def test_a_request_that_comes_back() -> None:
    """A connection is recognised by the address it left from, while it is open, also through other listeners."""
    connections = Connections()
    outside, outgoing = client(("10.0.0.9", 1)), server(("127.0.0.1", 50000))
    assert not connections.is_circle(outside)
    connections.opened(outside, outgoing)
    assert connections.is_circle(client(("127.0.0.1", 50000)))
    assert not connections.is_circle(client(("127.0.0.1", 50001)))
    connections.opened(outside, server(("127.0.0.1", 50000), OTHER_LISTENER))
    between = client(("127.0.0.1", 50000), OTHER_LISTENER)
    assert not connections.is_circle(between)
    connections.opened(between, server(("127.0.0.1", 50002)))
    assert connections.is_circle(client(("127.0.0.1", 50002)))
    connections.closed(outgoing)
    assert not connections.is_circle(client(("127.0.0.1", 50000)))


def test_a_client_with_the_port_of_another_connection() -> None:
    """The system reuses a port for connections to different targets: only both ends together identify one."""
    connections = Connections()
    connections.opened(client(("10.0.0.9", 1)), server(("127.0.0.1", 50000), ("127.0.0.1", 11434)))
    assert not connections.is_circle(client(("127.0.0.1", 50000)))


def test_addresses_of_dual_stack_sockets() -> None:
    """An IPv4 connection may arrive at an IPv6 socket."""
    connections = Connections()
    connections.opened(client(("10.0.0.9", 1)), server(("127.0.0.1", 50000)))
    assert connections.is_circle(client(("::ffff:127.0.0.1", 50000), ("::ffff:127.0.0.1", 8080)))


async def test_a_connection_that_takes_too_long() -> None:
    """The connecting task is cancelled with a reason; one that has connected is left alone."""
    connections, slow, quick = Connections(), server(("127.0.0.1", 1)), server(("127.0.0.1", 2))

    async def connect(to: Server, *, succeeds: bool) -> None:
        connections.opening(to, 0.05)
        if succeeds:
            connections.opened(client(("10.0.0.9", 1)), to)
        await asyncio.sleep(0.2)

    with pytest.raises(asyncio.CancelledError, match="timed out"):
        await asyncio.create_task(connect(slow, succeeds=False))
    await asyncio.create_task(connect(quick, succeeds=True))


async def test_the_handshake_counts_too() -> None:
    """With TLS the clock runs until the handshake is done."""
    for over in (False, True):
        connections, secure = Connections(), server(("127.0.0.1", 1))
        secure.tls = True

        async def connect(connections: Connections = connections, secure: Server = secure, over: bool = over) -> None:
            connections.opening(secure, 0.05)
            connections.opened(client(("10.0.0.9", 1)), secure)
            if over:
                connections.secured(secure)
            await asyncio.sleep(0.2)

        task = asyncio.create_task(connect())
        await asyncio.wait([task])
        assert task.cancelled() is not over


async def test_no_limit() -> None:
    """0 waits as long as it takes."""
    connections, slow = Connections(), server(("127.0.0.1", 1))
    connections.opening(slow, 0)
    await asyncio.sleep(0.02)
    assert connections._timers == {}


async def test_mitmproxys_hooks() -> None:
    """The addon is loaded with toolsim's own, and takes its time limit from the option."""
    addon = ToolSim()
    with taddons.context(addon) as context:
        context.options.add_option("connection_strategy", str, "eager", "")
        context.configure(addon, toolsim_connect_timeout=7)
        connections, *_ = addon.addons
        assert context.master.addons.get("connections") is connections
        assert connections.timeout == 7
        data = ServerConnectionHookData(server(("127.0.0.1", 50000)), client(("10.0.0.9", 1)))
        await connections.server_connect(data)
        connections.server_connected(data)
        assert connections.is_circle(client(("127.0.0.1", 50000)))
        connections.server_disconnected(data)
        assert not connections.is_circle(client(("127.0.0.1", 50000)))
