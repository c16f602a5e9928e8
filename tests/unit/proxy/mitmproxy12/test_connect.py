"""The time limit for connections to a backend."""

from __future__ import annotations

import asyncio

import pytest
from mitmproxy.connection import Server
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.test import taddons, tflow
from mitmproxy.tls import TlsData
from toolsim.proxy.addon import ToolSim
from toolsim.proxy.mitmproxy12.connect import ConnectTimeout


def server(*, tls: bool = False) -> Server:
    made = tflow.tserver_conn()
    made.tls = tls
    return made


def data(to: Server) -> ServerConnectionHookData:
    return ServerConnectionHookData(to, tflow.tclient_conn())


def limit(seconds: float) -> ConnectTimeout:
    made = ConnectTimeout()
    made.seconds = seconds
    return made


async def connect(limited: ConnectTimeout, to: Server, *, succeeds: bool, handshakes: bool = False) -> None:
    await limited.server_connect(data(to))
    if succeeds:
        limited.server_connected(data(to))
    if handshakes:
        limited.tls_established_server(TlsData(to, tflow.tflow().client_conn))  # type: ignore[arg-type]
    await asyncio.sleep(0.2)


async def test_slow_connection_is_canceled() -> None:
    """A connection attempt that takes too long is canceled, with a timeout as the reason. Established connections are
    not affected.
    """
    limited = limit(0.05)
    with pytest.raises(asyncio.CancelledError, match="timed out"):
        await asyncio.create_task(connect(limited, server(), succeeds=False))
    await asyncio.create_task(connect(limited, server(), succeeds=True))


@pytest.mark.parametrize("over", [True, False])
async def test_handshake_counts_toward_the_limit(over: bool) -> None:
    """For a TLS connection, the time limit for connecting includes the handshake."""
    task = asyncio.create_task(connect(limit(0.05), server(tls=True), succeeds=True, handshakes=over))
    await asyncio.wait([task])
    assert task.cancelled() is not over


async def test_zero_disables_the_timeout() -> None:
    limited = limit(0)
    await limited.server_connect(data(server()))
    assert limited._timers == {}


async def test_timeout_follows_the_option() -> None:
    """The addon that enforces the timeout is loaded with toolsim, and uses the value of ``toolsim_connect_timeout``."""
    addon = ToolSim()
    with taddons.context(addon) as context:
        context.options.add_option("connection_strategy", str, "eager", "")
        context.configure(addon, toolsim_connect_timeout=7)
        assert context.master.addons.get("connecttimeout").seconds == 7
