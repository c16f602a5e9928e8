"""Tests for HTTP requests to MCP servers: permitted destinations, and size limits of responses."""

from __future__ import annotations

import gzip
import ssl
from collections.abc import AsyncIterator

import httpx2
import pytest
from opentelemetry import trace
from toolsim.mcp.stdio import MAX_BETWEEN_BYTES, MAX_MESSAGE_BYTES
from toolsim.mcp.web import Bounded

URL = "https://docs.example/mcp"
PIECE = b"x" * 65_536


class Answers(httpx2.AsyncBaseTransport):
    def __init__(self, pieces: int, **headers: str) -> None:
        self.pieces, self.headers = pieces, {name.replace("_", "-"): value for name, value in headers.items()}
        self.asked: list[str] = []
        self.traced: list[str | None] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(str(request.url))
        self.traced.append(request.headers.get("traceparent"))

        class Stream(httpx2.AsyncByteStream):
            async def __aiter__(stream) -> AsyncIterator[bytes]:
                for _ in range(self.pieces):
                    yield PIECE

        return httpx2.Response(200, headers=self.headers, stream=Stream())


async def read(answers: Answers, url: str = URL, method: str = "POST") -> int:
    async with httpx2.AsyncClient(transport=Bounded(URL, answers)) as client:
        return len((await client.request(method, url)).content)


async def test_answer_size_is_limited() -> None:
    """A JSON response from an MCP server must not exceed the maximum message size. A stream must not exceed the limit
    on the number of bytes between two requests.
    """
    assert await read(Answers(2, content_type="application/json")) == 2 * len(PIECE)
    with pytest.raises(httpx2.ReadError, match="it sent a message of more than"):
        await read(Answers(MAX_MESSAGE_BYTES // len(PIECE) + 1, content_type="application/json"))
    assert await read(Answers(MAX_BETWEEN_BYTES // len(PIECE), content_type="text/event-stream"))
    with pytest.raises(httpx2.ReadError, match="between two requests"):
        await read(Answers(MAX_BETWEEN_BYTES // len(PIECE) + 1, content_type="text/event-stream"))


def test_certificates_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS certificates are read only once and not for each connection, because reading them would delay all other
    clients.
    """
    reads: list[object] = []
    create = ssl.create_default_context
    monkeypatch.setattr(
        ssl, "create_default_context", lambda *given, **named: reads.append(1) or create(*given, **named)
    )
    for _ in range(3):
        Bounded(URL)
    assert len(reads) <= 1


async def test_compressed_answer_is_rejected() -> None:
    """A compressed response from an MCP server is rejected, because a few bytes could expand to a huge amount of
    data.
    """
    assert len(gzip.compress(b"\0" * 10_000_000)) < 10_000
    with pytest.raises(httpx2.ReadError, match="compressed"):
        await read(Answers(1, content_type="application/json", content_encoding="gzip"))


@pytest.mark.parametrize("url", ["http://docs.example/mcp", "https://evil.example/mcp", "https://docs.example:444/"])
async def test_other_hosts_are_not_contacted(url: str) -> None:
    """A request to a host or port other than the server's, or without TLS, is not sent."""
    answers = Answers(1)
    with pytest.raises(httpx2.ConnectError, match="another host"):
        await read(answers, url)
    assert answers.asked == []
    assert await read(answers, "https://docs.example/other")


async def test_trace_ids_are_sent() -> None:
    """A request within a span contains the trace IDs. The DELETE request that ends an MCP session does not contain
    them.
    """
    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1)))
    answers = Answers(1)
    await read(answers)
    with trace.use_span(span):
        await read(answers)
        await read(answers, method="DELETE")
    without, within, at_its_end = answers.traced
    assert without is at_its_end is None
    assert within == f"00-{1:032x}-{2:016x}-01"
