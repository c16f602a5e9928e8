"""The owner of one `codex app-server` child: starts it, speaks with it, starts it again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolsimlib.backends.codex.jsonrpc import Message, Noise, Notification, Peer, Refused, Reply, Request
from toolsimlib.backends.codex.text_only import text_catalog
from toolsimlib.errors import ApiError

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

# Seconds. A cold start takes 0.3; a login that must be refreshed over the network takes longer.
_START_LIMIT = 30.0
_CATALOG_LIMIT = 10.0
# How long a request waits for a child that is being started, and how long a child may take to end by itself.
_PATIENCE = 15.0
_STOP_LIMIT = 2.0
_LAST_WORDS_LIMIT = 0.3
# Back-off between starts. A child that lived for a while died of something else than its start.
_FIRST_DELAY = 0.25
_LONGEST_DELAY = 30.0
_STEADY = 10.0

_COMPLAINTS_BYTES = 1 << 16

# The child's folder, and the one in it that it works in.
_PREFIX = "toolsim-codex-"
_EMPTY = "empty"


# Status of a child that somebody else ended (SIGINT, SIGKILL, SIGTERM): what it said before is not the cause.
_ENDED_BY_OTHERS = (-2, -9, -15)


class Refusal(Exception):
    """The app-server answered a request of ours with an error."""

    def __init__(self, method: str, message: str) -> None:
        super().__init__(message)
        self.message = message
        # Codex answers an unknown method with a list of all those that it knows.
        self.unknown_method = f"unknown variant `{method}`" in message or "method not found" in message.lower()


class Unavailable(Exception):
    """There is no app-server to ask; ``error`` says why, and when to come back."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class _StartFailure(Exception):
    """The child cannot serve; the message is for the operator."""


class Connection(asyncio.SubprocessProtocol):
    """One living child. Ends once, and then fails whatever waits for it.

    A protocol rather than streams: ``Process.wait`` waits for the pipes too, which what the npm wrapper started holds
    open when the wrapper is killed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.injects = True
        """Whether this server takes history as items with roles; set to False by who finds that it does not."""
        self.mcp_servers: tuple[str, ...] = ()
        self.default_model: str | None = None
        self.version = ""
        self.death: ApiError | None = None
        self._peer = Peer()
        self._waiting: dict[int, tuple[str, asyncio.Future[Mapping[str, Any]]]] = {}
        self._threads: dict[str, asyncio.Queue[Notification | None]] = {}
        self._last_words: deque[str] = deque(maxlen=20)
        self._scolding = b""
        self._sources: set[str] = set()
        # The child ended, or closed its output; then: all pipes are closed as well.
        self._ended = asyncio.Event()
        self._gone = asyncio.Event()

    @property
    def alive(self) -> bool:
        """Whether the child is not known to have ended."""
        return not self._ended.is_set()

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the result. Raises Refusal for an error, Unavailable when the child is dead or dies meanwhile."""
        if self.death is not None:
            raise Unavailable(self.death)
        number, line = self._peer.request(method, params)
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = method, future
        try:
            self._stdin.write(line)
            return await future
        finally:
            self._waiting.pop(number, None)

    def notify(self, method: str) -> None:
        """Send a notification without parameters."""
        self._stdin.write(self._peer.notify(method))

    def listen(self, thread: str) -> asyncio.Queue[Notification | None]:
        """Return the queue of a thread's notifications; None in it says that the child died (see ``death``)."""
        queue: asyncio.Queue[Notification | None] = asyncio.Queue()
        self._threads[thread] = queue
        if self.death is not None:
            queue.put_nowait(None)
        return queue

    def new_sources(self, sources: object) -> list[str]:
        """Return which files of instructions were not reported before."""
        told = [each for each in sources if isinstance(each, str)] if isinstance(sources, list) else []
        fresh = [source for source in told if source not in self._sources]
        self._sources.update(fresh)
        return fresh

    def forget(self, thread: str) -> None:
        """End ``listen``."""
        self._threads.pop(thread, None)

    async def run(self) -> None:
        """Wait until the child ends, however it ends; then fail all that wait."""
        try:
            await self._ended.wait()
            # Its last words may still be in the pipes.
            await self._within(self._gone, _LAST_WORDS_LIMIT)
        finally:
            await self._close()
            self._die()

    def ending(self) -> str:
        """Say how the child ended, with its own last words."""
        code = self._transport.get_returncode()
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
        words = [line for line in self._last_words if line.strip()]
        return f"{how}: {words[-1]}" if words and code not in _ENDED_BY_OTHERS else how

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the ends that are needed."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport
        stdin = transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        self._stdin = stdin

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take in messages (1) and complaints (2)."""
        if fd == 1:
            for message in self._peer.feed(data):
                self._take(message)
            return
        *lines, self._scolding = (self._scolding + data)[-_COMPLAINTS_BYTES:].split(b"\n")
        for line in lines:
            text = re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace"))[:500]
            self._last_words.append(text)
            logger.debug("codex: %s", text)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Without its output a child is of no use, alive or not."""
        if fd == 1:
            self._ended.set()

    def process_exited(self) -> None:
        """Note the end."""
        self._ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of everything."""
        self._ended.set()
        self._gone.set()

    # -- inside

    def _take(self, message: Message) -> None:
        match message:
            case Reply(id=number, result=result) if number in self._waiting:
                _, future = self._waiting.pop(number)
                if not future.done():
                    future.set_result(result)
            case Refused(id=number, message=text) if number in self._waiting:
                method, future = self._waiting.pop(number)
                if not future.done():
                    future.set_exception(Refusal(method, text))
            case Reply() | Refused():
                # Its asker has left.
                return
            case Notification(params=params):
                queue = self._threads.get(str(params.get("threadId")))
                if queue is not None:
                    queue.put_nowait(message)
            case Request():
                # Approvals, elicitations, tool calls: a text model has nothing to ask.
                logger.debug("codex asked for %s; refused", message.method)
                self._stdin.write(self._peer.refuse(message, "toolsim runs Codex as a text model only"))
            case Noise(line=line):
                logger.debug("codex wrote a line that is no message: %.200r", line)

    async def _close(self) -> None:
        """End the child: by the end of its input, then by SIGTERM, then by SIGKILL."""
        self._stdin.close()
        if self._transport.get_returncode() is None and not await self._within(self._gone, _STOP_LIMIT):
            with contextlib.suppress(ProcessLookupError):
                self._transport.terminate()
            await self._within(self._gone, _STOP_LIMIT)
        _kill(self._transport.get_pid())
        await self._within(self._gone, _STOP_LIMIT)
        self._transport.close()

    @staticmethod
    async def _within(event: asyncio.Event, limit: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), limit)
        return event.is_set()

    def _die(self) -> None:
        self.death = ApiError(f"The Codex app-server {self.ending()}", code="backend_died", status=502, retry_after=1)
        for _, future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(Unavailable(self.death))
        for queue in self._threads.values():
            queue.put_nowait(None)


class AppServer:
    """Keeps one child running from ``start`` to ``stop``. ``command`` is split already."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._keeper: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._failure: str | None = None
        self._retry_at = 0.0
        self._changed = asyncio.Event()
        self._said: str | None = None

    async def start(self) -> None:
        """Begin to keep a child running; does not wait for it, and never fails."""
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End the child and wait for its end."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        self._connection, self._failure = None, "The Codex app-server is stopped."
        self._changed.set()

    async def connection(self) -> Connection:
        """Return the living child, after its start if need be. Raises Unavailable (503)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while not self._serves() and self._failure is None:
                    self._changed.clear()
                    await self._changed.wait()
        if self._connection is not None and self._connection.alive:
            return self._connection
        message = self._failure or "The Codex app-server is still starting."
        wait = max(1, math.ceil(self._retry_at - asyncio.get_running_loop().time()))
        raise Unavailable(ApiError(message, code="backend_unavailable", status=503, retry_after=wait))

    def _serves(self) -> bool:
        return self._connection is not None and self._connection.alive

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        delay = _FIRST_DELAY
        while True:
            with _folder() as folder:
                try:
                    connection, running = await self._open(folder)
                except _StartFailure as failure:
                    self._fail(str(failure))
                else:
                    began = loop.time()
                    try:
                        self._serve(connection)
                        await asyncio.shield(running)
                    finally:
                        await _finish(running)
                    self._connection = None
                    if loop.time() - began > _STEADY:
                        delay = _FIRST_DELAY
                    died = f"The Codex app-server {connection.ending()}"
                    logger.warning("%s; starting it again", died)
                    if delay > 1:
                        self._fail(died)
            self._retry_at = loop.time() + delay
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY)

    def _serve(self, connection: Connection) -> None:
        self._connection, self._failure, self._said = connection, None, None
        self._changed.set()
        logger.info("codex %s answers", connection.version)

    def _fail(self, message: str) -> None:
        self._failure = message
        self._changed.set()
        # Once per cause, however often the start is tried again.
        if self._said != message:
            logger.error("%s", message)
            self._said = message

    async def _open(self, folder: Path) -> tuple[Connection, asyncio.Task[None]]:
        """Start a child in ``folder`` and greet it; its ``run`` is the task."""
        work = folder / _EMPTY
        work.mkdir()
        options = ["-c", "thread_unload_delay_secs=0"]
        if (catalog := await self._catalog()) is not None:
            (folder / "models.json").write_bytes(catalog)
            options += ["-c", f"model_catalog_json={json.dumps(str(folder / 'models.json'))}"]
        with self._spawning():
            # A session of its own: Ctrl-C ends mitmdump, and mitmdump ends its child.
            _, connection = await asyncio.get_running_loop().subprocess_exec(
                lambda: Connection(work), *self._command, *options, start_new_session=True
            )
        running = asyncio.create_task(connection.run())
        try:
            async with asyncio.timeout(_START_LIMIT):
                await self._greet(connection)
        except BaseException as problem:
            await _finish(running)
            command = " ".join(self._command)
            match problem:
                case Unavailable():
                    raise _StartFailure(f"`{command}` {connection.ending()}") from problem
                case Refusal():
                    raise _StartFailure(
                        f"This Codex ({connection.version or 'of unknown version'}) cannot serve, update it"
                        f" (npm install -g @openai/codex@latest): {problem.message[:200]}"
                    ) from problem
                case TimeoutError():
                    raise _StartFailure(f"`{command}` did not answer within {_START_LIMIT:.0f} s.") from problem
            raise
        if catalog is None:
            logger.warning("Codex printed no catalogue (`debug models`): it may offer the model tools of its own")
        return connection, running

    async def _greet(self, connection: Connection) -> None:
        hello = {
            "clientInfo": {"name": "toolsim", "title": "toolsim", "version": "1"},
            "capabilities": {"experimentalApi": True},
        }
        greeted = await connection.request("initialize", hello)
        found = re.search(r"/(\d[\w.\-]*)", str(greeted.get("userAgent", "")))
        connection.version = found[1] if found else ""
        connection.notify("initialized")
        account = await connection.request("account/read", {})
        if account.get("requiresOpenaiAuth") is True and account.get("account") is None:
            raise _StartFailure("Codex is not logged in: run `codex login`.")
        with contextlib.suppress(Refusal):
            read = (await connection.request("config/read", {})).get("config")
            config = read if isinstance(read, dict) else {}
            servers = config.get("mcp_servers")
            connection.mcp_servers = tuple(servers) if isinstance(servers, dict) else ()
            model = config.get("model")
            connection.default_model = model if isinstance(model, str) else None

    async def _catalog(self) -> bytes | None:
        """Return the catalogue of text models, or None where Codex cannot print its own."""
        if "app-server" not in self._command:
            return None
        at = self._command.index("app-server")
        pipe, devnull = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        with self._spawning():
            process = await asyncio.create_subprocess_exec(
                *self._command[:at],
                "debug",
                "models",
                stdin=devnull,
                stdout=pipe,
                stderr=devnull,
                start_new_session=True,
            )
        try:
            printed, _ = await asyncio.wait_for(process.communicate(), _CATALOG_LIMIT)
        except TimeoutError:
            return None
        finally:
            if process.returncode is None:
                _kill(process.pid)
                await process.wait()
        return text_catalog(printed)

    @contextlib.contextmanager
    def _spawning(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise _StartFailure(
                f"Cannot run `{self._command[0]}` ({problem.strerror or problem}): install Codex"
                " (npm install -g @openai/codex), or set toolsim_codex_command."
            ) from problem


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder that is ours as long as we live, and remove those of killed owners: nothing else would.

    Its owner holds a lock on it, which ends with the owner however that ends.
    """
    if sys.platform != "win32":
        # What a new folder holds is made when it has been locked.
        for content in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_EMPTY}"):
            with contextlib.suppress(OSError), _locked(content.parent):
                shutil.rmtree(content.parent)
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name,
        _locked(Path(name)),
    ):
        yield Path(name)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder. Raises OSError for one that is locked, or not ours."""
    if sys.platform == "win32":
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _kill(leader: int) -> None:
    """Kill a child and its group: what the npm wrapper started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(leader, signal.SIGKILL)
        else:
            os.kill(leader, signal.SIGTERM)


async def _finish(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end, also when cancelled meanwhile: a child must not be left half closed."""
    task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as problem:
            cancelled = problem
    if cancelled is not None:
        raise cancelled
