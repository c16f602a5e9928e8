"""An MCP server that runs as a local process and exchanges lines of JSON, with limits on its output.

This module replaces the transport of the ``mcp`` package, which reads lines of any length into memory. Here, a server
is killed if it writes a line longer than ``MAX_MESSAGE_BYTES``, or more than ``MAX_BETWEEN_BYTES`` between two
requests. The parent process of the server is a ``supervisor``, so that the server's children are killed with it. The
server receives only the environment variables that every program needs, and those that the operator adds. The end of
the server's standard error is kept for the log, without secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Self

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from toolsim.core.time_slice import TimeSlice
from toolsim.mcp import supervisor
from toolsim.mcp.servers import Server

MAX_MESSAGE_BYTES = 1024 * 1024
MAX_BETWEEN_BYTES = 8 * 1024 * 1024
"""Maximum number of bytes that a server can write between two requests, including notifications and other output."""
MAX_BETWEEN_MESSAGES = 2_000

_PIECE = 64 * 1024
_END_SECONDS = 1.0
_DRAIN_SECONDS = 0.3
_MAX_WORDS = 2_000
# Windows has no process groups. A server on Windows has no supervisor, and is stopped without its children.
_HAS_PROCESS_GROUPS = hasattr(os, "posix_spawnp") and hasattr(os, "killpg")

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class OutputLimitExceeded(Exception):
    """Raised if a server has sent more data than allowed. The message names the limit."""


class OutputMeter:
    """Counts the data that a server has sent since the last request to it."""

    def __init__(self) -> None:
        self._bytes = self._messages = 0

    def asked(self) -> None:
        """Reset the counts, because a request has been sent to the server."""
        self._bytes = self._messages = 0

    def add(self, size: int, messages: int = 0) -> None:
        """Count bytes and messages. Raises OutputLimitExceeded if a limit is exceeded."""
        self._bytes += size
        self._messages += messages
        if self._messages > MAX_BETWEEN_MESSAGES:
            raise OutputLimitExceeded(f"it sent more than {MAX_BETWEEN_MESSAGES:,} messages between two requests")
        if self._bytes > MAX_BETWEEN_BYTES:
            raise OutputLimitExceeded(f"it sent more than {MAX_BETWEEN_BYTES:,} bytes between two requests")


class Process:
    """A server's process and all processes that it starts.

    ``lifeline`` is the writing end of the supervisor's pipe, or None on Windows.
    """

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int | None) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
        self._process = process
        self._has_supervisor = lifeline is not None
        # The pipe stays open as long as this object exists. When the proxy exits for any reason, the kernel closes it.
        self._lifeline = lifeline

    @classmethod
    async def start(cls, server: Server) -> Self:
        """Start a server. Raises OSError if its command cannot be run."""
        environment = get_default_environment() | dict(server.environment)
        command, lifeline = list(server.command), None
        ends: tuple[int, ...] = ()
        program = _program(command[0], server.folder, environment)
        if not _HAS_PROCESS_GROUPS:
            # Windows finds a program such as "npx.cmd" only by its full file name.
            command[0] = program
        else:
            watched, lifeline = os.pipe()
            ends = (watched,)
            command = [sys.executable, "-I", "-S", supervisor.__file__, str(watched), *command]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                cwd=server.folder or None,
                start_new_session=_HAS_PROCESS_GROUPS,
                pass_fds=ends,
            )
        except BaseException:
            if lifeline is not None:
                os.close(lifeline)
            raise
        finally:
            for end in ends:
                os.close(end)
        return cls(process, lifeline)

    async def end(self) -> None:
        """Stop the server and its children: close the server's input, then send SIGTERM, and finally SIGKILL."""
        self.stdin.close()
        if self._lifeline is not None:
            with contextlib.suppress(OSError):
                os.write(self._lifeline, b".")
        for stop in (None, self._terminate, self.kill):
            if stop is not None:
                stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _END_SECONDS)
                break
        self.kill()
        if self._has_supervisor:
            # If the supervisor was killed before it could kill the server, the server is still running with its pipes
            # open.
            self._signal(signal.SIGKILL)

    def _terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._has_supervisor:
                os.killpg(self._process.pid, number)
            else:
                self._process.terminate()

    def kill(self) -> None:
        """Kill the server and all processes that it started."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        elif not self._has_supervisor and self._process.returncode is None:
            self._process.kill()


def _program(name: str, folder: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program.

    Raises FileNotFoundError if the program does not exist. Without this check, the supervisor could only log the error.
    """
    path = os.path.join(folder, name) if os.path.dirname(name) else name
    if (found := shutil.which(path, path=environment.get("PATH"))) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return found


@asynccontextmanager
async def run_server(server: Server, cut: Callable[[str], None], log: Callable[[str], None]) -> AsyncGenerator[Streams]:
    """Start a server, and stop it when the context exits. Raises OSError if the server cannot be started.

    ``cut`` is called with the reason if the server exceeds a limit, and ``log`` with the end of its standard error.
    """
    process = await Process.start(server)
    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    meter = OutputMeter()
    tasks = [
        asyncio.create_task(_listen(process, incoming, meter, cut)),
        asyncio.create_task(_speak(process, outgoing, incoming, meter)),
        asyncio.create_task(_last_words(process, log)),
    ]
    try:
        yield read, write
    finally:
        # The shield ensures that the process is stopped even if this task is canceled.
        with anyio.CancelScope(shield=True):
            read.close()
            await process.end()
            # The tasks read the remaining output. They reach its end immediately, unless a detached child still holds
            # the pipe open.
            await asyncio.wait(tasks, timeout=_DRAIN_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (incoming, read, write, outgoing):
                stream.close()


async def _listen(process: Process, incoming: Incoming, meter: OutputMeter, cut: Callable[[str], None]) -> None:
    with incoming, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        try:
            async with aclosing(lines_of(process.stdout)) as lines:
                async for line in lines:
                    meter.add(len(line))
                    if line.strip():
                        meter.add(0, 1)
                        await incoming.send(_message(line))
        except OutputLimitExceeded as flood:
            cut(str(flood))
            process.kill()
    # The remaining output is read and discarded, because a full pipe would prevent the server from exiting.
    while await process.stdout.read(_PIECE):
        pass


async def lines_of(stdout: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    """Yield each complete line of a server's output, with its line ending.

    Other tasks can run between lines, because a server can write a million empty lines. Raises
    OutputLimitExceeded for a line that is too long.
    """
    pace, start = TimeSlice(), b""
    while data := await stdout.read(_PIECE):
        pace.begin()
        *ends, rest = data.split(b"\n")
        for end in ends:
            line, start = b"%s%s\n" % (start, end), b""
            _check_length(line)
            yield line
            await pace.yield_to_others()
        start += rest
        _check_length(start)
        pace.end()


def _check_length(line: bytes) -> None:
    if len(line) > MAX_MESSAGE_BYTES:
        raise OutputLimitExceeded(f"it sent a message of more than {MAX_MESSAGE_BYTES:,} bytes")


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        # The validator's message is not used, because it quotes the line that the server sent.
        return ValueError("The server sent a line that is not a protocol message.")


async def _speak(process: Process, outgoing: Outgoing, incoming: Incoming, meter: OutputMeter) -> None:
    try:
        async for request in outgoing:
            meter.asked()
            process.stdin.write(request.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await process.stdin.drain()
    except OSError:
        # The server has exited. Closing the stream reports an error to callers that are waiting for an answer.
        incoming.close()


async def _last_words(process: Process, log: Callable[[str], None]) -> None:
    words = b""
    while data := await process.stderr.read(_PIECE):
        words = (words + data)[-_MAX_WORDS:]
    if words.strip():
        log(words.decode("utf-8", "replace"))
