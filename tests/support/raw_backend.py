"""A backend that can misbehave: raw HTTP/1.1 over a socket, where a coroutine writes each answer byte by byte."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

from support.wire import DONE, chat_frame


@dataclass
class Asked:
    """A received request, and how much of its answer was sent."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    sent: int = 0
    """The number of successful writes of the body."""
    gone: threading.Event = field(default_factory=threading.Event)
    """Set if the proxy closes the connection during the answer."""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class Answer:
    """Writes an answer. Each ``send`` is one write, and one chunk if the answer is chunked."""

    def __init__(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked = asked
        self._reader = reader
        self._writer = writer
        self._chunked = False

    async def head(self, status: int = 200, length: int | None = None, **headers: str) -> None:
        """Send status and headers. ``length``: None for a chunked body, -1 for a body that ends with the connection."""
        lines = [f"HTTP/1.1 {status} Whatever"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if length is None:
            self._chunked = True
            lines.append("Transfer-Encoding: chunked")
        elif length >= 0:
            lines.append(f"Content-Length: {length}")
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def send(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data)
        self.asked.sent += 1

    async def end(self) -> None:
        if self._chunked:
            await self.raw(b"0\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        # The proxy sends no data during an answer, so only the end of the connection can be read.
        if self._reader.at_eof() or self._writer.is_closing():
            self.asked.gone.set()
            raise ConnectionResetError
        self._writer.write(data)
        try:
            await self._writer.drain()
        except ConnectionError:
            self.asked.gone.set()
            raise
        await asyncio.sleep(0)

    async def whole(self, body: bytes, status: int = 200, **headers: str) -> None:
        await self.head(status, len(body), **headers)
        await self.send(body)

    async def wait_until_gone(self) -> None:
        """Wait, without sending anything, until the proxy closes the connection."""
        await self._reader.read()
        self.asked.gone.set()

    def hang_up(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Reset the connection, as if the backend had been killed. Data in flight can be lost."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.close()


PAGES = ("/props", "/version", "/server_info", "/get_server_info", "/api/v0/models", "/api/ps", "/api/show")
"""Paths that toolsim requests in order to detect the engine or its context window.

They return 404, unless a behavior is set for the exact path. They are not recorded in ``asked``.
"""

Behaviour = Callable[[Answer], Awaitable[None]]


class RawBackend:
    """The backend, in a separate thread. ``play`` sets its behavior, for all paths or for paths with a prefix."""

    def __init__(self, port: int = 0) -> None:
        self._asked_port = port
        self.asked: list[Asked] = []
        self._behaviours: dict[str, Behaviour] = {}
        self._ready = threading.Event()
        self._connections = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def play(self, behaviour: Behaviour, path: str = "") -> None:
        """Answer requests whose path starts with ``path`` with this behavior. Discard all recorded requests."""
        self._behaviours[path] = behaviour
        self.asked = []

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        server = await asyncio.start_server(
            self._connected, "127.0.0.1", self._asked_port, limit=64 * 1024 * 1024, backlog=1000
        )
        self.port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        try:
            while (asked := await self._read(reader, number)) is not None:
                if asked.path.endswith(PAGES) and asked.path not in self._behaviours:
                    await Answer(asked, reader, writer).whole(b"{}", 404)
                    continue
                if not number:
                    self._connections += 1
                    number = asked.connection = self._connections
                self.asked.append(asked)
                matches = [path for path in self._behaviours if asked.path.startswith(path)]
                await self._behaviours[max(matches, key=len)](Answer(asked, reader, writer))
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @staticmethod
    async def _read(reader: asyncio.StreamReader, connection: int) -> Asked | None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        method, path, _ = first.split(" ")
        headers = [(line.partition(":")[0], line.partition(":")[2].strip()) for line in lines]
        asked = Asked(method, path, headers, b"", connection)
        if asked.header("transfer-encoding") == "chunked":
            while size := int(await reader.readline(), 16):
                asked.body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        else:
            asked.body = await reader.readexactly(int(asked.header("content-length") or 0))
        return asked


def stream_of(*pieces: str, ended: bool = True) -> Behaviour:
    """Return a backend that streams these texts in chat format and, if ``ended``, ends the stream properly."""

    async def behave(answer: Answer) -> None:
        await answer.head(Content_Type="text/event-stream")
        for piece in pieces:
            await answer.send(chat_frame(piece))
        if ended:
            await answer.send(chat_frame(finish="stop"))
            await answer.send(DONE)
        await answer.end()

    return behave
