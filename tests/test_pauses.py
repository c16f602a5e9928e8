"""Tests for loops over data from a client or server. Such a loop can block the event loop, so it must pause.

Awaiting data that has already arrived does not suspend the coroutine, so a loop that only awaits can still block
others.

1. All loops in the proxy that await are found by their syntax. Each of them pauses, or is listed in ``WITHOUT`` with
   the reason why it cannot block the event loop.
2. The pauses are tested with a time slice of zero, in which case a loop must pause after every item.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, override

import httpx2
import pytest
from support.mitmdump import ROOT
from toolsim.backends.loopback import Loopback
from toolsim.backends.text_backend import TextBackend
from toolsim.core import time_slice
from toolsim.core.conversation import ClientRequest
from toolsim.core.errors import ApiError
from toolsim.core.events import BackendEvent, Closed, Opened, TextDelta
from toolsim.mcp.stdio import lines_of
from toolsim.mcp.web import Bounded
from toolsim.proxy.backend_registry import page_client
from toolsim.rounds.runner import TOKEN
from toolsim.rounds.server import RunnerServer

PACKAGE = ROOT / "addon" / "toolsim"
NOT_IN_THE_PROXY = ("cli", "eval", "recordings")
PAUSES = ("yield_to_others(", "asyncio.sleep(")
COUNT = 300

WITHOUT = {
    # Each iteration waits for data that does not exist yet.
    "backends/codex/server.py::child": "for the child's start",
    "backends/codex/server.py::_cancel_and_wait": "for the end of a task",
    "background/runs.py::_renew": "for seconds, or for a change of its own",
    "proxy/prose_fallback.py::whole": "it takes all events that have arrived, at most 32 (Load)",
    # toolsim alone determines the number of iterations.
    "background/background_store.py::end": "MAX_TRIES",
    "background/background_store.py::_replace": "only another proxy's write repeats it",
    "background/endpoints.py::_current": "MAX_TRIES",
    "mcp/connection.py::_listed": "_MAX_PAGES, and each page is a request",
    "mcp/stdio.py::end": "three steps",
    "mcp/stdio.py::_speak": "requests of ours",
    "proxy/backend_registry.py::_recognise": "PROBES",
    "proxy/mcp_servers.py::_first_asked": "one server",
    "proxy/mitmproxy12/guarded.py::_end": "the streams of one connection",
    "proxy/model_list.py::_models": "one list",
    "proxy/reporting/startup_banner.py::_other_place": "the APIs and usual addresses",
    "proxy/response_store.py::serve": "MAX_TRIES",
    "proxy/response_store.py::forget": "the ids of one answer",
    "proxy/mitmproxy12/internal_flow.py::run": "waits for a second, unless the flow has ended",
    "proxy/response_store.py::_add": "MAX_TRIES",
    "rounds/hosted_calls.py::prepare": "the decisions in a request of at most 1 MiB (rounds)",
    "rounds/hosted_calls.py::run": "the calls of a round, which are limited",
    "rounds/opinion.py::evaluate": "the calls of a round, which are limited",
    "rounds/runner.py::events": "MAX_ROUNDS; their events as in _ask",
    "stores/sqlite.py::close": "the connections of one store",
    # The data comes from a queue or buffer of limited size, or from one that is filled in slices.
    "mcp/stdio.py::_listen": "lines_of pauses; what is left at the end is dropped, in pieces of 64 KiB",
    "mcp/stdio.py::_last_words": "pieces of 64 KiB, of which 2,000 bytes are kept",
    "proxy/prose_fallback.py::ask": "as in _ask of rounds",
    "proxy/prose_fallback.py::_follow": "32 events (Load), then it waits until they are taken",
    "proxy/rounds.py::_ask": "the events of one slice: the answer of the round is rewritten in slices",
    "rounds/opinion.py::_verdict": "as in _ask of rounds; only words are kept",
    "rounds/runner.py::follow": "32 events (Load), then it waits until they are taken",
    "sockets/requests.py::parts": "MAX_UNREAD_BYTES, and _deliver pauses",
    "backends/loopback.py::_write_all": "the frames of one event, between which it does not pause",
    "sockets/server.py::_send": "the messages of one event",
    "sockets/websocket.py::upgrade": "the head of a request, which h11 limits",
    "sockets/websocket.py::_discard": "pieces of 64 KiB of a buffer of twice that, dropped",
    # The producer or the consumer of the data pauses.
    "backends/codex/backend.py::answer": "_write_all of the loopback",
    "backends/local.py::answer": "_write_all of the loopback",
    "background/event_log.py::follow": "answer of rounds/server.py",
    "background/runs.py::_answer": "with_keepalives",
    "rounds/server.py::_failing": "with_keepalives",
    "rounds/server.py::_write": "with_keepalives",
    "sockets/connection.py::_answer": "_deliver",
    "sockets/server.py::_receive": "messages of websocket.py",
}
"""The functions whose loops need no pause, each with the reason."""


def parts_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the descendants of a node, except those within nested functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from parts_of(child)


def loops() -> Iterator[tuple[str, str]]:
    """Yield the function name and the code of each loop that awaits."""
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE)
        if name.parts[0] in NOT_IN_THE_PROXY:
            continue
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.AsyncFunctionDef):
                for node in parts_of(function):
                    awaits = any(isinstance(part, ast.Await) for part in parts_of(node))
                    is_plain = isinstance(node, ast.For | ast.While | ast.ListComp | ast.DictComp | ast.GeneratorExp)
                    is_async = isinstance(node, ast.AsyncFor) or (
                        isinstance(node, ast.comprehension) and bool(node.is_async)
                    )
                    if is_async or (is_plain and awaits):
                        yield f"{name.as_posix()}::{function.name}", ast.unparse(node)


def test_every_awaiting_loop_pauses() -> None:
    """Each loop in the proxy that awaits also pauses, unless it is listed as unable to block the event loop."""
    found = {place for place, code in loops() if not any(pause in code for pause in PAUSES)}
    assert found == WITHOUT.keys()


@pytest.fixture(autouse=True)
def no_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slice, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(time_slice, "PAUSE_SECONDS", 0.0)


class Counted:
    """Counts how many items have been handled."""

    def __init__(self) -> None:
        self.count = 0

    async def each(self, made: Callable[[], Any]) -> AsyncGenerator[Any]:
        """Yield items without ever suspending."""
        for _ in range(COUNT):
            self.count += 1
            yield made()

    async def together(self, work: Any) -> int:
        """Await ``work``; return the maximum number of items handled in one iteration of the event loop."""
        task, counts = asyncio.ensure_future(work), [0]
        while not task.done():
            await asyncio.sleep(0)
            counts.append(self.count)
        await task
        assert counts[-1] >= COUNT
        return max(after - before for before, after in pairwise(counts))


async def test_mcp_server_lines() -> None:
    """The loop that reads lines from an MCP server pauses after each line, even if the line is empty."""
    counted, stdout = Counted(), asyncio.StreamReader()
    stdout.feed_data(b"\n" * COUNT)
    stdout.feed_eof()

    async def read() -> None:
        async for _ in lines_of(stdout):
            counted.count += 1

    assert await counted.together(read()) == 1


async def test_mcp_server_http_chunks() -> None:
    """The loop that reads an MCP server's HTTP answer pauses after each chunk, and after each event within a chunk."""
    for piece in b"x", b"x" * 4096 * COUNT:
        counted, inner = Counted(), Counted()

        class Stream(httpx2.AsyncByteStream):
            @override
            async def __aiter__(self) -> AsyncIterator[bytes]:
                if len(piece) > 1:  # noqa: B023
                    yield piece  # noqa: B023
                    return
                async for each in inner.each(lambda: piece):  # noqa: B023
                    yield each

        class Server(httpx2.AsyncBaseTransport):
            @override
            async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
                return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Stream())

        async def read() -> None:
            transport = Bounded("http://x/", Server())
            async with (
                httpx2.AsyncClient(transport=transport) as client,
                client.stream("POST", "http://x/") as answer,
            ):
                async for _ in answer.aiter_raw():
                    counted.count += 1  # noqa: B023

        assert await counted.together(read()) == 1


async def all_of(port: int, path: str, headers: dict[str, str]) -> None:
    """Send a request, and read the answer to its end."""
    async with httpx2.AsyncClient(timeout=20, trust_env=False) as client:
        body = {"model": "m", "input": "x", "stream": True}
        assert (await client.post(f"http://127.0.0.1:{port}{path}", json=body, headers=headers)).content


async def test_builtin_backend_events() -> None:
    counted = Counted()

    class Backend(TextBackend):
        async def models(self) -> list[str] | ApiError:
            return []

        async def answer(self, _: ClientRequest) -> AsyncGenerator[BackendEvent]:
            yield Opened()
            async for event in counted.each(lambda: TextDelta("x")):
                yield event
            yield Closed()

    loopback = Loopback(Backend(), is_open=True)
    await loopback.start()
    assert await counted.together(all_of(loopback.port, "/v1/responses", {})) == 1
    await loopback.stop()


async def test_stored_stream_frames() -> None:
    counted, server = Counted(), RunnerServer(keepalive=10)
    server.start()
    token = server.admit(lambda: counted.each(lambda: b"data: x\n\n"))
    assert await counted.together(all_of(server.port, "/v1/x", {TOKEN: token})) == 1
    await server.stop()


async def test_page_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """When toolsim fetches a page to detect a backend's engine, it pauses after each chunk."""
    counted = Counted()
    client = await page_client()
    from tornado.simple_httpclient import _HTTPConnection

    receive = _HTTPConnection.data_received

    def received(self: Any, chunk: bytes) -> None:
        counted.count += 1
        receive(self, chunk)

    monkeypatch.setattr(_HTTPConnection, "data_received", received)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\nx\r\n" * COUNT + b"0\r\n\r\n")
        with suppress(OSError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def fetch() -> None:
        assert (await client.fetch(f"http://127.0.0.1:{port}/")).body == b"x" * COUNT

    assert await counted.together(fetch()) == 1
    client.close()
    server.close()
