"""The built-in backends: startup, ports, and admission of requests."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import tflow
from toolsim.backends.loopback import FLOW, Loopback
from toolsim.proxy.builtin import BuiltinBackend
from toolsim.proxy.options.settings import Settings


@pytest.fixture
async def builtin() -> AsyncIterator[BuiltinBackend]:
    builtin = BuiltinBackend()
    await builtin.start(Settings(builtin="scripted"))
    yield builtin
    await builtin.stop()


async def test_backend_restarts_only_if_its_settings_change(builtin: BuiltinBackend) -> None:
    """A built-in backend listens on a separate port, and restarts only if its own settings change."""
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


async def test_port_in_use_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """If the built-in backend's port cannot be bound, an error is logged, and the backend is not available."""

    async def start(self: Loopback) -> None:
        raise OSError("address in use")

    monkeypatch.setattr(Loopback, "start", start)
    builtin = BuiltinBackend()
    await builtin.start(Settings(builtin="scripted"))
    assert builtin.port is None
    assert "cannot start its scripted backend: address in use" in caplog.text


@pytest.mark.parametrize(
    ("backend", "mode", "line"),
    [
        (
            "scripted",
            "regular",
            "the scripted backend answers requests to this listener at /v1 (internal address 127.0.0.1:{port})",
        ),
        ("codex", "regular", "requests to this listener at /v1 go to the codex backend on 127.0.0.1:{port}"),
        (
            "scripted",
            "reverse:http://127.0.0.1:1",
            "the scripted backend receives no requests, because the reverse mode sends them to http://127.0.0.1:1: ",
        ),
    ],
)
async def test_log_mentions_the_builtin_backend(
    backend: Any, mode: str, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log states how requests reach the built-in backend, or why the backend receives no requests."""
    caplog.set_level(logging.INFO)
    builtin = BuiltinBackend()
    await builtin.start(Settings(builtin=backend, codex_command=("no-such-codex",)), [ProxyMode.parse(mode)])
    port = builtin.port
    await builtin.stop()
    [logged] = [text for record in caplog.records if (text := record.getMessage()).startswith("toolsim: ")]
    assert logged.startswith(f"toolsim: {line.format(port=port)}")


async def test_request_is_admitted_once(builtin: BuiltinBackend) -> None:
    """The built-in backend answers only requests that the proxy has admitted by adding a header, and answers each of
    them only once.
    """
    assert builtin.port is not None
    async with httpx.AsyncClient(trust_env=False) as client:
        url = f"http://127.0.0.1:{builtin.port}/v1/models"
        assert (await client.get(url)).status_code == 403
        flow = tflow.tflow()
        builtin.admit(flow)
        admitted = {FLOW: flow.request.headers[FLOW]}
        rebound = admitted | {"host": f"rebound.example:{builtin.port}"}
        assert (await client.get(url, headers=rebound)).status_code == 403
        assert (await client.get(url, headers=admitted)).status_code == 200
        assert (await client.get(url, headers=admitted)).status_code == 403
        builtin.admit(flow)
        builtin.forget(flow.id)
        assert (await client.get(url, headers=admitted)).status_code == 403
