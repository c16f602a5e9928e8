"""A text-only model server for tests, with all three APIs or only some of them, and without support for tools.

It accepts only messages: ``tools`` are ignored, and any other item (a ``function_call``, or a role ``tool``) causes a
400. The test scripts the answers, and can check the recorded requests and the sent part of each answer. The server
deliberately shares no code with toolsim.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from support.wire import (
    FULL_RESPONSE,
    ApiName,
    BackendAnswer,
    ChatAnswer,
    Json,
    MessagesAnswer,
    ResponsesAnswer,
    usage,
)
from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

Ending = Literal["stop", "length", "error", "eof", "hang"]
"""How an answer ends.

``stop``: complete; ``length``: at the token limit; ``error``: with an error event; ``eof``: without a terminator, or in
the middle of a non-streamed answer; ``hang``: only when the client disconnects.
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer: ``pieces`` of text, each after a pause of ``pause`` seconds. Any ``status`` other than 200 is an HTTP
    error.

    ``thought``: reasoning that is sent before the text. ``item``: an output item from a hosted tool, in the Responses
    API.
    """

    pieces: tuple[str, ...] = ()
    thought: str = ""
    item: tuple[tuple[str, str], ...] = ()
    pause: float = 0.0
    ending: Ending = "stop"
    status: int = 200
    message: str = "The model is out."

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def says(*pieces: str, pause: float = 0.0, ending: Ending = "stop") -> Turn:
    """Return a turn that writes these texts."""
    return Turn(pieces, pause=pause, ending=ending)


def thinks(thought: str, *pieces: str, item: tuple[tuple[str, str], ...] = ()) -> Turn:
    """Return a turn that emits reasoning, and then writes these texts."""
    return Turn(pieces, thought, item)


def refuses(status: int, message: str) -> Turn:
    """Return a turn that fails with an HTTP error."""
    return Turn(status=status, message=message)


@dataclass(slots=True)
class Exchange:
    """A received request, and the sent part of its answer."""

    path: str
    headers: dict[str, str]
    raw: bytes
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    body: Json = field(default_factory=dict)
    transcript: list[tuple[str, str]] = field(default_factory=list)
    """The messages as (role, text). An image part is shown as ``<image URL>``."""
    sent: list[str] = field(default_factory=list)
    """The deltas that were written or, in a stream, accepted by the socket."""
    chunks: list[bytes] = field(default_factory=list)
    """All writes that the socket accepted."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the answer has been sent, or sending it has failed."""
    whole: bool = False
    """Whether the answer was sent completely."""

    @property
    def has_tool_output(self) -> bool:
        """Whether a user message contains a record of a tool output."""
        return any(
            role == "user" and re.search(r"^\[function_call_output ", text, re.MULTILINE)
            for role, text in self.transcript
        )


Rule = Callable[[Exchange], Turn]


def until_output(calls: Turn, words: Turn) -> Rule:
    """Return a rule that answers with ``calls`` until the transcript contains a tool output, then with ``words``."""
    return lambda exchange: words if exchange.has_tool_output else calls


class TextBackend:
    """The server, in a separate thread, as a context manager. ``url`` is its root, without ``/v1``.

    ``script`` is a rule, or a list with one turn per request. ``chunk_size``: the number of characters in each text
    delta; None uses the turn's own pieces. ``split``: the number of bytes in each write of an SSE frame. ``count``: the
    result of the token count endpoints, or None if there are none; ``counted``: the requests to them. ``models``: the
    model list; ``list_headers``: the headers of requests for the list. ``apis``: the APIs of the server; ``rejected``:
    the requested paths of other APIs, which fail with the status ``no_path``. ``has_usage``: whether answers contain
    token counts.
    """

    def __init__(
        self,
        script: Sequence[Turn] | Rule = (),
        *,
        chunk_size: int | None = None,
        split: int | None = None,
        apis: Sequence[ApiName] = ("responses", "chat"),
    ):
        self.apis = list(apis)
        self.rejected: list[str] = []
        self.no_path = 404
        self.exchanges: list[Exchange] = []
        self.models = ["text-model"]
        self.list_headers: list[dict[str, str]] = []
        self.has_usage = True
        self.count: int | None = None
        self.counted: list[Json] = []
        self.play(script, chunk_size=chunk_size, split=split)
        self._sockets = bind_sockets(0, "127.0.0.1")
        self.port: int = self._sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="text backend")

    def play(self, script: Sequence[Turn] | Rule, *, chunk_size: int | None = None, split: int | None = None) -> None:
        """Discard the recorded exchanges, and follow this script from now on."""
        self.exchanges = []
        self.chunk_size = chunk_size
        self.split = split
        self._script = script if callable(script) else list(script)

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` requests have arrived."""
        end = time.monotonic() + 60
        while len(self.exchanges) < count:
            assert time.monotonic() < end, f"asked {len(self.exchanges)} times, not {count}"
            time.sleep(0.02)

    def __enter__(self) -> TextBackend:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        routes: list[Any] = [
            (r".*/responses", _Responses, {"backend": self}),
            (r".*/responses/input_tokens", _Counts, {"backend": self, "api": "responses"}),
            (r".*/chat/completions", _Chat, {"backend": self}),
            (r".*/messages", _Messages, {"backend": self}),
            (r".*/messages/count_tokens", _Counts, {"backend": self, "api": "messages"}),
            (r".*/models", _Models, {"backend": self}),
        ]
        server = HTTPServer(Application(routes, log_function=lambda handler: None))
        server.add_sockets(self._sockets)
        self._ready.set()
        await self._stop.wait()
        server.stop()
        await server.close_all_connections()

    def _next(self, exchange: Exchange) -> Turn:
        if callable(self._script):
            return self._script(exchange)
        return self._script.pop(0) if self._script else refuses(400, "The script has no more turns.")

    def _deltas(self, turn: Turn) -> Iterator[str]:
        if self.chunk_size is None:
            yield from turn.pieces
        else:
            for start in range(0, len(turn.text), self.chunk_size):
                yield turn.text[start : start + self.chunk_size]


class _Models(RequestHandler):
    def initialize(self, backend: TextBackend) -> None:
        self.backend = backend

    def get(self) -> None:
        self.backend.list_headers.append({name.lower(): value for name, value in self.request.headers.get_all()})
        models = [{"id": name, "object": "model", "owned_by": "tests"} for name in self.backend.models]
        self.write({"object": "list", "data": models})


class _Counts(RequestHandler):
    def initialize(self, backend: TextBackend, api: ApiName) -> None:
        self.backend, self.api = backend, api

    def post(self) -> None:
        self.backend.counted.append(json.loads(self.request.body))
        if self.backend.count is None or self.api not in self.backend.apis:
            self.set_status(404)
            self.write({"detail": "Not Found"})
        else:
            self.write({"object": "response.input_tokens", "input_tokens": self.backend.count})


class _Handler(RequestHandler):
    """The request handler that all APIs share. Each API defines how its requests are read."""

    api_name: ApiName

    def initialize(self, backend: TextBackend) -> None:
        self.backend = backend
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_connection_close(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    async def post(self) -> None:
        if self.api_name not in self.backend.apis:
            self.backend.rejected.append(self.request.path)
            self.set_status(self.backend.no_path)
            self.finish({"detail": "Not Found"})
            return
        headers = {name.lower(): value for name, value in self.request.headers.get_all()}
        self.exchange = Exchange(self.request.path, headers, self.request.body)
        try:
            self.exchange.body = json.loads(self.request.body)
            self.exchange.transcript = list(self.read(self.exchange.body))
        except (ValueError, TypeError, KeyError) as error:
            self.backend.exchanges.append(self.exchange)
            await self.refuse(refuses(400, f"A text model cannot read this: {error!r}"))
            return
        self.backend.exchanges.append(self.exchange)
        self.turn = self.backend._next(self.exchange)
        try:
            if self.turn.status != 200:
                await self.refuse(self.turn)
            elif self.exchange.body.get("stream"):
                await self.answer_stream()
            else:
                await self.answer_whole()
        except StreamClosedError:
            pass  # The client has disconnected; `sent` contains the deltas sent so far.
        finally:
            self.exchange.over.set()

    async def refuse(self, turn: Turn) -> None:
        self.set_status(turn.status)
        kind = "invalid_request_error" if turn.status < 500 else "server_error"
        await self.finish({"error": {"message": turn.message, "type": kind, "param": None, "code": None}})
        self.exchange.over.set()

    def begin(self) -> BackendAnswer:
        """Return the answer to send. Its token counts are numbers of words."""
        body, exchange, turn = self.exchange.body, self.exchange, self.turn
        words_in = sum(len(text.split()) for _, text in exchange.transcript)
        counts = usage(self.api_name, words_in, len(turn.text.split())) if self.backend.has_usage else None
        return self.new_answer(exchange.id, body.get("model", "text-model"), int(time.time()), counts)

    async def answer_stream(self) -> None:
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        answer, turn = self.begin(), self.turn
        await self.send_frames(answer.begin())
        if turn.thought:
            await self.send_frames(answer.add_reasoning(turn.thought))
        if turn.item and isinstance(answer, ResponsesAnswer):
            await self.send_frames(answer.item(dict(turn.item)))
        await self.send_frames(answer.begin_message())
        async for delta in self.deltas():
            await self.send_frames(answer.add_text(delta))
        match turn.ending:
            case "hang":
                await self.gone
                return
            case "error":
                error = {"message": turn.message, "type": "server_error", "param": None, "code": None}
                await self.send_frames(answer.fail(error))
            case "stop" | "length":
                await self.send_frames(answer.end(turn.ending))
        await self.finish()
        self.exchange.whole = True

    async def send_frames(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            size = self.backend.split or len(frame)
            for start in range(0, len(frame), size):
                await self.send(frame[start : start + size])

    async def answer_whole(self) -> None:
        answer, turn = self.begin(), self.turn
        if turn.thought:
            answer.add_reasoning(turn.thought)
        if turn.item and isinstance(answer, ResponsesAnswer):
            answer.item(dict(turn.item))
        answer.begin_message()
        async for delta in self.deltas():
            answer.add_text(delta)
        match turn.ending:
            case "error":
                await self.refuse(refuses(500, self.turn.message))
            case "hang":
                await self.gone
            case "eof":
                body = json.dumps(answer.whole()).encode()
                self.set_header("Content-Type", "application/json")
                self.set_header("Content-Length", str(len(body)))
                await self.send(body[: len(body) // 2])
                self.hang_up()
            case _:
                await self.finish(answer.whole(turn.ending))
                self.exchange.whole = True

    async def deltas(self) -> AsyncIterator[str]:
        """Yield the turn's text in deltas, with its pauses, and record each delta that was accepted."""
        for delta in self.backend._deltas(self.turn):
            if self.turn.pause:
                await asyncio.wait({self.gone}, timeout=self.turn.pause)
            yield delta
            self.exchange.sent.append(delta)

    async def send(self, data: bytes) -> None:
        # Wait for the flush or for the end of the connection, because Tornado never completes the flush of a closed
        # connection.
        self.write(data)
        flushed = asyncio.ensure_future(self.flush())
        await asyncio.wait({flushed, self.gone}, return_when=asyncio.FIRST_COMPLETED)
        if self.gone.done():
            flushed.cancel()
            raise StreamClosedError
        flushed.result()
        self.exchange.chunks.append(data)

    def hang_up(self) -> None:
        self._finished = True  # Otherwise, Tornado would end the answer properly, as if it were complete.
        assert isinstance(self.request.connection, HTTP1Connection)
        self.request.connection.stream.close()

    def read(self, body: Json) -> Iterator[tuple[str, str]]:
        raise NotImplementedError

    def new_answer(self, id: str, model: str, created: int, counts: Json | None) -> BackendAnswer:
        raise NotImplementedError


def _content(content: str | list[Json]) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        match part["type"]:
            case "input_text" | "output_text" | "text":
                texts.append(part["text"])
            case "input_image" | "image_url":
                url = part["image_url"]
                texts.append(f"<image {url if isinstance(url, str) else url['url']}>")
            case other:
                raise ValueError(f"content part {other}")
    return "".join(texts)


class _Responses(_Handler):
    api_name = "responses"

    def read(self, body: Json) -> Iterator[tuple[str, str]]:
        if body.get("instructions"):
            yield "system", body["instructions"]
        if isinstance(body["input"], str):
            yield "user", body["input"]
            return
        for item in body["input"]:
            if item.get("type", "message") != "message" or item["role"] not in _ROLES:
                raise ValueError(f"item {item.get('type')} of {item.get('role')}")
            yield item["role"], _content(item["content"])

    def new_answer(self, id: str, model: str, created: int, counts: Json | None) -> BackendAnswer:
        asked = {name: self.exchange.body.get(name) for name in ("instructions", "max_output_tokens")}
        return ResponsesAnswer(id=id, model=model, created=created, counts=counts, fields=FULL_RESPONSE | asked)


class _Chat(_Handler):
    api_name = "chat"

    def read(self, body: Json) -> Iterator[tuple[str, str]]:
        for message in body["messages"]:
            if message["role"] not in _ROLES or message.get("tool_calls") or message.get("function_call"):
                raise ValueError(f"message of {message['role']} with {sorted(message)}")
            yield message["role"], _content(message["content"])

    def new_answer(self, id: str, model: str, created: int, counts: Json | None) -> BackendAnswer:
        options = self.exchange.body.get("stream_options") or {}
        counting = not self.exchange.body.get("stream") or options.get("include_usage")
        return ChatAnswer(id=id[:29], model=model, created=created, counts=counts if counting else None)


class _Messages(_Handler):
    api_name = "messages"

    def read(self, body: Json) -> Iterator[tuple[str, str]]:
        if body.get("system"):
            yield "system", _content(body["system"])
        for message in body["messages"]:
            if message["role"] not in ("user", "assistant"):
                raise ValueError(f"message of {message['role']}")
            yield message["role"], _content(message["content"])

    def new_answer(self, id: str, model: str, created: int, counts: Json | None) -> BackendAnswer:
        return MessagesAnswer(id=id[:24], model=model, counts=counts)


_ROLES = frozenset({"system", "developer", "user", "assistant"})
