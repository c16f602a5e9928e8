"""The readiness page for load balancers: its content, and the connections to the backend that its checks open."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import tflow
from support.ports import free_port
from toolsim.proxy import readiness
from toolsim.proxy.background import Background, Parts
from toolsim.proxy.builtin import BuiltinBackend
from toolsim.proxy.drain import Drain
from toolsim.proxy.exchange import Exchanges
from toolsim.proxy.jobs import Job, JobResult, run
from toolsim.proxy.mcp_servers import Servers
from toolsim.proxy.options.models_file import ModelsFile
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.readiness import Readiness
from toolsim.proxy.response_store import ResponseStore
from toolsim.proxy.rounds import Rounds
from toolsim.proxy.upgrades import Sockets
from toolsim.stores.record import StoreError
from toolsim.stores.url import StoreUrl


async def do[R: JobResult](job: Job[R]) -> R:
    return run(job)


class Page:
    """The readiness page of a proxy whose backend is a real listener that counts its connections."""

    def __init__(
        self, builtin: str | None = None, store: StoreUrl | None = None, models: ModelsFile | None = None
    ) -> None:
        self.memory = ResponseStore()
        rounds = Rounds(10)
        background = Background(Parts(self.memory, rounds, Servers(), do, lambda *_: None))
        drain = Drain(Exchanges(), rounds, background, Sockets(lambda: False, do))
        settings = Settings(builtin=builtin, store=store, models=models)
        self.readiness = Readiness(settings, BuiltinBackend(), self.memory, drain)
        self.connections = 0

    async def ask(self, mode: str) -> tuple[int, dict[str, Any]]:
        flow = tflow.tflow()
        flow.client_conn.proxy_mode = ProxyMode.parse(mode)
        response = await self.readiness.ready(flow)
        return response.status_code, json.loads(response.content or b"")

    async def listen(self) -> asyncio.Server:
        def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            writer.close()

        return await asyncio.start_server(connected, "127.0.0.1", 0)


async def test_readiness_checks_share_a_connection() -> None:
    """Many readiness checks share one connection to the backend. The result is reused for a short time."""
    page = Page()
    async with await page.listen() as server:
        mode = f"reverse:http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        answers = await asyncio.gather(*(page.ask(mode) for _ in range(20)))
        assert {status for status, _ in answers} == {200}
        assert answers[0][1] == {"ready": True, "backend": "reachable", "store": "none", "draining": False}
        await page.ask(mode)
        await asyncio.sleep(0.05)
        assert page.connections == 1


async def test_readiness_follows_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy is not ready while its backend is unreachable, and becomes ready when the backend is reachable."""
    monkeypatch.setattr(readiness, "FRESH_SECONDS", 0)
    page, port = Page(), free_port()
    mode = f"reverse:http://127.0.0.1:{port}"
    assert await page.ask(mode) == (
        503,
        {"ready": False, "backend": "unreachable", "store": "none", "draining": False},
    )
    async with await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", port):
        assert (await page.ask(mode))[0] == 200


@pytest.mark.parametrize("is_required", [False, True])
async def test_required_store_affects_readiness(monkeypatch: pytest.MonkeyPatch, is_required: bool) -> None:
    """An unreachable store makes the proxy unready only if the operator has marked the store as required."""
    monkeypatch.setattr(readiness, "FRESH_SECONDS", 0)
    address = StoreUrl("memory", is_required=is_required)
    page = Page(store=address)
    assert await page.ask("regular") == (200, {"ready": True, "backend": "none", "store": "none", "draining": False})
    page.memory.configure(address)
    assert (await page.ask("regular"))[1]["store"] == "reachable"

    async def find(*_: object) -> None:
        raise StoreError("out")

    monkeypatch.setattr(page.memory, "find", find)
    assert await page.ask("regular") == (
        503 if is_required else 200,
        {"ready": not is_required, "backend": "none", "store": "unreachable", "draining": False},
    )
    monkeypatch.undo()
    await page.memory.close()


async def test_builtin_backend_must_have_started() -> None:
    """The proxy is not ready until its built-in backend has started."""
    status, found = await Page("scripted").ask("regular")
    assert (status, found["backend"]) == (503, "unreachable")


@pytest.mark.parametrize(("mode", "ready"), [("regular", "first"), ("reverse", "default"), ("regular", "")])
async def test_one_reachable_backend_is_enough(tmp_path: Path, mode: str, ready: str) -> None:
    """The proxy is ready if at least one of its backends is reachable."""
    async with await Page().listen() as server:
        up, down = server.sockets[0].getsockname()[1], free_port()
        file = tmp_path / "models.toml"
        ports = {"a": up if ready == "first" else down, "b": down}
        file.write_text("".join(f'[[models]]\nnames="{n}"\nurl="http://127.0.0.1:{p}"\n' for n, p in ports.items()))
        page = Page(models=ModelsFile(file, {}))
        status, found = await page.ask(f"reverse:http://127.0.0.1:{up}" if mode == "reverse" else "regular")
        assert (status, found["backend"]) == ((200, "reachable") if ready else (503, "unreachable"))
