"""The built-in backends: which one runs, and who reaches it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
from mitmproxy.exceptions import OptionsError
from mitmproxy.test import tflow
from toolsimlib.backends.loopback import TOKEN, Loopback
from toolsimlib.proxy.builtin import BuiltinBackend, check_listeners
from toolsimlib.proxy.settings import Settings


@pytest.fixture
async def builtin() -> AsyncIterator[BuiltinBackend]:
    builtin = BuiltinBackend()
    await builtin.start(Settings(builtin="scripted"))
    yield builtin
    await builtin.stop()


async def test_its_life(builtin: BuiltinBackend) -> None:
    """It listens on a port of its own while it runs; only settings that concern it start it anew."""
    port = builtin.port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port)):
        pass
    builtin.update(Settings(builtin="scripted", api_key="k"))
    assert builtin.port == port
    await builtin.start(Settings())
    assert builtin.port is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_port_that_is_taken(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A port that cannot be bound is an error in the log, and the backend is not up."""

    async def start(self: Loopback) -> None:
        raise OSError("address in use")

    monkeypatch.setattr(Loopback, "start", start)
    builtin = BuiltinBackend()
    await builtin.start(Settings(builtin="scripted"))
    assert builtin.port is None
    assert "cannot serve its scripted backend: address in use" in caplog.text


PEERS = [
    ("127.0.0.1", True, False),
    ("10.0.0.9", True, True),
    ("10.0.0.9", False, False),
    ("::ffff:127.0.0.1", True, False),
]


@pytest.mark.parametrize(("peer", "to_its_port", "refused"), PEERS)
async def test_tunnels(peer: str, to_its_port: bool, refused: bool, builtin: BuiltinBackend) -> None:
    """No other machine reaches its port through the proxy, by whatever name, unless it was let in before."""
    flow = tflow.tflow()
    client = flow.client_conn
    client.peername = (peer, 1234)
    assert builtin.port is not None
    address = ("rebound.example", builtin.port if to_its_port else 80)
    assert builtin.may_connect(client, address) is not refused
    builtin.admit(flow)
    assert flow.request.headers[TOKEN]
    assert builtin.may_connect(client, address)
    builtin.forget(client)
    assert builtin.may_connect(client, address) is not refused


HOSTS = [
    ("127.0.0.1", "", True),
    ("", "", True),
    ("0.0.0.0", "", False),
    ("192.168.1.5", "", False),
    ("0.0.0.0", "k", True),
]


@pytest.mark.parametrize(("host", "key", "allowed"), HOSTS)
def test_codex_on_an_address(host: str, key: str, allowed: bool) -> None:
    """The codex backend on an address that others can reach needs a key."""
    settings = Settings(builtin="codex", api_key=key)
    if allowed:
        check_listeners(settings, [host])
    else:
        with pytest.raises(OptionsError, match="toolsim_api_key"):
            check_listeners(settings, [host])
    check_listeners(Settings(builtin="scripted"), [host])
