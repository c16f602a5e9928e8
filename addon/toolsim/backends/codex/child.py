"""Represents a ``codex app-server`` process, and the JSON-RPC connection over its pipes.

A child's life begins with ``connection_made``, which the event loop calls after the spawn, and ends when ``run``
returns. After that, every pending or new request raises ``CodexUnavailable``, and every subscribed queue has received
None.

A child counts as dead as soon as it exits *or* closes its output, because it is useless without output. A running child
is stopped in up to three steps: its input is closed, then SIGTERM is sent, and finally SIGKILL. Each step waits for
``_STOP_TIMEOUT``. SIGKILL is sent to the entire process group, because npm's ``codex`` is a wrapper, and the actual
binary would survive if only the wrapper were killed.

The class is an asyncio protocol instead of ``asyncio.subprocess.Process``, whose ``wait`` also waits for the pipes to
close. The pipes stay open while the actual binary is running, even if the wrapper has been killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolsim.backends.codex.errors import CodexUnavailable, RpcError, child_died
from toolsim.backends.codex.jsonrpc import Notification, Peer
from toolsim.core.errors import ApiError
from toolsim.wire.json_codec import parse_object
from toolsim.wire.json_fields import mapping

logger = logging.getLogger(__name__)

# Timeout of each step in stopping a child (closing its input, SIGTERM, SIGKILL), in seconds.
_STOP_TIMEOUT = 2.0
# Maximum time, in seconds, to wait for the last output of a dead child.
_LAST_OUTPUT_TIMEOUT = 0.3

# Limits for a child's standard error: the buffered bytes of an unfinished line, the logged characters per line, and the
# number of lines that are kept to explain an exit.
MAX_STDERR_TAIL_BYTES = 64 * 1024
MAX_STDERR_LINE_CHARS = 500
MAX_STDERR_LINES = 20

# Exit statuses of a child that was stopped by a signal (SIGINT, SIGKILL, SIGTERM). In this case, the last line of its
# output does not explain the exit.
_EXTERNAL_SIGNALS = (-2, -9, -15)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Child(asyncio.SubprocessProtocol):
    """One child process. ``workdir`` is an empty folder, which the child's threads use as their working directory.

    The handshake sets ``version``, ``default_model`` and the names of the user's ``mcp_servers``.
    """

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.version = ""
        self.default_model: str | None = None
        self.mcp_servers: tuple[str, ...] = ()
        self.death: ApiError | None = None
        self._peer = Peer()
        self._pending: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._threads: dict[str, asyncio.Queue[Notification | None]] = {}
        self._stderr_lines: deque[str] = deque(maxlen=MAX_STDERR_LINES)
        self._stderr_tail = b""
        self._reported_sources: set[str] = set()
        # ``_ended`` is set when the child exits or closes its standard output. ``_closed`` is set when the child has
        # exited and all of its pipes are closed.
        self._ended = asyncio.Event()
        self._closed = asyncio.Event()

    @property
    def is_alive(self) -> bool:
        """Whether the child has neither exited nor closed its output, as far as toolsim knows."""
        return not self._ended.is_set()

    @property
    def pid(self) -> int:
        """The process ID of the child, which is also the ID of its process group."""
        return self._transport.get_pid()

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request to the child, and return the result.

        Raises RpcError if Codex answers with an error, or CodexUnavailable if the child is dead.
        """
        if self.death is not None:
            raise CodexUnavailable(self.death)
        number, line = self._peer.request(method, params)
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            self._stdin.write(line)
            return await future
        finally:
            self._pending.pop(number, None)

    def notify(self, method: str) -> None:
        """Send the child a notification without parameters."""
        self._stdin.write(self._peer.notify(method))

    def subscribe(self, thread: str) -> asyncio.Queue[Notification | None]:
        """Return a queue that receives a thread's notifications.

        A None in the queue means that the child has died (see ``death``).
        """
        queue: asyncio.Queue[Notification | None] = asyncio.Queue()
        self._threads[thread] = queue
        if self.death is not None:
            queue.put_nowait(None)
        return queue

    def unsubscribe(self, thread: str) -> None:
        """Stop delivering a thread's notifications."""
        self._threads.pop(thread, None)

    def unreported_sources(self, sources: object) -> list[str]:
        """Return the paths in ``sources`` (a list of instruction files) that no earlier call has returned."""
        paths = [path for path in sources if isinstance(path, str)] if isinstance(sources, list) else []
        new = [path for path in paths if path not in self._reported_sources]
        self._reported_sources.update(new)
        return new

    async def run(self) -> None:
        """Wait for the child to exit, or stop it if this task is canceled.

        In either case, all pending requests then fail, and all subscribed queues receive None.
        """
        try:
            await self._ended.wait()
            await _wait(self._closed, _LAST_OUTPUT_TIMEOUT)
        finally:
            await self._end()
            self._fail_pending()

    def exit_reason(self) -> str:
        """Return a predicate such as "exited with status 2: …", with the last line of standard error."""
        code = self._transport.get_returncode()
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with status {code}"
        lines = [line for line in self._stderr_lines if line.strip()]
        return f"{how}: {lines[-1]}" if lines and code not in _EXTERNAL_SIGNALS else how

    # -- methods that the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the process and the transport of its input."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport
        stdin = transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        self._stdin = stdin

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Process data from the child: messages from its standard output, or log lines from its standard error."""
        if fd == 1:
            for line in self._peer.feed(data):
                self._dispatch(line)
            return
        *lines, self._stderr_tail = (self._stderr_tail + data)[-MAX_STDERR_TAIL_BYTES:].split(b"\n")
        for line in lines:
            text = _COLOUR.sub("", line.decode(errors="replace"))[:MAX_STDERR_LINE_CHARS]
            self._stderr_lines.append(text)
            logger.debug("codex: %s", text)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Treat a child that has closed its output as dead."""
        if fd == 1:
            self._ended.set()

    def process_exited(self) -> None:
        """Record that the process has exited."""
        self._ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the process has exited and all pipes are closed."""
        self._ended.set()
        self._closed.set()

    # -- internal methods

    def _dispatch(self, line: bytes) -> None:
        message = parse_object(line) or {}
        params = mapping(message.get("params"))
        match message:
            case {"method": str(method), "id": int() | str() as number}:
                # The child's requests, for example for approvals or tool calls, are refused, because a text model does
                # not need them.
                logger.debug("Codex requested %s; toolsim refused the request", method)
                self._stdin.write(self._peer.refuse(number, "toolsim uses Codex only as a text model"))
            case {"method": str(method)}:
                if (queue := self._threads.get(str(params.get("threadId")))) is not None:
                    queue.put_nowait(Notification(method, params))
            case {"id": int(number), "error": {"code": int(code), "message": str(text)}}:
                if (future := self._take_pending(number)) is not None:
                    future.set_exception(RpcError(code, text))
            case {"id": int(number), "result": result}:
                if (future := self._take_pending(number)) is not None:
                    future.set_result(mapping(result))
            case _:
                # Some versions of Codex and some wrappers print log lines between the messages.
                logger.debug("Codex wrote a line that is not a protocol message: %.200r", line)

    def _take_pending(self, number: int) -> asyncio.Future[Mapping[str, Any]] | None:
        """Remove and return the future of a pending request, or return None if its caller was canceled."""
        future = self._pending.pop(number, None)
        return None if future is None or future.done() else future

    async def _end(self) -> None:
        self._stdin.close()
        if self._transport.get_returncode() is None and not await _wait(self._closed, _STOP_TIMEOUT):
            with contextlib.suppress(ProcessLookupError):
                self._transport.terminate()
            await _wait(self._closed, _STOP_TIMEOUT)
        kill_group(self.pid)
        await _wait(self._closed, _STOP_TIMEOUT)
        self._transport.close()

    def _fail_pending(self) -> None:
        self.death = child_died(self.exit_reason())
        for future in self._pending.values():
            if not future.done():
                future.set_exception(CodexUnavailable(self.death))
        for queue in self._threads.values():
            queue.put_nowait(None)


def kill_group(leader: int) -> None:
    """Kill the process group of ``leader``. The group also contains the processes that npm's wrapper has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(leader, signal.SIGKILL)
        else:
            os.kill(leader, signal.SIGTERM)


async def _wait(event: asyncio.Event, timeout: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout)
    return event.is_set()
