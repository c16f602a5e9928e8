"""Probing backends: which are asked, how often, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from mitmproxy.test import taddons
from toolsimlib.proxy import recognise
from toolsimlib.proxy.known import Backend, KnownBackends
from toolsimlib.proxy.recognise import Recogniser

VLLM = {"/version": b'{"version": "0.11.0"}'}


class Pages:
    """A server of pages by path; all others are 404. ``hangs``: it accepts requests and never answers."""

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
def known() -> KnownBackends:
    return KnownBackends()


@pytest.fixture
async def recogniser(known: KnownBackends) -> AsyncIterator[Recogniser]:
    recogniser = Recogniser(known)
    recogniser.is_open = True
    with taddons.context():
        yield recogniser
    recogniser.stop()
    await settled(known)


async def first_hook(recogniser: Recogniser, backend: Backend) -> None:
    """Do what the first hook of a request does."""
    if (answered := recogniser.ask(backend)) is not None:
        await answered


async def settled(known: KnownBackends) -> None:
    while tasks := known.tasks():
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


async def test_the_first_request_waits_for_the_answer(known: KnownBackends, recogniser: Recogniser) -> None:
    """After that it is known, and not asked again."""
    async with serve(VLLM) as pages:
        backend = known.at("http", "127.0.0.1", pages.port, "/v1")
        await first_hook(recogniser, backend)
        assert backend.engine == "vllm"
        await settled(known)
        asked = len(pages.asked)
        await first_hook(recogniser, backend)
        assert len(pages.asked) == asked
        assert all(head.startswith(b"GET ") for head in pages.asked)


async def test_a_server_that_is_none_of_them(known: KnownBackends, recogniser: Recogniser) -> None:
    """Unknown counts as an answer: it is not asked again."""
    async with serve({"/version": b"[" * 100_000}) as pages:
        backend = known.at("http", "127.0.0.1", pages.port)
        await first_hook(recogniser, backend)
        await settled(known)
        assert backend.engine == "unknown"


async def test_a_server_that_hangs(
    known: KnownBackends, recogniser: Recogniser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request waits a bounded time and the others not at all; after a rest, the server is asked again."""
    monkeypatch.setattr(recognise, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(recognise, "PROBE_SECONDS", 0.2)
    async with serve(VLLM) as pages:
        pages.hangs = True
        backend = known.at("http", "127.0.0.1", pages.port)
        async with asyncio.timeout(2):
            await first_hook(recogniser, backend)
        assert backend.engine is None
        asking = backend.asking
        assert asking is not None
        await first_hook(recogniser, backend)
        assert backend.asking is asking
        await settled(known)
        assert asking.exception() is None
        pages.hangs = False
        await first_hook(recogniser, backend)
        assert backend.asking is None
        backend.rest = 0.0
        await first_hook(recogniser, backend)
        await settled(known)
        assert backend.engine == "vllm"


async def test_nobody_there(known: KnownBackends, recogniser: Recogniser) -> None:
    """A closed port decides nothing."""
    async with serve(VLLM) as pages:
        backend = known.at("http", "127.0.0.1", pages.port)
    await first_hook(recogniser, backend)
    await settled(known)
    assert backend.engine is None


async def test_one_whose_engine_was_set_is_not_asked(known: KnownBackends, recogniser: Recogniser) -> None:
    async with serve(VLLM) as pages:
        backend = known.at("http", "127.0.0.1", pages.port)
        recogniser.is_open = False
        await first_hook(recogniser, backend)
        assert (backend.asking, pages.asked) == (None, [])


@pytest.mark.parametrize("key", ["", "sk-upstream"])
async def test_the_key(key: str, known: KnownBackends, recogniser: Recogniser) -> None:
    """The operator's key for the backend is sent, and none of the client's."""
    recogniser.key = key
    async with serve({}) as pages:
        await first_hook(recogniser, known.at("http", "127.0.0.1", pages.port))
        await settled(known)
        assert pages.asked
        for head in pages.asked:
            assert b"sk-client" not in head
            assert (b"Bearer sk-upstream" in head) == bool(key)


async def test_a_server_that_dies_again_and_again(known: KnownBackends, recogniser: Recogniser) -> None:
    """It stays what it was, and is not asked more for struggling; once another server answers, it is that one."""
    async with serve(VLLM) as pages:
        backend = known.at("http", "127.0.0.1", pages.port)
        await first_hook(recogniser, backend)
        await settled(known)
        asked = len(pages.asked)
        backend.refuses("m", "tools")
        for _ in range(50):
            backend.doubt()
            backend = known.at("http", "127.0.0.1", pages.port)
            await first_hook(recogniser, backend)
            await settled(known)
            assert (backend.engine, backend.refused) == ("vllm", {("m", "tools")})
        assert len(pages.asked) == asked
        backend.asked_at = -1_000.0
        await first_hook(recogniser, backend)
        await settled(known)
        assert len(pages.asked) > asked
        assert (backend.engine, backend.is_doubtful, backend.refused) == ("vllm", False, set())
