"""Tests for the mitmdump processes that an evaluation starts."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest
from toolsim.eval import proxy_process
from toolsim.eval.proxy_process import Proxies, Proxy
from toolsim.recordings.child import StartFailed


@pytest.mark.slow
async def test_proxy_serves_the_target_path() -> None:
    """A proxy is started only once for the same user and options. Its base URL has the same path as the target URL.
    When the proxy stops, its folder is removed.
    """
    async with aclosing(Proxies("http://127.0.0.1:9/api/v1")) as started:
        proxy = await started.get("m", ("toolsim_repair=off",))
        assert await started.get("m", ("toolsim_repair=off",)) is proxy
        assert proxy.base_url.endswith("/api/v1")
        metrics = proxy.base_url.removesuffix("/api/v1") + "/toolsim/metrics"
        async with httpx.AsyncClient() as client:
            assert "toolsim_exchanges_in_progress" in (await client.get(metrics)).text
    with pytest.raises(httpx.ConnectError):
        httpx.get(metrics)
    assert not proxy.captures.exists()


@pytest.mark.slow
async def test_invalid_option_is_reported_with_the_log(tmp_path: Path) -> None:
    """If an option is invalid, the error quotes the relevant lines of mitmdump's log."""
    async with aclosing(Proxies("http://127.0.0.1:9/v1", flows=tmp_path)) as started:
        with pytest.raises(StartFailed, match="toolsim_repair"):
            await started.get("m", ("toolsim_repair=perhaps",))


@pytest.mark.slow
async def test_explicit_log_option_replaces_the_default() -> None:
    """If the user sets a log option, the evaluation does not set that option itself, because mitmproxy rejects
    duplicate options.
    """
    async with aclosing(Proxies("http://127.0.0.1:9/v1")) as started:
        assert (await started.get("m", ("toolsim_log=text", "toolsim_profiles=off"))).base_url


async def test_canceled_start_stops_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened = []

    class SlowChild:
        port = 1

        def __init__(self, *_: object) -> None:
            happened.append("begins")
            time.sleep(0.1)
            happened.append("runs")

        def stop(self) -> None:
            happened.append("stopped")

    monkeypatch.setattr(proxy_process, "Child", SlowChild)
    starting = asyncio.create_task(Proxy.start("http://127.0.0.1:9/v1", (), tmp_path / "proxy"))
    while not happened:
        await asyncio.sleep(0.001)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert happened == ["begins", "runs", "stopped"]
