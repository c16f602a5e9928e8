"""The registry of facts about backends, and the limits on the probes that establish these facts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from mitmproxy.test import taddons
from toolsim.proxy import backend_registry
from toolsim.proxy.backend_registry import Backend, BackendRegistry, Root
from toolsim.wire.apis import CHAT, MESSAGES, RESPONSES


def test_backend_is_identified_by_address_and_path() -> None:
    """All APIs and API versions at one base path belong to the same backend. A different base path or port denotes
    another backend.
    """
    backends = BackendRegistry()
    one = backends.at("http", "h", 1, "/v1")
    assert one.root == Root("http", "h", 1, "")
    assert backends.at("http", "h", 1) is one
    assert backends.at("http", "h", 2, "/v1") is not one
    assert backends.at("http", "h", 1, "/gateway/v1").root.path == "/gateway"


def test_page_urls_are_relative_to_the_root() -> None:
    """The URL of a page is relative to the backend's root, and an IPv6 address is enclosed in brackets."""
    assert Root("https", "h", 443, "/gateway").url("/props") == "https://h:443/gateway/props"
    assert Root("http", "::1", 80).url("/props") == "http://[::1]:80/props"


def test_stale_backend_is_forgotten() -> None:
    """The facts about a stale backend are dropped. If another backend has been registered at the same address in the
    meantime, the facts about the new backend are kept.
    """
    backends = BackendRegistry()
    old = backends.at("http", "h", 1)
    old.refuses("m", "tools")
    old.mark_stale()
    new = backends.at("http", "h", 1)
    assert new.refused == set()
    old.mark_stale()
    assert backends.at("http", "h", 1) is new


def test_rejected_api_is_tried_last_for_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For ten minutes after a backend has rejected an API, that API is tried last, but never omitted. A new server at
    the same address starts without rejections.
    """
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    backend = Backend(Root("http", "h", 1), is_named=True)
    assert backend.apis_for(RESPONSES, "auto") == ("responses", "chat", "messages")
    assert backend.apis_for(MESSAGES, "auto") == backend.apis_for(CHAT, "auto") == ("chat", "responses", "messages")
    backend.has("chat", ["responses"])
    for clock[0], first in ((1599.9, "chat"), (1600.1, "responses")):
        assert backend.apis_for(RESPONSES, "auto")[0] == first
    backend.has("messages", ["responses", "chat"])
    assert backend.apis_for(RESPONSES, "auto") == ("messages", "responses", "chat")
    backend.mark_stale()
    backend.is_now("vllm")
    assert backend.apis_for(RESPONSES, "auto")[0] == "responses"


def test_apis_are_tried_only_at_configured_backends() -> None:
    """APIs other than the client's are tried only if the operator configured the backend without specifying its API."""
    backend = Backend(Root("http", "h", 1))
    assert backend.apis_for(RESPONSES, "auto") == ("responses",)
    backend.is_named = True
    assert backend.apis_for(RESPONSES, "chat") == ("chat",)


def test_unreachable_backend_keeps_its_engine() -> None:
    """The engine of an unreachable backend remains known. The intervals between probes grow until the backend has been
    reachable for some time.
    """
    backends, now, asked = BackendRegistry(), 0.0, []
    backend = backends.at("http", "h", 1)
    assert backend.may_be_asked(now)
    backend.is_now("vllm")
    assert not backend.may_be_asked(10_000.0)
    while now < 20_000.0:
        now += 1.0
        backend.mark_stale()
        if backends.at("http", "h", 1).may_be_asked(now):
            asked.append(now)
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses[:4] == [10.0, 20.0, 40.0, 80.0]
    assert pauses == sorted(pauses)
    assert max(pauses) == backend_registry.MAX_REST_SECONDS
    assert backend.engine == "vllm"
    assert backend.may_be_asked(now + 5 * backend_registry.MAX_REST_SECONDS)
    assert backend.rest == backend_registry.REST_SECONDS


def test_memory_is_bounded() -> None:
    """The number of remembered backends is limited, as is the number of refusals per backend, because clients choose
    addresses and models.
    """
    backends = BackendRegistry()
    first = backends.at("http", "h", 0)
    for port in range(1, backend_registry._MAX_BACKENDS + 1):
        backends.at("http", "h", port)
    assert backends.at("http", "h", 0) is not first
    for number in range(backend_registry._MAX_REFUSED * 2):
        first.refuses(f"m{number}", "tools")
        assert len(first.refused) <= backend_registry._MAX_REFUSED


# -- probes --

VLLM = {"/version": b'{"version": "0.11.0"}'}


class Pages:
    """A server with the given pages, which returns 404 for all other paths. If ``hangs`` is true, it never answers."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        self.pages = pages
        self.hangs = False
        self.asked: list[bytes] = []
        self.port = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head)
            if self.hangs:
                await reader.read()
            page = self.pages.get(head.split()[1].decode())
            status = b"404 Not Found" if page is None else b"200 OK"
            writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(page or b"")) + (page or b""))
            await writer.drain()
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def serve(pages: dict[str, bytes]) -> AsyncIterator[Pages]:
    served = Pages(pages)
    server = await asyncio.start_server(served.connected, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()


@pytest.fixture
async def backends() -> AsyncIterator[BackendRegistry]:
    backends = BackendRegistry()
    with taddons.context():
        yield backends
    backends.stop()
    await settled(backends)


async def first_hook(backends: BackendRegistry, backend: Backend, key: str = "") -> None:
    """Query the registry as the first hook of a request does."""
    if (answered := backends.ask(backend, key)) is not None:
        await answered


async def settled(backends: BackendRegistry) -> None:
    while tasks := backends.tasks():
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


async def test_first_request_waits_for_the_probe(backends: BackendRegistry) -> None:
    """The first request waits for the result of the probe. Later requests do not probe the backend again."""
    async with serve(VLLM) as pages:
        backend = backends.at("http", "127.0.0.1", pages.port, "/v1")
        await first_hook(backends, backend)
        assert backend.engine == "vllm"
        await settled(backends)
        asked = len(pages.asked)
        await first_hook(backends, backend)
        assert len(pages.asked) == asked
        assert all(head.startswith(b"GET ") for head in pages.asked)


async def test_unknown_server_is_probed_once(backends: BackendRegistry) -> None:
    """A server that runs unknown software is recorded as "unknown" and is not probed again."""
    async with serve({"/version": b"[" * 100_000}) as pages:
        backend = backends.at("http", "127.0.0.1", pages.port)
        await first_hook(backends, backend)
        await settled(backends)
        assert backend.engine == "unknown"


async def test_ollama_is_recognized_below_api(backends: BackendRegistry) -> None:
    """A version page at /api/version identifies Ollama, even though the same page at /version identifies vLLM."""
    async with serve({"/api/version": b'{"version": "0.13.5"}'}) as pages:
        backend = backends.at("http", "127.0.0.1", pages.port, "/api")
        await first_hook(backends, backend)
        await settled(backends)
        assert backend.engine == "ollama"


async def test_hanging_server_delays_only_the_first_request(
    backends: BackendRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request waits briefly for a hanging server. Later requests do not wait, and the probe is retried."""
    monkeypatch.setattr(backend_registry, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(backend_registry, "PROBE_SECONDS", 0.2)
    async with serve(VLLM) as pages:
        pages.hangs = True
        backend = backends.at("http", "127.0.0.1", pages.port)
        async with asyncio.timeout(2):
            await first_hook(backends, backend)
        assert backend.engine is None
        asking = backend.asking
        assert asking is not None
        await first_hook(backends, backend)
        assert backend.asking is asking
        await settled(backends)
        assert asking.exception() is None
        pages.hangs = False
        await first_hook(backends, backend)
        assert backend.asking is None
        backend.rest = 0.0
        await first_hook(backends, backend)
        await settled(backends)
        assert backend.engine == "vllm"


async def test_closed_port_leaves_the_engine_undetermined(backends: BackendRegistry) -> None:
    """If the backend's port is closed, the engine remains undetermined."""
    async with serve(VLLM) as pages:
        backend = backends.at("http", "127.0.0.1", pages.port)
    await first_hook(backends, backend)
    await settled(backends)
    assert backend.engine is None


@pytest.mark.parametrize("key", ["", "sk-upstream"])
async def test_probe_sends_the_operators_key(key: str, backends: BackendRegistry) -> None:
    """A probe sends the operator's key for the backend, but never the client's key."""
    async with serve({}) as pages:
        await first_hook(backends, backends.at("http", "127.0.0.1", pages.port), key)
        await settled(backends)
        assert pages.asked
        for head in pages.asked:
            assert b"sk-client" not in head
            assert (b"Bearer sk-upstream" in head) == bool(key)


async def test_repeatedly_failing_server_keeps_its_facts(backends: BackendRegistry) -> None:
    """The facts about a server that fails repeatedly are kept, without further probes, until another server replaces
    it.
    """
    async with serve(VLLM) as pages:
        backend = backends.at("http", "127.0.0.1", pages.port)
        await first_hook(backends, backend)
        await settled(backends)
        asked = len(pages.asked)
        backend.refuses("m", "tools")
        for _ in range(50):
            backend.mark_stale()
            backend = backends.at("http", "127.0.0.1", pages.port)
            await first_hook(backends, backend)
            await settled(backends)
            assert (backend.engine, backend.refused) == ("vllm", {("m", "tools")})
        assert len(pages.asked) == asked
        backend.asked_at = -1_000.0
        await first_hook(backends, backend)
        await settled(backends)
        assert len(pages.asked) > asked
        assert (backend.engine, backend.is_stale, backend.refused) == ("vllm", False, set())
