"""The evaluation's own mitmdump."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from toolsim.eval.proxy_process import ProxyFailed, proxies


@pytest.mark.slow
async def test_it_serves_the_path_of_the_target_and_goes_away() -> None:
    """One proxy per user and options, started once; nothing is left afterwards."""
    async with proxies("http://127.0.0.1:9/api/v1") as started:
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
async def test_a_bad_option_is_reported_with_the_log(tmp_path: Path) -> None:
    """The message holds what mitmdump logged."""
    async with proxies("http://127.0.0.1:9/v1", flows=tmp_path) as started:
        with pytest.raises(ProxyFailed, match="toolsim_repair"):
            await started.get("m", ("toolsim_repair=perhaps",))
