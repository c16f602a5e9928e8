"""A server as a process of this machine, which reads and writes lines of JSON; what it may write is bounded.

The package's own transport reads a line of any length into memory, again and again from its beginning. Here a server
that writes a line of more than ``MAX_MESSAGE_BYTES``, or more than ``MAX_BETWEEN_BYTES`` since its last request, is
killed. It gets its own session, so that its children are killed with it, and only the part of the environment that a
program needs, and what the operator adds. Its standard error is kept for the log, without its secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from toolsimlib.hosted.servers import Server

MAX_MESSAGE_BYTES = 1024 * 1024
MAX_BETWEEN_BYTES = 8 * 1024 * 1024
"""What a server may write between two requests, including notifications and noise."""
MAX_BETWEEN_MESSAGES = 2_000

_PIECE = 64 * 1024
_END_SECONDS = 1.0
_DRAIN_SECONDS = 0.3
_KEPT_WORDS = 2_000

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class Flood(Exception):
    """A server sent more than it may."""


class Meter:
    """Counts what a server has sent since its last request."""

    def __init__(self) -> None:
        self._bytes = self._messages = 0

    def asked(self) -> None:
        """Note a request."""
        self._bytes = self._messages = 0

    def add(self, size: int, messages: int = 0) -> None:
        """Count bytes and messages. Raises Flood beyond the limit."""
        self._bytes += size
        self._messages += messages
        if self._messages > MAX_BETWEEN_MESSAGES:
            raise Flood(f"it said more than {MAX_BETWEEN_MESSAGES} things between two questions")
        if self._bytes > MAX_BETWEEN_BYTES:
            raise Flood(f"it said more than {MAX_BETWEEN_BYTES} bytes between two questions")


class Lines:
    """Cuts a byte stream into lines, in linear time. Raises Flood for one that is too long."""

    def __init__(self) -> None:
        self._open: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now."""
        *whole, rest = data.split(b"\n")
        lines = []
        for end in whole:
            self._take(end)
            lines.append(b"".join(self._open))
            self._open, self._size = [], 0
        self._take(rest)
        return [line for line in lines if line.strip()]

    def _take(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_MESSAGE_BYTES:
            raise Flood(f"a message of it has more than {MAX_MESSAGE_BYTES} bytes")
        if piece:
            self._open.append(piece)


@asynccontextmanager
async def run_server(server: Server, cut: Callable[[str], None], log: Callable[[str], None]) -> AsyncGenerator[Streams]:
    """Start a server, and stop it on leaving. Raises OSError.

    ``cut`` is called with the reason why it was cut off, ``log`` with the end of its standard error.
    """
    process = await asyncio.create_subprocess_exec(
        *server.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=get_default_environment() | dict(server.environment),
        cwd=server.folder or None,
        start_new_session=True,
        limit=_PIECE,
    )
    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    meter = Meter()
    tasks = [
        asyncio.create_task(_listen(process, incoming, meter, cut)),
        asyncio.create_task(_speak(process, outgoing, incoming, meter)),
        asyncio.create_task(_last_words(process, log)),
    ]
    try:
        yield read, write
    finally:
        # Nothing may keep the process alive, a cancelled task least of all.
        with anyio.CancelScope(shield=True):
            read.close()
            await _end(process)
            # What it wrote until then is read to the end, unless a child that escaped still holds the pipe.
            await asyncio.wait(tasks, timeout=_DRAIN_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (incoming, read, write, outgoing):
                stream.close()


async def _listen(
    process: asyncio.subprocess.Process, incoming: Incoming, meter: Meter, cut: Callable[[str], None]
) -> None:
    assert process.stdout is not None
    lines = Lines()
    with incoming, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        try:
            while data := await process.stdout.read(_PIECE):
                meter.add(len(data))
                for line in lines.feed(data):
                    meter.add(0, 1)
                    await incoming.send(_message(line))
        except Flood as flood:
            cut(str(flood))
            _kill(process, signal.SIGKILL)
    # Nobody reads any more, but a full pipe would keep it from exiting.
    while await process.stdout.read(_PIECE):
        pass


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        # The validator's own words repeat the line.
        return ValueError("A line of the server's is no message of the protocol.")


async def _speak(process: asyncio.subprocess.Process, outgoing: Outgoing, incoming: Incoming, meter: Meter) -> None:
    assert process.stdin is not None
    try:
        async for request in outgoing:
            meter.asked()
            process.stdin.write(request.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await process.stdin.drain()
    except OSError:
        # It has gone: whoever waits for an answer gets an error.
        incoming.close()


async def _last_words(process: asyncio.subprocess.Process, log: Callable[[str], None]) -> None:
    assert process.stderr is not None
    words = b""
    while data := await process.stderr.read(_PIECE):
        words = (words + data)[-_KEPT_WORDS:]
    if words.strip():
        log(words.decode("utf-8", "replace"))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Stop a process and its children: by closing its input, by SIGTERM, by SIGKILL."""
    if process.stdin is not None:
        process.stdin.close()
    for sign in (None, signal.SIGTERM, signal.SIGKILL):
        if sign is not None:
            _kill(process, sign)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END_SECONDS)
            break
    # Children may have outlived it, and still hold its pipes.
    _kill(process, signal.SIGKILL)


def _kill(process: asyncio.subprocess.Process, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, sign)
        elif process.returncode is None:
            process.kill()
