"""Implements the loopback server for upgraded connections: accepts, monitors and closes them."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial

from wsproto.events import RejectConnection

from toolsim.core.errors import FAILED, ApiError
from toolsim.core.fair_cache import FairCache
from toolsim.proxy.jobs import PluginJob, RunJob
from toolsim.proxy.mitmproxy12.backpressure import bound_buffers
from toolsim.proxy.mitmproxy12.relay import note_end
from toolsim.proxy.upgrades import BUFFER_BYTES, TOKEN, ClientUpgrade
from toolsim.sockets.connection import SocketConnection, TooManyUnread
from toolsim.sockets.protocol import BadMessage, ClientMessage, Context, RecentTurns, message_or_error
from toolsim.sockets.requests import Backlog, SocketRequest
from toolsim.sockets.websocket import GOING_AWAY, INTERNAL_ERROR, POLICY, WebSocket

PING_SECONDS = 30.0
"""Seconds between two pings. Pings are needed because proxies and routers drop silent connections."""
SILENT_SECONDS = 600.0
"""Timeout, in seconds, for a client's reply to a ping. It is long, because a busy client might not read for a while."""
UNUSED_SECONDS = 3600.0
"""Timeout, in seconds, of a connection without a request. OpenAI uses the same timeout."""
MEMORY_COUNT, MEMORY_BYTES = 10_000, 256 * 1024 * 1024
"""Maximum number of remembered conversations across all connections, and their maximum total size in bytes."""
STOP_SECONDS = 2.0
"""Timeout, in seconds, for a client to read errors when the proxy shuts down. The close frame that follows
has the same timeout.
"""


class SocketServer:
    """Serves admitted WebSocket connections on 127.0.0.1:``port``, from ``start`` to ``stop``.

    ``has_store`` returns whether the proxy currently stores answers. ``do`` runs a job in this process or in a worker
    process.
    """

    def __init__(self, has_store: Callable[[], bool], do: RunJob) -> None:
        self._do = do
        self.port = 0
        self.has_store = has_store
        self.memory = FairCache[Context](MEMORY_COUNT, MEMORY_BYTES)
        """The conversations that are remembered across all connections."""
        self._expected: dict[str, tuple[ClientUpgrade, int]] = {}
        self.handlers: dict[_Handler, str] = {}
        """The handlers of the open connections, and each connection's owner."""
        self._server: asyncio.Task[asyncio.Server] | None = None
        self.is_draining = False
        """Whether each connection is closed as soon as its answers in progress have ended."""

    def start(self) -> None:
        """Bind a free port. Raises OSError if no port is free."""
        listening = socket.create_server(("127.0.0.1", 0))
        bound_buffers(listening, BUFFER_BYTES)
        self.port = listening.getsockname()[1]
        # Connections that arrive before this task runs are queued by the kernel.
        serving = asyncio.start_server(self._connected, sock=listening, limit=BUFFER_BYTES)
        self._server = asyncio.get_running_loop().create_task(serving)

    def drain(self) -> None:
        """Close each connection, with the code 1001, as soon as no answer is in progress."""
        self.is_draining = True
        for handler in list(self.handlers):
            handler.close_if_idle()

    async def stop(self) -> None:
        """Notify all clients that the proxy is stopping, and close their connections."""
        if self._server is None:
            return
        (await self._server).close()
        await asyncio.gather(*(handler.stop() for handler in list(self.handlers)), return_exceptions=True)
        self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        websocket = WebSocket(reader, writer)
        try:
            if (request := await websocket.upgrade()) is None:
                return
            token = dict(request.extra_headers).get(TOKEN.encode(), b"").decode("latin-1")
            taken = self.take(token)
            if taken is None:
                websocket.reject(RejectConnection(status_code=403))
                return
            websocket.accept()
            await _Handler(self, websocket, *taken).run()
        except OSError:
            pass  # The client is gone. Any other exception is logged by mitmproxy.
        finally:
            websocket.shut()

    async def read(self, data: bytes, owner: str) -> ClientMessage:
        """Parse a client's message in a worker. ``owner`` identifies the client.

        Raises BadMessage if the message is invalid or cannot be processed.
        """
        done = await self._do(PluginJob(message_or_error, data=data, limit=len(data), owner=owner))
        match done.read:
            case ClientMessage() as message:
                return message
            case (ApiError() as error, str(lane)):
                raise BadMessage(error, lane)
        raise BadMessage(done.error or FAILED)

    def count(self, owner: str) -> int:
        """Return the number of an owner's connections. Connections that are still being opened count, too."""
        expected = (upgrade.owner for upgrade, _ in self._expected.values())
        return sum(each == owner for each in (*self.handlers.values(), *expected))

    def admit(self, upgrade: ClientUpgrade, max_bytes: int) -> str:
        """Return a token that admits this upgrade request. ``max_bytes`` limits the size of each request on its
        connection.
        """
        token = secrets.token_hex(16)
        self._expected[token] = upgrade, max_bytes
        return token

    def take(self, token: str) -> tuple[ClientUpgrade, int] | None:
        """Return a token's upgrade request and the size limit of each request, or None for an unknown token.

        A token can be used only once.
        """
        return self._expected.pop(token, None)

    def forget(self, upgrade: ClientUpgrade) -> None:
        """Withdraw the token of an upgrade request that never arrived."""
        for token in [token for token, (expected, _) in self._expected.items() if expected is upgrade]:
            del self._expected[token]


class _Handler:
    """Serves one connection. ``max_bytes`` limits the size of a request."""

    def __init__(self, server: SocketServer, websocket: WebSocket, upgrade: ClientUpgrade, max_bytes: int) -> None:
        self._server = server
        self._websocket = websocket
        self._upgrade = upgrade
        self._max_bytes = max_bytes
        self._heard = self._used = time.monotonic()
        self._ended = asyncio.Event()
        owner = upgrade.owner
        self._connection = SocketConnection(
            partial(server.read, owner=owner),
            partial(SocketRequest, upgrade, Backlog()),
            self._send,
            RecentTurns(server.memory, owner),
            max_bytes,
            server.has_store,
            self._turn_is_over,
        )

    async def run(self) -> None:
        """Serve the connection until it ends. Raises OSError if the client is gone."""
        websocket = self._websocket
        # Each of these steps runs even if another one fails.
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._connection.stop, None)
            stack.callback(self._ended.set)
            stack.callback(websocket.shut)
            stack.callback(self._note_end)
            self._server.handlers[self] = self._upgrade.owner
            stack.callback(self._server.handlers.pop, self)
            stack.callback(asyncio.create_task(self._watched()).cancel)
            try:
                await self._receive()
            except Exception as problem:
                if not isinstance(problem, OSError):
                    websocket.close(INTERNAL_ERROR, "internal error")
                raise

    async def _receive(self) -> None:
        """Pass on the client's messages until the connection ends."""
        # Requests that exceed the limit are rejected individually. The limit for a message is higher, and only bounds
        # the memory.
        async with aclosing(self._websocket.messages(2 * self._max_bytes)) as messages:
            async for message in messages:
                self._heard = self._used = time.monotonic()
                try:
                    if not await self._connection.receive(message):
                        self._websocket.unreadable()
                except TooManyUnread:
                    self._websocket.violate(POLICY, "too many unread errors")

    def _note_end(self) -> None:
        note_end(self._upgrade.flow, *(self._websocket.end or (None, "")))

    def close_if_idle(self) -> None:
        """Close the connection if no answer is in progress."""
        if not self._connection.is_busy:
            self._websocket.close(GOING_AWAY, "the proxy is stopping")

    async def stop(self) -> None:
        """Report to the client that the proxy is stopping, and close the connection.

        Reporting and closing each have a timeout.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._connection.stop()
        self._websocket.close(GOING_AWAY, "the proxy is stopping")
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._ended.wait()

    def _turn_is_over(self) -> None:
        if self._server.is_draining:
            self.close_if_idle()

    async def _send(self, messages: Sequence[str]) -> None:
        for message in messages:
            await self._websocket.send(message)
        self._used = time.monotonic()

    async def _watched(self) -> None:
        """Ping the client at intervals. Close the connection if the client no longer answers or sends no requests."""
        pongs = 0
        while True:
            await asyncio.sleep(PING_SECONDS)
            now = time.monotonic()
            if self._websocket.pongs > pongs:
                pongs, self._heard = self._websocket.pongs, now
            if now - self._heard > SILENT_SECONDS:
                self._websocket.close(POLICY, "no answer to pings")
                return
            if now - self._used > UNUSED_SECONDS and not self._connection.is_busy:
                self._websocket.close(GOING_AWAY, "no request for an hour")
                return
            self._websocket.ping()
