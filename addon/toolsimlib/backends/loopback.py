"""An HTTP server on 127.0.0.1 that presents one of our own backends as a text-only OpenAI upstream.

A hook of mitmproxy cannot stream an answer that it makes itself; so our own backends answer over HTTP, in the event
loop that already runs, and join the house as any other upstream does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from toolsimlib.errors import ApiError, BadRequest
from toolsimlib.events import (
    BackendEvent,
    ClientEvent,
    Closed,
    Counted,
    Ended,
    Failed,
    Finished,
    FinishReason,
    Opened,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from toolsimlib.plan import Dialect
from toolsimlib.wire.dialect import APIS, Writer
from toolsimlib.wire.json_codec import dump

# Images travel as data URLs inside of the JSON body; OpenAI's own limit is 512 MB for all of a request.
MAX_BODY_BYTES = 512 * 1024 * 1024


class TextBackend(Protocol):
    """What the loopback can present: an object that answers text to a request body."""

    chat: bool
    """Whether ``answer`` also reads chat bodies (``messages``), so that ``…/chat/completions`` is served too."""

    async def start(self) -> None:
        """Make ready; a backend that cannot serve yet does not raise here, but answers ``Failed`` (503)."""

    async def stop(self) -> None:
        """End all that the backend owns."""

    def answer(self, body: Mapping[str, Any]) -> AsyncGenerator[BackendEvent]:
        """Answer one request body, as events that end in ``Closed`` or ``Failed``.

        ``Opened`` comes first and says that the model has begun: a ``Failed`` in its place becomes an HTTP error.
        Closing the generator early stops the model. Raises errors.BadRequest for a body that cannot be served.
        """

    async def models(self) -> Sequence[str] | ApiError:
        """Return the ids of the models on offer."""


TOKEN = "toolsim-token"
"""The header by which the addon lets a web page's request through, whose origin it has checked."""


class Loopback:
    """Serve ``backend`` on 127.0.0.1:``port`` (0: any free port; ``port`` then tells which) until ``stop``.

    A web page that guesses the port could spend what is behind it: its requests, which name their origin, are refused
    unless they carry ``token``.
    """

    def __init__(self, backend: TextBackend, port: int = 0) -> None:
        self.backend = backend
        self.port = port
        self.token = secrets.token_hex(16)
        self._server: HTTPServer | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Bind the port and start the backend. Raises OSError when the port is taken."""
        sockets = bind_sockets(self.port, "127.0.0.1")
        self.port = sockets[0].getsockname()[1]
        context = {"backend": self.backend, "running": self._running, "token": self.token}
        application = Application(
            [(r"/.*/models|/models", _Models, context), (r"/.*", _Answers, context)],
            # Each request is already told by the addon's own line.
            log_function=lambda _handler: None,
        )
        self._server = HTTPServer(application, max_buffer_size=MAX_BODY_BYTES, max_body_size=MAX_BODY_BYTES)
        self._server.add_sockets(sockets)
        await self.backend.start()

    async def stop(self) -> None:
        """Refuse new requests, stop those that run, close their connections and stop the backend."""
        if self._server is None:
            return
        self._server.stop()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._server.close_all_connections()
        self._server = None
        await self.backend.stop()


class _Handler(RequestHandler):
    """Errors in the API's own shape, whatever raised them."""

    def initialize(self, backend: TextBackend, running: set[asyncio.Task[None]], token: str) -> None:
        self.backend = backend
        self.running = running
        self.token = token

    def prepare(self) -> None:
        headers = self.request.headers
        if "Origin" in headers and not secrets.compare_digest(headers.get(TOKEN, "").encode(), self.token.encode()):
            self.refuse(ApiError("Web pages are not served here.", "invalid_request_error", "forbidden", status=403))

    def refuse(self, error: ApiError) -> None:
        self.set_status(error.status)
        if error.retry_after is not None:
            self.set_header("Retry-After", str(error.retry_after))
        self.finish({"error": error.body()})

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        kind = "invalid_request_error" if status_code < 500 else "server_error"
        self.refuse(ApiError(f"{self.request.method} {self.request.path}: {self._reason}", kind, status=status_code))


class _Models(_Handler):
    """``GET …/models``."""

    async def get(self) -> None:
        models = await self.backend.models()
        if isinstance(models, ApiError):
            self.refuse(models)
            return
        data = [{"id": model, "object": "model", "created": 0, "owned_by": "toolsim"} for model in models]
        self.finish({"object": "list", "data": data})


class _Answers(_Handler):
    """``POST …/responses`` and ``POST …/chat/completions``."""

    _task: asyncio.Task[None] | None = None

    async def post(self) -> None:
        dialect = self._dialect()
        if dialect is None:
            self.refuse(ApiError(f"no such endpoint: POST {self.request.path}", "invalid_request_error", status=404))
            return
        try:
            body = json.loads(self.request.body)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            self.refuse(ApiError("the request body is not a JSON object", "invalid_request_error", status=400))
            return
        # The generation is a task of its own: the closing connection can cancel it without cancelling tornado's.
        self._task = asyncio.create_task(self._answer(dialect, body))
        self.running.add(self._task)
        try:
            await self._task
        except asyncio.CancelledError:
            # Cancelled by the client's leaving or by ``stop``: tornado would log a cancelled handler as an error, and
            # end one that just returns as if its answer were whole.
            if not self._task.cancelled():
                raise
            self.detach().close()
        finally:
            self.running.discard(self._task)

    def on_connection_close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _dialect(self) -> Dialect | None:
        if self.request.path.endswith("/responses"):
            return "responses"
        if self.request.path.endswith("/chat/completions") and self.backend.chat:
            return "chat"
        return None

    async def _answer(self, dialect: Dialect, body: dict[str, Any]) -> None:
        try:
            async with contextlib.aclosing(self.backend.answer(body)) as events:
                await self._write_all(dialect, body, events)
        except BadRequest as bad:
            self.refuse(bad.error)
        except StreamClosedError:
            return

    async def _write_all(self, dialect: Dialect, body: dict[str, Any], events: AsyncIterator[BackendEvent]) -> None:
        writer: Writer | None = None
        stream = body.get("stream") is True
        reason: FinishReason = "stop"
        usage: Usage | None = None
        async for event in events:
            said: ClientEvent
            match event:
                case Opened():
                    writer = _writer(dialect, body, event)
                    said = event
                case Failed(error=error) if writer is None or not stream:
                    self.refuse(error)
                    return
                case TextDelta() | ReasoningDelta() | Failed():
                    said = event
                case Closed():
                    said = Ended({0: reason}, usage)
                case Finished():
                    reason = event.reason
                    continue
                case Counted():
                    usage = event.usage
                    continue
                case _:
                    raise TypeError(f"a text-only backend gave {event!r}")
            assert writer is not None
            for frame in writer.write(said):
                self.set_header("Content-Type", "text/event-stream")
                self.set_header("Cache-Control", "no-cache")
                self.write(frame)
                # A frame a chunk: some clients only read whole frames.
                await self.flush()
        if stream or writer is None or writer.body is None:
            self.finish()
        else:
            self.set_header("Content-Type", "application/json")
            self.finish(dump(writer.body))


def _writer(dialect: Dialect, body: Mapping[str, Any], opened: Opened) -> Writer:
    form = APIS[dialect].answer_form(body)
    return APIS[dialect].writer(replace(form, model=opened.model or form.model))
