"""A model for the Codex app-server: a Responses API server that records its requests and early disconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from support.wire import ResponsesAnswer, usage
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

CONFIG = """\
model = "stub-1"
model_provider = "stub"

[model_providers.stub]
name = "stub"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
{more}
"""


@dataclass(slots=True)
class Reply:
    """The stub's answer to a request: an HTTP error, or texts that are sent at intervals of ``delay`` seconds.

    ``end``: the type of the last event, without the prefix "response.", or "" if the connection closes without a last
    event. ``reason``: the reason for an incomplete answer. ``error``: the error in ``response.failed``. ``reasoning``:
    the texts of a summary that is sent before the text. ``calls``: complete output items.
    """

    pieces: list[str] = field(default_factory=lambda: ["Hello"])
    delay: float = 0.0
    status: int = 200
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    end: str = "completed"
    reason: Literal["length", "content_filter"] = "length"
    error: dict[str, Any] | None = None


def texts(item: dict[str, Any]) -> str:
    """Return the joined text parts of a message item."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or [] if "text" in part)


def last_text(body: dict[str, Any]) -> str:
    """Return the text of the last user message."""
    return next((texts(item) for item in reversed(body["input"]) if item.get("role") == "user"), "")


def echo(body: dict[str, Any]) -> Reply:
    """Answer with "echo" and the last user message, word by word."""
    return Reply([f"{word} " for word in f"echo {last_text(body)}".split()])


class StubModel:
    """The server. ``reply`` answers a request; ``requests`` and ``left`` record requests and disconnections."""

    def __init__(self, reply: Callable[[dict[str, Any]], Reply] = echo) -> None:
        self.reply = reply
        self.requests: list[dict[str, Any]] = []
        self.left: list[str] = []
        self.written = 0
        self.someone_left = asyncio.Event()
        self.port = 0

    async def start(self) -> None:
        """Listen on a free port."""
        sockets = bind_sockets(0, "127.0.0.1")
        self.port = sockets[0].getsockname()[1]
        routes = [(r"/v1/responses", _Handler, {"stub": self}), (r"/.*", _Nothing)]
        self._server = HTTPServer(Application(routes, log_function=lambda _handler: None))
        self._server.add_sockets(sockets)

    async def stop(self) -> None:
        """Close the server and all its connections."""
        self._server.stop()
        await self._server.close_all_connections()

    def write_config(self, home: Path, more: str = "") -> None:
        """Write a configuration file to the CODEX_HOME folder ``home``, in which this stub is the model."""
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(CONFIG.format(port=self.port, more=more))


class _Nothing(RequestHandler):
    def prepare(self) -> None:
        self.set_status(404)
        self.finish({})


class _Handler(RequestHandler):
    def initialize(self, stub: StubModel) -> None:
        self.stub = stub
        self.gone = asyncio.Event()

    def on_connection_close(self) -> None:
        self.gone.set()

    async def send(self, frames: list[bytes]) -> None:
        for frame in frames:
            self.write(frame)
            await self.flush()
            self.stub.written += 1

    async def post(self) -> None:
        body = json.loads(self.request.body)
        self.stub.requests.append(body)
        reply = self.stub.reply(body)
        self.set_status(reply.status)
        for name, value in reply.headers.items():
            self.set_header(name, value)
        if reply.status != 200:
            self.finish(reply.body)
            return
        self.set_header("Content-Type", "text/event-stream")
        try:
            await self.answer(reply)
        except StreamClosedError:
            self.gone.set()
        if self.gone.is_set():
            self.stub.left.append(last_text(body))
            self.stub.someone_left.set()

    async def answer(self, reply: Reply) -> None:
        answer = ResponsesAnswer(id="1", model="stub-1", counts=usage("responses", 11, 7, cached=3, reasoning=2))
        await self.send(answer.begin())
        for piece in reply.reasoning:
            await self.send(answer.add_reasoning(piece))
        for call in reply.calls:
            await self.send(answer.item(call))
        for piece in reply.pieces:
            if reply.delay:
                await asyncio.wait([asyncio.create_task(self.gone.wait())], timeout=reply.delay)
            if self.gone.is_set():
                return
            await self.send(answer.add_text(piece))
        match reply.end:
            case "completed":
                await self.send(answer.end())
            case "incomplete":
                await self.send(answer.end(reply.reason))
            case "failed":
                await self.send(answer.failed(reply.error or {}))
        self.finish()
