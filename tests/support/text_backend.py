"""A text-only model server for tests: both OpenAI dialects, no idea of tools.

It reads messages and nothing else: ``tools`` are ignored, and an item that is no message (a ``function_call``, a role
``tool``) is a 400, as with any server that never heard of tools. What it answers is a script of the test's; what it
was asked, and how much of its answer it could send, is kept for assertions. On purpose it shares no line with toolsim.
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

from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

Json = dict[str, Any]

Ending = Literal["stop", "length", "error", "eof", "hang"]
"""How an answer ends: as it should; cut by the token limit; by an error event; by the stream's end without its
terminator (a whole answer: by a socket closed in its middle); or not at all, until the client goes."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: ``pieces`` of text, ``pause`` seconds before each; an HTTP error when ``status`` is not 200.

    ``thought``: what the model thinks aloud beforehand, beside its text; ``item``: an output item of a tool of the
    backend's own, in the Responses dialect.
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
    """Return a turn that writes these pieces."""
    return Turn(pieces, pause=pause, ending=ending)


def thinks(thought: str, *pieces: str, item: tuple[tuple[str, str], ...] = ()) -> Turn:
    """Return a turn that thinks aloud, and then writes these pieces."""
    return Turn(pieces, thought, item)


def refuses(status: int, message: str) -> Turn:
    """Return a turn that is an HTTP error."""
    return Turn(status=status, message=message)


@dataclass(slots=True)
class Exchange:
    """One request as it arrived, and what of its answer went out."""

    path: str
    headers: dict[str, str]
    raw: bytes
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    body: Json = field(default_factory=dict)
    transcript: list[tuple[str, str]] = field(default_factory=list)
    """The messages: (role, text); image parts are ``<image URL>``."""
    sent: list[str] = field(default_factory=list)
    """The deltas of text that were written (streamed: that the socket took)."""
    chunks: list[bytes] = field(default_factory=list)
    """All writes that the socket took."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the answer was sent, or could not be any more."""
    whole: bool = False
    """The answer went out to its end."""

    @property
    def has_tool_output(self) -> bool:
        """Whether a message of the user's holds a record of a tool's output."""
        return any(
            role == "user" and re.search(r"^\[function_call_output call_id=", text, re.MULTILINE)
            for role, text in self.transcript
        )


Rule = Callable[[Exchange], Turn]


def until_output(calls: Turn, words: Turn) -> Rule:
    """Return the rule "call until the transcript shows a tool's output, then answer in words"."""
    return lambda exchange: words if exchange.has_tool_output else calls


class TextBackend:
    """The server, in a thread of its own, from ``with`` to ``with``'s end; ``url`` is its root, without ``/v1``.

    ``script`` is a list of turns, one per request, or a rule. ``chunk_size`` cuts the text into deltas of so many
    characters (None: the turn's own pieces), ``split`` the bytes of each SSE frame into writes of so many.
    """

    def __init__(self, script: Sequence[Turn] | Rule = (), *, chunk_size: int | None = None, split: int | None = None):
        self.exchanges: list[Exchange] = []
        self.play(script, chunk_size=chunk_size, split=split)
        self._sockets = bind_sockets(0, "127.0.0.1")
        self.port: int = self._sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="text backend")

    def play(self, script: Sequence[Turn] | Rule, *, chunk_size: int | None = None, split: int | None = None) -> None:
        """Forget what was, and answer by this script from now on."""
        self.exchanges = []
        self.chunk_size = chunk_size
        self.split = split
        self._script = script if callable(script) else list(script)

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
            (r".*/chat/completions", _Chat, {"backend": self}),
            (r".*/models", _Models),
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
    def get(self) -> None:
        self.write({"object": "list", "data": [{"id": "text-model", "object": "model", "owned_by": "tests"}]})


class _Handler(RequestHandler):
    """What both dialects share: read, record, pace, send, end."""

    def initialize(self, backend: TextBackend) -> None:
        self.backend = backend
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_connection_close(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    async def post(self) -> None:
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
            pass  # the client has gone; `sent` says how far we came
        finally:
            self.exchange.over.set()

    async def refuse(self, turn: Turn) -> None:
        self.set_status(turn.status)
        kind = "invalid_request_error" if turn.status < 500 else "server_error"
        await self.finish({"error": {"message": turn.message, "type": kind, "param": None, "code": None}})
        self.exchange.over.set()

    async def answer_stream(self) -> None:
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        async for frame in self.frames():
            size = self.backend.split or len(frame)
            for start in range(0, len(frame), size):
                await self.send(frame[start : start + size])
        match self.turn.ending:
            case "hang":
                await self.gone
            case _:
                await self.finish()
                self.exchange.whole = True

    async def answer_whole(self) -> None:
        async for _ in self.deltas():
            pass
        match self.turn.ending:
            case "error":
                await self.refuse(refuses(500, self.turn.message))
            case "hang":
                await self.gone
            case "eof":
                body = json.dumps(self.whole()).encode()
                self.set_header("Content-Type", "application/json")
                self.set_header("Content-Length", str(len(body)))
                await self.send(body[: len(body) // 2])
                self.hang_up()
            case _:
                await self.finish(self.whole())
                self.exchange.whole = True

    async def deltas(self) -> AsyncIterator[str]:
        """Yield the text as the model writes it, and note what was taken."""
        for delta in self.backend._deltas(self.turn):
            if self.turn.pause:
                await asyncio.wait({self.gone}, timeout=self.turn.pause)
            yield delta
            self.exchange.sent.append(delta)

    async def send(self, data: bytes) -> None:
        # Tornado forgets the flush of a connection that closes meanwhile: wait for either.
        self.write(data)
        flushed = asyncio.ensure_future(self.flush())
        await asyncio.wait({flushed, self.gone}, return_when=asyncio.FIRST_COMPLETED)
        if self.gone.done():
            flushed.cancel()
            raise StreamClosedError
        flushed.result()
        self.exchange.chunks.append(data)

    def hang_up(self) -> None:
        self._finished = True  # or tornado would end the answer properly
        assert isinstance(self.request.connection, HTTP1Connection)
        self.request.connection.stream.close()

    def usage(self) -> tuple[int, int]:
        """Return tokens in and out, with words for tokens."""
        return sum(len(text.split()) for _, text in self.exchange.transcript), len(self.turn.text.split())

    def read(self, body: Json) -> Iterator[tuple[str, str]]:
        raise NotImplementedError

    def whole(self) -> Json:
        raise NotImplementedError

    def frames(self) -> AsyncIterator[bytes]:
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

    def response(self, status: str, output: list[Json]) -> Json:
        body, done = self.exchange.body, status not in ("in_progress", "queued")
        usage = None
        if done:
            tokens_in, tokens_out = self.usage()
            usage = {
                "input_tokens": tokens_in,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": tokens_out,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": tokens_in + tokens_out,
            }
        failed = {"code": "server_error", "message": self.turn.message}
        return {
            "id": f"resp_{self.exchange.id}",
            "object": "response",
            "created_at": int(time.time()),
            "status": status,
            "background": False,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": failed if status == "failed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "max_tool_calls": None,
            "model": body.get("model", "text-model"),
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "prompt_cache_key": None,
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": None,
            "service_tier": "default",
            "store": True,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": 1.0,
            "truncation": "disabled",
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "user": None,
            "metadata": {},
            "usage": usage,
        }

    def message(self, status: str, text: str | None) -> Json:
        parts = [] if text is None else [self.part(text)]
        message_id = f"msg_{self.exchange.id}"
        return {"id": message_id, "type": "message", "status": status, "role": "assistant", "content": parts}

    @staticmethod
    def part(text: str) -> Json:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def before(self) -> list[Json]:
        """Return the items that come before the message."""
        summary = [{"type": "summary_text", "text": self.turn.thought}]
        thought = {"id": f"rs_{self.exchange.id}", "type": "reasoning", "summary": summary}
        return ([thought] if self.turn.thought else []) + ([dict(self.turn.item)] if self.turn.item else [])

    def whole(self) -> Json:
        status = "incomplete" if self.turn.ending == "length" else "completed"
        return self.response(status, [*self.before(), self.message(status, self.turn.text)])

    async def frames(self) -> AsyncIterator[bytes]:
        number = 0

        def event(kind: str, **fields: Any) -> bytes:
            nonlocal number
            data = {"type": kind, "sequence_number": number, **fields}
            number += 1
            return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()

        message, before = self.message("in_progress", None), self.before()
        at = {"item_id": message["id"], "output_index": len(before), "content_index": 0}
        yield event("response.created", response=self.response("in_progress", []))
        yield event("response.in_progress", response=self.response("in_progress", []))
        for index, item in enumerate(before):
            is_thought = item["type"] == "reasoning"
            added = item | {"summary": []} if is_thought else item
            yield event("response.output_item.added", output_index=index, item=added)
            if is_thought:
                part = {"item_id": item["id"], "output_index": index, "summary_index": 0}
                yield event("response.reasoning_summary_text.delta", **part, delta=self.turn.thought)
            yield event("response.output_item.done", output_index=index, item=item)
        yield event("response.output_item.added", output_index=len(before), item=message)
        yield event("response.content_part.added", **at, part=self.part(""))
        async for delta in self.deltas():
            yield event("response.output_text.delta", **at, delta=delta, logprobs=[])
        match self.turn.ending:
            case "eof" | "hang":
                return
            case "error":
                yield event("error", code="server_error", message=self.turn.message, param=None)
                yield event("response.failed", response=self.response("failed", []))
                return
        final = self.whole()
        yield event("response.output_text.done", **at, text=self.turn.text, logprobs=[])
        yield event("response.content_part.done", **at, part=self.part(self.turn.text))
        yield event("response.output_item.done", output_index=len(before), item=final["output"][-1])
        yield event(f"response.{final['status']}", response=final)


class _Chat(_Handler):
    def read(self, body: Json) -> Iterator[tuple[str, str]]:
        for message in body["messages"]:
            if message["role"] not in _ROLES or message.get("tool_calls") or message.get("function_call"):
                raise ValueError(f"message of {message['role']} with {sorted(message)}")
            yield message["role"], _content(message["content"])

    def envelope(self, kind: str) -> Json:
        return {
            "id": f"chatcmpl-{self.exchange.id[:29]}",
            "object": kind,
            "created": int(time.time()),
            "model": self.exchange.body.get("model", "text-model"),
            "system_fingerprint": None,
        }

    def counts(self) -> Json:
        tokens_in, tokens_out = self.usage()
        return {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out}

    def reason(self) -> str:
        return "length" if self.turn.ending == "length" else "stop"

    def whole(self) -> Json:
        message: Json = {"role": "assistant", "content": self.turn.text, "refusal": None, "annotations": []}
        if self.turn.thought:
            message["reasoning_content"] = self.turn.thought
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.reason()}
        return self.envelope("chat.completion") | {"choices": [choice], "usage": self.counts()}

    async def frames(self) -> AsyncIterator[bytes]:
        options = self.exchange.body.get("stream_options") or {}
        counting = bool(options.get("include_usage"))

        def chunk(delta: Json, finish_reason: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
            return data({"choices": [choice]} | ({"usage": None} if counting else {}))

        def data(fields: Json) -> bytes:
            return (
                f"data: {json.dumps(self.envelope('chat.completion.chunk') | fields, ensure_ascii=False)}\n\n".encode()
            )

        yield chunk({"role": "assistant", "content": "", "refusal": None})
        if self.turn.thought:
            yield chunk({"reasoning_content": self.turn.thought})
        async for delta in self.deltas():
            yield chunk({"content": delta})
        match self.turn.ending:
            case "eof" | "hang":
                return
            case "error":
                error = {"message": self.turn.message, "type": "server_error", "param": None, "code": None}
                yield f"data: {json.dumps({'error': error})}\n\n".encode()
                return
        yield chunk({}, self.reason())
        if counting:
            yield data({"choices": [], "usage": self.counts()})
        yield b"data: [DONE]\n\n"


_ROLES = frozenset({"system", "developer", "user", "assistant"})
