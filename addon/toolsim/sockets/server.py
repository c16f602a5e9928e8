"""The server that the upgraded connections lead to: frames, pings and close codes, by tornado."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from toolsim.core.errors import ApiError
from toolsim.core.shares import Shares
from toolsim.proxy.head import internal_error
from toolsim.proxy.jobs import Done, Job, PluginJob
from toolsim.proxy.mitmproxy12.relay import note_end
from toolsim.proxy.upgrades import TOKEN, Upgrade
from toolsim.sockets.connection import Connection
from toolsim.sockets.posts import Post
from toolsim.sockets.protocol import BadMessage, Context, Message, Recent, message_or_error

logger = logging.getLogger(__name__)

PING_SECONDS = 30.0
"""Between two pings. Proxies and routers forget connections that are silent."""
SILENT_SECONDS = 600.0
"""How long a client may answer no ping. One that is busy reads nothing for a while."""
UNUSED_SECONDS = 3600.0
"""How long a connection may be open without a request, as with OpenAI."""
MEMORY_COUNT, MEMORY_BYTES = 10_000, 256 * 1024 * 1024
"""Of the conversations that all connections remember together."""
STOP_SECONDS = 2.0
"""How long a client may take to read that the proxy stops."""

GOING_AWAY, UNSUPPORTED_DATA, POLICY = 1001, 1003, 1008


class SocketServer:
    """Serves the upgrades that it is told to expect, on 127.0.0.1:``port``, from ``start`` to ``stop``.

    ``has_store``: whether the proxy stores answers now; ``do`` does a job, here or in a worker.
    """

    def __init__(self, has_store: Callable[[], bool], do: Callable[[Job], Awaitable[Done]]) -> None:
        self._do = do
        self.port = 0
        self._counts: Counter[str] = Counter()  # Open connections, by their owners.
        self.has_store = has_store
        self.memory = Shares[Context](MEMORY_COUNT, MEMORY_BYTES)
        """The conversations of all connections."""
        self._expected: dict[str, tuple[Upgrade, int]] = {}
        self._open: set[_Handler] = set()
        self._server: HTTPServer | None = None

    def start(self) -> None:
        """Bind a free port. Raises OSError if there is none."""
        listening = bind_sockets(0, "127.0.0.1")
        self.port = listening[0].getsockname()[1]
        # The addon logs each request already.
        application = Application([(r"/.*", _Handler, {"server": self})], log_function=lambda _handler: None)
        self._server = HTTPServer(application)
        self._server.add_sockets(listening)

    async def stop(self) -> None:
        """Tell all clients, and close their connections."""
        if self._server is None:
            return
        self._server.stop()
        await asyncio.gather(*(handler.stop() for handler in list(self._open)), return_exceptions=True)
        await self._server.close_all_connections()
        self._server = None

    async def read(self, data: bytes, owner: str) -> Message:
        """Read a message of an owner. Raises BadMessage."""
        done = await self._do(PluginJob(data, len(data), message_or_error, owner=owner))
        match done.read:
            case Message() as message:
                return message
            case (ApiError() as error, str(lane)):
                raise BadMessage(error, lane)
        if done.crash:
            logger.error("toolsim failed to read a message; please report this.\n%s", done.crash)
        raise BadMessage(done.error or internal_error())

    def count(self, owner: str) -> int:
        """Return how many connections an owner has, those that are being opened included."""
        return self._counts[owner] + sum(upgrade.owner == owner for upgrade, _ in self._expected.values())

    def admit(self, upgrade: Upgrade, max_bytes: int) -> str:
        """Return the token with which one upgrade is accepted; ``max_bytes``: of a request."""
        token = secrets.token_hex(16)
        self._expected[token] = upgrade, max_bytes
        return token

    def take(self, token: str) -> tuple[Upgrade, int] | None:
        """Return what a token was given for, once."""
        return self._expected.pop(token, None)

    def forget(self, upgrade: Upgrade) -> None:
        """Forget an upgrade that never came."""
        for token in [token for token, (expected, _) in self._expected.items() if expected is upgrade]:
            del self._expected[token]

    def opened(self, handler: _Handler, owner: str) -> None:
        """Enter a connection."""
        self._open.add(handler)
        self._counts[owner] += 1

    def closed(self, handler: _Handler, owner: str) -> None:
        """Forget a connection."""
        self._open.discard(handler)
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]


class _Handler(WebSocketHandler):
    """One connection."""

    def initialize(self, server: SocketServer) -> None:
        self._server = server
        self._upgrade: Upgrade | None = None
        self._max_bytes = 0
        self._connection: Connection | None = None
        self._watch: asyncio.Task[None] | None = None
        self._heard = self._used = time.monotonic()

    def set_default_headers(self) -> None:
        self.clear_header("Server")

    def prepare(self) -> None:
        taken = self._server.take(self.request.headers.get(TOKEN, ""))
        if taken is None:
            self.set_status(403)
            self.finish()
        else:
            self._upgrade, self._max_bytes = taken

    def check_origin(self, origin: str) -> bool:
        # The upgrade has been checked like any other request (``access``).
        return True

    @property
    def max_message_size(self) -> int:
        # What is too large as a request is refused as one; this only bounds the memory that it takes until then.
        return 2 * self._max_bytes

    async def open(self, *_args: str, **_kwargs: str) -> None:
        assert self._upgrade is not None
        self.set_nodelay(True)
        self._server.opened(self, self._upgrade.owner)
        read = partial(self._server.read, owner=self._upgrade.owner)
        ask = partial(Post, self._upgrade)
        recent = Recent(self._server.memory, self._upgrade.owner)
        self._connection = Connection(read, ask, self._send, recent, self._max_bytes, self._server.has_store)
        self._watch = asyncio.create_task(self._watched())

    async def on_message(self, message: str | bytes) -> None:
        self._heard = self._used = time.monotonic()
        if isinstance(message, bytes):
            self.close(UNSUPPORTED_DATA, "expected text messages")
        elif self._connection is not None:
            with suppress(ConnectionError):
                await self._connection.receive(message)

    def on_pong(self, data: bytes) -> None:
        self._heard = time.monotonic()

    def on_close(self) -> None:
        if self._connection is None or self._upgrade is None:
            return
        connection, self._connection = self._connection, None
        self._server.closed(self, self._upgrade.owner)
        note_end(self._upgrade.flow, self.close_code, self.close_reason or "")
        if self._watch is not None:
            self._watch.cancel()
        # In a task of its own: its answers are left, which takes a moment.
        self._watch = asyncio.create_task(connection.stop(None))

    async def stop(self) -> None:
        """Tell the client that the proxy stops, unless it reads nothing, and close."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                if self._connection is not None:
                    await self._connection.stop()
        self.close(GOING_AWAY, "the proxy is stopping")

    async def _send(self, messages: Sequence[str]) -> None:
        try:
            # One after the other: what a message that nobody awaits any more raises, the event loop reports as a crash.
            for message in messages:
                await self.write_message(message)
        except WebSocketClosedError:
            raise ConnectionError from None
        self._used = time.monotonic()

    async def _watched(self) -> None:
        """Ping the client, and close a connection that is dead or that nobody uses."""
        while True:
            await asyncio.sleep(PING_SECONDS)
            now = time.monotonic()
            is_busy = self._connection is not None and self._connection.is_busy
            if now - self._heard > SILENT_SECONDS:
                self.close(POLICY, "no answer to pings")
                return
            if now - self._used > UNUSED_SECONDS and not is_busy:
                self.close(GOING_AWAY, "unused for an hour")
                return
            with suppress(WebSocketClosedError):
                self.ping()
