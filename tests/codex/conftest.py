"""Fixtures: the real Codex app-server with a stub model, behind the loopback server."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import programs
from support.stub_model import StubModel
from toolsim.backends.codex.backend import CodexBackend
from toolsim.backends.loopback import Loopback


class Stage:
    """A stub model, a Codex backend that uses it, and a client of the loopback server."""

    def __init__(self, stub: StubModel, loopback: Loopback, client: httpx.AsyncClient, home: Path) -> None:
        self.stub = stub
        self.loopback = loopback
        self.client = client
        self.home = home

    async def post(self, **body: Any) -> httpx.Response:
        return await self.client.post("/v1/responses", json=body)

    async def text(self, prompt: Any, **body: Any) -> str:
        answer = await self.post(input=prompt, **body)
        assert answer.status_code == 200, answer.text
        items = answer.json()["output"]
        return "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])

    @property
    def child(self) -> Any:
        """The running Codex child process."""
        return self.loopback.backend._server._child  # type: ignore[attr-defined]

    @property
    def pid(self) -> int:
        return int(self.child.pid)


@pytest.fixture
def codex() -> str:
    binary = programs.codex()
    if binary is None:
        pytest.skip("needs codex (make test-clients, or CODEX_BIN)")
    return binary


@pytest.fixture
async def stage(codex: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """A stub model, Codex and a client. In Codex's configuration, the stub is the only model."""
    stub = StubModel()
    await stub.start()
    home = tmp_path / "home"
    stub.write_config(home)
    monkeypatch.setenv("CODEX_HOME", str(home))
    loopback = Loopback(CodexBackend((codex, "app-server")), is_open=True)
    await loopback.start()
    url = f"http://127.0.0.1:{loopback.port}"
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        yield Stage(stub, loopback, client, home)
    await loopback.stop()
    await stub.stop()
