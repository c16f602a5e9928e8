"""The connection to one server.

It is opened for the first request, kept open, dropped when it fails, and retried later.

    idle ──ask──▶ opening ──▶ up ──failure or close──▶ idle, not before a while has passed
                     └──failure──────────────────────▶

1. The package's client lives in a separate task, from opening to closing, because its resources can only be released in
   the task that acquired them.
2. Each request has a timeout. A server that exceeds the timeout, or whose connection breaks, is dropped, and its
   pending calls fail. A server that answers with an error stays connected.
3. A local server receives one request at a time, because most servers were never tested with more. Answers take turns,
   and a request that has waited for the full timeout fails, so that its client receives an answer in bounded time.
4. After each consecutive failure, the pause before the next attempt is longer, up to a minute. Meanwhile, calls fail
   immediately.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from mcp import Client, MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, REQUEST_TIMEOUT, Implementation

from toolsim.mcp import web
from toolsim.mcp.catalog import MAX_TOOLS, RemoteTool, remote_tool
from toolsim.mcp.fair_lock import FairLock
from toolsim.mcp.outcome import ToolOutcome, failed, outcome_of
from toolsim.mcp.runtime import NO_CALLER, Caller
from toolsim.mcp.servers import Server
from toolsim.mcp.stdio import run_server
from toolsim.version import __version__

logger = logging.getLogger(__name__)
# The package ``mcp`` and its HTTP client log URLs and the messages of a server, which might contain secrets.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_MAX_PAGES = 20
_MAX_PAUSE = 60.0
# The client's error codes for failures of the connection rather than of the tool.
_BROKEN = (CONNECTION_CLOSED, REQUEST_TIMEOUT, INVALID_REQUEST)
_MAX_WORDS = 300


class ServerFailed(Exception):
    """Raised if a server could not be reached or did not answer. The message contains the reason, without secrets."""


class McpConnection:
    """The connection to one server. ``timeout`` applies to each request and to opening the connection."""

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
        """Whether any requests are in flight."""
        return self._asking > 0

    async def tools(self, who: Caller = NO_CALLER) -> tuple[RemoteTool, ...]:
        """Return the server's tools. They are listed once per connection. Raises ServerFailed."""
        if self._tools is None or self._life is None or self._life.is_over:
            self._tools = await self._asked(self._listed, who)
        return self._tools

    async def call(self, tool: str, arguments: Mapping[str, Any], limit: int, who: Caller = NO_CALLER) -> ToolOutcome:
        """Call a tool.

        ``limit`` is the maximum size of its output in bytes. Never raises an exception, regardless of the server.
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
        """Close the connection. Waiting callers receive an error."""
        life, self._life = self._life, None
        if life is not None:
            life.end_later()
            self._ends(life)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _ends(self, life: _Session) -> None:
        # The session keeps its task, because asyncio itself holds only weak references to tasks.
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
        """Send a request. If necessary, open the connection first. Raises ServerFailed."""
        self._asking += 1
        try:
            if not self.server.command:
                return await self._answer(question)
            async with AsyncExitStack() as stack:
                try:
                    await stack.enter_async_context(self._turns.acquire(who, self.server.timeout))
                except TimeoutError:
                    label, seconds = self.server.label, self.server.timeout
                    message = f"The server {label!r} is busy: this request waited {seconds:g} s for its turn."
                    raise ServerFailed(message) from None
                return await self._answer(question)
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
            raise self._given_up(life, f"it gave no answer within {self.server.timeout:g} seconds") from None
        except OSError as problem:
            # The exception's message is not used, because it contains the names of files on this machine.
            what = "be started" if self.server.command else "be reached"
            raise self._given_up(life, f"it cannot {what} ({type(problem).__name__})") from problem
        except Exception as problem:
            # Most of the client's exceptions are undocumented, so any exception ends this connection.
            raise self._given_up(life, self._words(problem)) from problem
        self._failures = 0
        return answer

    async def _opened(self) -> _Session:
        async with self._opening:
            if self._life is None or self._life.is_over:
                if (pause := self._not_before - self._clock()) > 0:
                    label = self.server.label
                    raise ServerFailed(f"The server {label!r} has failed; the next attempt is in {pause:.0f} s.")
                self._life, self._tools = _Session(self), None
            # The session might still be opening, because the caller that requested it might be gone.
            life = self._life
            await life.begin()
            return life

    def _given_up(self, life: _Session | None, why: str) -> ServerFailed:
        """Close a connection that failed, and return the error to report to the caller."""
        life = life or self._life
        if life is not None and life is self._life:
            self._life = None
            self._failures += 1
            self._not_before = self._clock() + min(_MAX_PAUSE, 2.0 ** min(self._failures - 1, 10) - 1)
        if life is not None:
            why = "; ".join([*life.cut, why])
            # Closing happens in the background, because it can take a while and the caller has no time left.
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
        """Return text without the server's secrets and URL."""
        for secret in self.server.secrets:
            text = text.replace(secret, "[redacted]")
        return text.replace(self.server.url, "its address") if self.server.url else text


class _Session:
    """The lifetime of a server's client, from opening to closing, in a separate task."""

    def __init__(self, connection: McpConnection) -> None:
        self._connection = connection
        self._up: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._last_words: list[str] = []
        self.cut: list[str] = []
        """The reasons for which the server was disconnected, such as an exceeded limit."""
        self.has_failed = False

    @property
    def client(self) -> Client:
        """The client of an open session."""
        return self._up.result()

    @property
    def is_over(self) -> bool:
        """Whether no further request can be sent."""
        return self._closing.is_set() or (self.task is not None and self.task.done())

    async def begin(self) -> None:
        """Open the session, or wait until it is open. Raises the exceptions of the package ``mcp``."""
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
            # Every server supports this legacy handshake. A probe for the newer one causes some servers to exit.
            async with Client(self._transport(), mode="legacy", client_info=info, cache=None) as client:
                self._up.set_result(client)
                await self._closing.wait()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:
            # Callers that wait for the session receive the exception, or a "connection closed" error if the task was
            # canceled.
            if not self._up.done():
                is_plain = isinstance(problem, Exception)
                self._up.set_exception(problem if is_plain else ConnectionError("the connection was closed"))
                self._up.exception()
        finally:
            self._closing.set()
            never_up = self._up.done() and self._up.exception() is not None
            if (self.has_failed or never_up) and self._last_words:
                # The server's standard error is logged, so that only the operator sees it.
                label, words = self._connection.server.label, self._connection.clean(self._last_words[-1])
                logger.warning("toolsim: the last output of the MCP server %r: %s", label, words[-_MAX_WORDS:].strip())

    @asynccontextmanager
    async def _transport(self) -> AsyncGenerator[Any]:
        server = self._connection.server
        if server.command:
            async with run_server(server, self.cut.append, self._last_words.append) as streams:
                yield streams
        else:
            async with web.connect(server) as streams:
                yield streams
