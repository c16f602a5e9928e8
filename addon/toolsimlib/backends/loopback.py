"""An HTTP server on 127.0.0.1 that presents one of our own backends as a text-only OpenAI upstream.

A hook of mitmproxy cannot stream an answer that it makes itself; so our own backends answer over HTTP, in the event
loop that already runs, and join the house as any other upstream does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from toolsimlib.errors import ApiError, BadRequest
from toolsimlib.events import (
    BackendEvent,
    Closed,
    Counted,
    Failed,
    Finished,
    Opened,
    ReasoningDelta,
    TextDelta,
    Usage,
)

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


class Loopback:
    """Serve ``backend`` on 127.0.0.1:``port`` (0: any free port; ``port`` then tells which) until ``stop``."""

    def __init__(self, backend: TextBackend, port: int = 0) -> None:
        self.backend = backend
        self.port = port
        self._server: HTTPServer | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Bind the port and start the backend. Raises OSError when the port is taken."""
        sockets = bind_sockets(self.port, "127.0.0.1")
        self.port = sockets[0].getsockname()[1]
        context = {"backend": self.backend, "running": self._running}
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

    def initialize(self, backend: TextBackend, running: set[asyncio.Task[None]]) -> None:
        self.backend = backend
        self.running = running

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
        renderer: type[_Responses] | type[_Chat]
        if self.request.path.endswith("/responses"):
            renderer = _Responses
        elif self.request.path.endswith("/chat/completions") and self.backend.chat:
            renderer = _Chat
        else:
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
        self._task = asyncio.create_task(self._answer(renderer(body), body))
        self.running.add(self._task)
        try:
            await self._task
        except asyncio.CancelledError:
            # Cancelled by the client's leaving or by ``stop``: tornado would log a cancelled handler as an error.
            if not self._task.cancelled():
                raise
        finally:
            self.running.discard(self._task)

    async def _answer(self, renderer: _Responses | _Chat, body: dict[str, Any]) -> None:
        stream = body.get("stream") is True
        try:
            async with contextlib.aclosing(self.backend.answer(body)) as events:
                async for event in events:
                    if isinstance(event, Failed) and not (stream and renderer.opened):
                        self.refuse(event.error)
                        return
                    frames = renderer.feed(event)
                    if stream:
                        self.set_header("Content-Type", "text/event-stream")
                        self.set_header("Cache-Control", "no-cache")
                        for frame in frames:
                            self.write(frame)
                            # A frame a chunk: some clients only read whole frames.
                            await self.flush()
            if stream:
                self.finish()
            else:
                self.finish(renderer.whole())
        except BadRequest as bad:
            self.refuse(bad.error)
        except StreamClosedError:
            return

    def on_connection_close(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _frame(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


@dataclass(slots=True)
class _Responses:
    """Events as a text-only Responses API says them: one message, with reasoning items before it."""

    body: Mapping[str, Any]
    opened: bool = False
    _id: str = field(default_factory=lambda: f"resp_{uuid.uuid4().hex}")
    _created: int = field(default_factory=lambda: int(time.time()))
    _model: str = ""
    _output: list[dict[str, Any]] = field(default_factory=list)
    _open: dict[str, Any] | None = None
    _pieces: list[str] = field(default_factory=list)
    _number: int = 0
    _usage: Usage | None = None
    _length: bool = False
    _error: ApiError | None = None

    def feed(self, event: BackendEvent) -> list[bytes]:
        """Return the frames that tell of one event."""
        said: list[dict[str, Any]] = []
        match event:
            case Opened(model=model):
                self.opened = True
                self._model = model or str(self.body.get("model", ""))
                kinds = ("response.created", "response.in_progress")
                said += [{"type": kind, "response": self._response("in_progress")} for kind in kinds]
            case TextDelta(text=text):
                said += self._enter("message")
                said.append(self._at("response.output_text.delta", content_index=0, delta=text, logprobs=[]))
                self._pieces.append(text)
            case ReasoningDelta(text=text):
                said += self._enter("reasoning")
                said.append(self._at("response.reasoning_summary_text.delta", summary_index=0, delta=text))
                self._pieces.append(text)
            case Counted(usage=usage):
                self._usage = usage
            case Finished(reason=reason):
                self._length = reason == "length"
            case Closed():
                said += self._leave()
                status = "incomplete" if self._length else "completed"
                said.append({"type": f"response.{status}", "response": self._response(status)})
            case Failed(error=error):
                self._error = error
                said.append({"type": "error", **error.body(), "error": error.body()})
                said.append({"type": "response.failed", "response": self._response("failed")})
        frames = []
        for words in said:
            frames.append(_frame(words | {"sequence_number": self._number}))
            self._number += 1
        return frames

    def whole(self) -> dict[str, Any]:
        """Return the Response object."""
        return self._response("incomplete" if self._length else "completed")

    def _at(self, kind: str, **fields: Any) -> dict[str, Any]:
        assert self._open is not None
        return {"type": kind, "item_id": self._open["id"], "output_index": len(self._output), **fields}

    def _enter(self, kind: str) -> list[dict[str, Any]]:
        if self._open is not None and self._open["type"] == kind:
            return []
        said = self._leave()
        if kind == "message":
            self._open = {
                "id": f"msg_{uuid.uuid4().hex}",
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
            part = self._at("response.content_part.added", content_index=0, part=_text_part(""))
        else:
            self._open = {"id": f"rs_{uuid.uuid4().hex}", "type": "reasoning", "summary": []}
            part = self._at("response.reasoning_summary_part.added", summary_index=0, part=_summary_part(""))
        added = {"type": "response.output_item.added", "output_index": len(self._output), "item": dict(self._open)}
        return [*said, added, part]

    def _leave(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        text = "".join(self._pieces)
        if self._open["type"] == "message":
            at = {"content_index": 0}
            said = [
                self._at("response.output_text.done", **at, text=text, logprobs=[]),
                self._at("response.content_part.done", **at, part=_text_part(text)),
            ]
            status = "incomplete" if self._length else "completed"
            item = self._open | {"status": status, "content": [_text_part(text)]}
        else:
            at = {"summary_index": 0}
            said = [
                self._at("response.reasoning_summary_text.done", **at, text=text),
                self._at("response.reasoning_summary_part.done", **at, part=_summary_part(text)),
            ]
            item = self._open | {"summary": [_summary_part(text)]}
        said.append({"type": "response.output_item.done", "output_index": len(self._output), "item": item})
        self._output.append(item)
        self._open = None
        self._pieces = []
        return said

    def _response(self, status: str) -> dict[str, Any]:
        over = status in ("completed", "incomplete")
        error = self._error
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._model,
            "output": list(self._output) if over else [],
            "error": error and {"code": error.code or error.type, "message": error.message},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": None,
            "top_p": None,
            "tool_choice": "auto",
            "tools": [],
            "usage": _responses_usage(self._usage) if over else None,
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _summary_part(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def _responses_usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


@dataclass(slots=True)
class _Chat:
    """Events as a text-only chat completions API says them."""

    body: Mapping[str, Any]
    opened: bool = False
    _id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    _created: int = field(default_factory=lambda: int(time.time()))
    _model: str = ""
    _text: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _finish: str = "stop"
    _usage: Usage | None = None

    def feed(self, event: BackendEvent) -> list[bytes]:
        """Return the frames that tell of one event."""
        match event:
            case Opened(model=model):
                self.opened = True
                self._model = model or str(self.body.get("model", ""))
                return [self._chunk({"role": "assistant", "content": ""})]
            case TextDelta(text=text):
                self._text.append(text)
                return [self._chunk({"content": text})]
            case ReasoningDelta(text=text):
                self._reasoning.append(text)
                return [self._chunk({"reasoning_content": text})]
            case Counted(usage=usage):
                self._usage = usage
            case Finished(reason=reason):
                self._finish = reason
            case Closed():
                frames = [self._chunk({}, self._finish)]
                if self._wants_usage():
                    frames.append(self._data(self._envelope("chat.completion.chunk", [], self._usage)))
                return [*frames, b"data: [DONE]\n\n"]
            case Failed(error=error):
                return [self._data({"error": error.body()})]
        return []

    def whole(self) -> dict[str, Any]:
        """Return the chat completion."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._text), "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish}
        return self._envelope("chat.completion", [choice], self._usage)

    def _wants_usage(self) -> bool:
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        envelope = self._envelope("chat.completion.chunk", [choice], None)
        if not self._wants_usage():
            del envelope["usage"]
        return self._data(envelope)

    def _envelope(self, kind: str, choices: list[Any], usage: Usage | None) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "usage": usage
            and {
                "prompt_tokens": usage.input_tokens,
                "completion_tokens": usage.output_tokens,
                "total_tokens": usage.total_tokens,
            },
        }

    @staticmethod
    def _data(value: dict[str, Any]) -> bytes:
        return f"data: {json.dumps(value)}\n\n".encode()
