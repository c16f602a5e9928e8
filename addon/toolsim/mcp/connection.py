"""Manages the connection to one server.

The connection is opened for the first request and kept open. If it fails, it is closed, and reopened later.

    idle ──ask──▶ opening ──▶ up ──failure or close──▶ idle (with a pause after a failure)
                     └──failure──────────────────────▶

1. The client of the ``mcp`` package is opened and closed in one separate task, because its resources can be released
   only in the task that acquired them.
2. Each request has a timeout. If a server exceeds the timeout or its connection breaks, the connection is closed and
   its pending calls fail. If a server answers with an error, the connection stays open.
3. A local server receives one request at a time, because most servers were never tested with more. Concurrent answers
   take turns. A request that has waited for the full timeout fails, so that its client receives an answer in bounded
   time.
4. With each consecutive failure, the pause before the next attempt to connect becomes longer, up to a minute. During
   the pause, calls fail immediately.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client, MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, REQUEST_TIMEOUT, Implementation

from toolsim.core.fair_lock import FairLock
from toolsim.mcp import web
from toolsim.mcp.catalog import MAX_TOOLS, RemoteTool, remote_tool
from toolsim.mcp.outcome import ToolOutcome, failed, outcome_of
from toolsim.mcp.runtime import NO_CALLER, Caller
from toolsim.mcp.servers import Server
from toolsim.mcp.stdio import run_server
from toolsim.version import __version__

logger = logging.getLogger(__name__)
# The ``mcp`` package and its HTTP client log URLs and messages from servers, which might contain secrets.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_MAX_PAGES = 20
_MAX_PAUSE = 60.0
# The error codes that the ``mcp`` client uses if the connection has failed, rather than the tool.
_BROKEN = (CONNECTION_CLOSED, REQUEST_TIMEOUT, INVALID_REQUEST)
_MAX_WORDS = 300


class ServerFailed(Exception):
    """Raised if a server could not be reached or did not answer. The message contains the reason, without secrets."""


class McpConnection:
    """The connection to one server. The server's ``timeout`` applies to opening the connection and to each request."""

    def __init__(self, server: Server, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.server = server
        self.used = clock()
        self._clock = clock
        self._life: _Session | None = None
        self._opening = asyncio.Lock()
        self._turns = FairLock()
        self._tools: tuple[RemoteTool, ...] | None = None
        self._failures = self._asking = 0
        self._ending: set[asyncio.Task[None]] = set()
        self._not_before = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a request is waiting or in progress."""
        return self._asking > 0

    async def tools(self, who: Caller = NO_CALLER) -> tuple[RemoteTool, ...]:
        """Return the server's tools. The server is asked only once per connection.

        Raises ServerFailed if the server is busy for too long, cannot be reached, or reports an error.
        """
        if self._tools is None or self._life is None or self._life.is_over:
            self._tools = await self._asked(self._listed, who)
        return self._tools

    async def call(self, tool: str, arguments: Mapping[str, Any], limit: int, who: Caller = NO_CALLER) -> ToolOutcome:
        """Call a tool.

        ``limit`` is the maximum size of the output in bytes. Server failures are reported in the outcome, never raised.
        """

        async def called(client: Client) -> ToolOutcome:
            try:
                answer = await client.call_tool(tool, dict(arguments))
            except MCPError as error:
                if error.code in _BROKEN:
                    raise
                return failed(self._words(error), number=error.code)
            parts = [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in answer.content]
            structured = answer.structured_content
            return outcome_of(parts, structured, is_error=bool(answer.is_error), limit=limit)

        try:
            return await self._asked(called, who)
        except ServerFailed as problem:
            return failed(str(problem))

    async def close(self) -> None:
        """Close the connection. Callers that wait for an answer receive an error."""
        life, self._life = self._life, None
        if life is not None:
            life.end_later()
            self._ends(life)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _ends(self, life: _Session) -> None:
        # A reference to the task is kept, because asyncio itself holds only weak references to tasks.
        if life.task is not None:
            self._ending.add(life.task)
            life.task.add_done_callback(self._ending.discard)

    async def _listed(self, client: Client) -> tuple[RemoteTool, ...]:
        tools: list[RemoteTool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                hints = tool.annotations
                is_read_only = bool(hints and hints.read_only_hint)
                tools.append(remote_tool(tool.name, tool.description, tool.input_schema, is_read_only=is_read_only))
            cursor = page.next_cursor
            if not cursor or len(tools) >= MAX_TOOLS:
                break
        return tuple(tools)

    async def _asked[T](self, question: Callable[[Client], Awaitable[T]], who: Caller) -> T:
        """Wait for the server to be free, open the connection if necessary, and send a request.

        Raises ServerFailed if the server is busy for too long, cannot be reached, or reports an error.
        """
        self._asking += 1
        try:
            if not self.server.command:
                return await self._answer(question)
            try:
                async with asyncio.timeout(self.server.timeout):
                    release = await self._turns.acquire(who)
            except TimeoutError:
                label, seconds = self.server.label, self.server.timeout
                message = f"The server {label!r} is busy: it was still handling other requests after {seconds:g} s."
                raise ServerFailed(message) from None
            try:
                return await self._answer(question)
            finally:
                release()
        finally:
            self._asking -= 1
            self.used = self._clock()

    async def _answer[T](self, question: Callable[[Client], Awaitable[T]]) -> T:
        life: _Session | None = None
        try:
            async with asyncio.timeout(self.server.timeout):
                life = await self._opened()
                answer = await question(life.client)
        except ServerFailed:
            raise
        except TimeoutError:
            raise self._given_up(life, f"it did not answer within {self.server.timeout:g} seconds") from None
        except OSError as problem:
            # The exception's message is not used, because it contains file names on this machine.
            what = "be started" if self.server.command else "be reached"
            raise self._given_up(life, f"it cannot {what} ({type(problem).__name__})") from problem
        except Exception as problem:
            # Most exceptions of the ``mcp`` client are undocumented, so any exception ends this connection.
            raise self._given_up(life, self._words(problem)) from problem
        self._failures = 0
        return answer

    async def _opened(self) -> _Session:
        async with self._opening:
            if self._life is None or self._life.is_over:
                if (pause := self._not_before - self._clock()) > 0:
                    label = self.server.label
                    raise ServerFailed(f"The server {label!r} has failed; try again in {pause:.0f} s.")
                self._life, self._tools = _Session(self), None
            # The session may still be opening, even if the call that started it has been canceled.
            life = self._life
            await life.begin()
            return life

    def _given_up(self, life: _Session | None, why: str) -> ServerFailed:
        """Close a failed connection, start the pause before the next attempt, and return the error for the caller."""
        life = life or self._life
        if life is not None and life is self._life:
            self._life = None
            self._failures += 1
            self._not_before = self._clock() + min(_MAX_PAUSE, 2.0 ** min(self._failures - 1, 10) - 1)
        if life is not None:
            why = "; ".join([*life.cut, why])
            # The session is closed in the background. Closing can take a while, and the caller may already have waited
            # for the full timeout.
            life.has_failed = True
            life.end_later()
            self._ends(life)
        words = " ".join(self.clean(why).split())[:_MAX_WORDS]
        logger.warning("toolsim: the MCP server %r failed: %s", self.server.label, words)
        return ServerFailed(f"The server {self.server.label!r} failed: {words}")

    def _words(self, problem: BaseException) -> str:
        while isinstance(problem, BaseExceptionGroup):
            problem = problem.exceptions[0]
        return self.clean(str(problem) or type(problem).__name__)

    def clean(self, text: str) -> str:
        """Return text with the server's secrets and URL removed."""
        for secret in self.server.secrets:
            text = text.replace(secret, "[redacted]")
        return text.replace(self.server.url, "its address") if self.server.url else text


class _Session:
    """Opens, keeps and closes the ``mcp`` client for a server, all in one separate task."""

    def __init__(self, connection: McpConnection) -> None:
        self._connection = connection
        self._up: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._last_words: list[str] = []
        self.cut: list[str] = []
        """The reasons why the server was disconnected, such as an exceeded limit."""
        self.has_failed = False

    @property
    def client(self) -> Client:
        """The ``mcp`` client of an open session."""
        return self._up.result()

    @property
    def is_over(self) -> bool:
        """Whether the session can accept no further requests."""
        return self._closing.is_set() or (self.task is not None and self.task.done())

    async def begin(self) -> None:
        """Open the session, or wait until it is open. If this fails, the exception of the ``mcp`` package is raised."""
        self.task = self.task or asyncio.create_task(self._run())
        await asyncio.shield(self._up)

    def end_later(self) -> None:
        """Close the session in the background."""
        self._closing.set()
        if not self._up.done() and self.task is not None:
            self.task.cancel()

    async def _run(self) -> None:
        info = Implementation(name="toolsim", version=__version__)
        try:
            # Every server supports this legacy handshake. A probe for the newer handshake makes some servers exit.
            async with Client(self._transport(), mode="legacy", client_info=info, cache=None) as client:
                self._up.set_result(client)
                await self._closing.wait()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:
            # If the session could not be opened, the waiting callers receive the exception. If its task was canceled
            # instead, they receive the error "the connection was closed".
            if not self._up.done():
                is_plain = isinstance(problem, Exception)
                self._up.set_exception(problem if is_plain else ConnectionError("the connection was closed"))
                self._up.exception()
        finally:
            self._closing.set()
            never_up = self._up.done() and self._up.exception() is not None
            if (self.has_failed or never_up) and self._last_words:
                # The server's standard error is only logged, so that only the operator sees it.
                label, words = self._connection.server.label, self._connection.clean(self._last_words[-1])
                logger.warning(
                    "toolsim: the last error output of the MCP server %r: %s", label, words[-_MAX_WORDS:].strip()
                )

    @asynccontextmanager
    async def _transport(self) -> AsyncGenerator[Any]:
        server = self._connection.server
        if server.command:
            async with run_server(server, self.cut.append, self._last_words.append) as streams:
                yield streams
        else:
            async with web.connect(server) as streams:
                yield streams
