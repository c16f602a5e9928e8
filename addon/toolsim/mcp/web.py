"""Connects to a server over HTTP (streamable HTTP or the older SSE), with limits on its output and redirects.

1. Every request is sent to the origin of the server's URL, even if redirects or events name another origin.
2. A response is processed as it arrives. A compressed response is rejected, because it can expand to a thousand times
   its size. The size limits are the same as for local servers (see ``stdio``).
3. Proxies from the environment, cookie jars and password files are not used.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from ssl import SSLContext
from typing import Any, override

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from opentelemetry.propagate import inject

from toolsim.core.time_slice import TimeSlice
from toolsim.mcp.servers import Server
from toolsim.mcp.stdio import MAX_MESSAGE_BYTES, OutputLimitExceeded, OutputMeter

_PIECE = 4 * 1024


class Bounded(httpx2.AsyncBaseTransport):
    """An HTTP transport that restricts requests to one origin and limits the size of responses."""

    def __init__(self, url: str, inner: httpx2.AsyncBaseTransport | None = None) -> None:
        self._origin = _origin(httpx2.URL(url))
        self._inner = inner or httpx2.AsyncHTTPTransport(verify=_trusted())
        self._meter = OutputMeter()

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if _origin(request.url) != self._origin:
            raise httpx2.ConnectError("the server redirects to another host")
        if request.method == "POST":
            self._meter.asked()
            # The trace context is added to the headers here, because the ``mcp`` package adds it only to the message in
            # the body.
            inject(request.headers)
        response = await self._inner.handle_async_request(request)
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            await response.aclose()
            raise httpx2.ReadError(
                f"the server's answer is compressed ({encoding[:20]}), which the request did not allow"
            )
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream, self._meter, 0 if is_stream else MAX_MESSAGE_BYTES)
        return response

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


class _Counted(httpx2.AsyncByteStream):
    """A response body of at most ``limit`` bytes.

    If ``limit`` is 0, only the meter's limit between two requests applies. The body is passed on in small pieces,
    between which other tasks can run, because a body can contain thousands of tiny events.
    """

    def __init__(self, stream: httpx2.AsyncByteStream, meter: OutputMeter, limit: int) -> None:
        self._stream, self._meter, self._limit = stream, meter, limit

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, pace = 0, TimeSlice()
        async for data in self._stream:
            size += len(data)
            try:
                self._meter.add(len(data))
            except OutputLimitExceeded as flood:
                raise httpx2.ReadError(str(flood)) from flood
            if 0 < self._limit < size:
                raise httpx2.ReadError(f"it sent a message of more than {self._limit:,} bytes")
            for start in range(0, len(data), _PIECE):
                yield data[start : start + _PIECE]
                await pace.yield_to_others()

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def connect(server: Server) -> AsyncGenerator[Any]:
    """Connect to a server, and yield the streams for its messages.

    The server's ``timeout`` applies to connecting and sending.
    """
    headers = {"accept-encoding": "identity", **dict(server.headers)}

    def client(
        headers: dict[str, str] | None = headers, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        timeout = httpx2.Timeout(server.timeout, read=None)
        return httpx2.AsyncClient(headers=headers, timeout=timeout, transport=Bounded(server.url), trust_env=False)

    if server.kind == "sse":
        async with sse_client(server.url, headers, httpx_client_factory=client) as streams:
            yield streams
        return
    async with (
        client() as http,
        streamable_http_client(server.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


@cache
def _trusted() -> SSLContext:
    """Return the SSL context with the trusted certificates. The result is cached, because loading them takes 70 ms."""
    return httpx2.create_ssl_context()


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
