"""Serves a built-in backend on 127.0.0.1, as a text-only upstream with OpenAI's APIs.

mitmproxy's hooks cannot stream responses that they create. A built-in backend therefore answers over HTTP, in the same
event loop, and toolsim treats it like any other upstream.

    POST …/responses, …/chat/completions ─▶ ClientRequest ─▶ backend.answer ─▶ events ─▶ frames, or one body
    GET …/models, …/models/NAME          ─▶ backend.models

Each answer is generated in a separate task. If the client closes the connection, the task ends and the backend's
generator is closed, which stops the model. A failure before ``Opened`` results in an HTTP error. After ``Opened``, a
failure ends a stream with the API's error event. For a non-streamed answer, it still results in an HTTP error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import ClassVar

from tornado.iostream import StreamClosedError

from toolsim.backends.text_backend import TextBackend
from toolsim.core.conversation import ClientRequest
from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.events import (
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
from toolsim.core.time_slice import TimeSlice
from toolsim.rounds.local_server import LocalServer, StreamHandler
from toolsim.wire.api import Api, Writer
from toolsim.wire.apis import api_of_path
from toolsim.wire.json_codec import dump, parse_object
from toolsim.wire.responses.request import wants_background
from toolsim.wire.sse import UNBUFFERED

FLOW = "toolsim-flow"
"""The header with the flow ID of a request. It proves that the addon has authenticated the client."""


class Loopback:
    """Serves ``backend`` on 127.0.0.1:``port``.

    If ``port`` is 0, a free port is used, and the ``port`` property returns its number. Any program and any web page on
    this machine can reach the port, and could cause costs at the backend. A request is therefore answered only if its
    flow is ``expected`` and its Host header names this machine. Each flow is expected only once, so a flow ID that was
    copied from a page or a file is useless. If ``is_open`` is true, all requests are answered, which
    is safe only for a backend that causes no costs.
    """

    def __init__(self, backend: TextBackend, port: int = 0, *, is_open: bool = False) -> None:
        self.backend = backend
        self.expected: set[str] = set()
        """The IDs of the flows whose requests are allowed and have not arrived yet."""
        self.is_open = is_open
        self._listener = LocalServer(port)

    @property
    def port(self) -> int:
        """The port that the server uses or, before ``start``, the configured port."""
        return self._listener.port

    async def start(self) -> None:
        """Bind the port and start the backend. Raises OSError if the port cannot be bound."""
        running, expected = self._listener.running, None if self.is_open else self.expected
        context = {"backend": self.backend, "running": running, "expected": expected}
        rules = [(r"/(?:.*/)?models(?:/(.+))?", _Models, context), (r"/.*", _Answers, context)]
        self._listener.start(rules)
        await self.backend.start()

    async def models(self) -> Sequence[str] | ApiError:
        """Return the IDs of the backend's models."""
        return await self.backend.models()

    def admit(self, flow: str) -> dict[str, str]:
        """Allow one request from a flow, and return the header that the request needs."""
        self.expected.add(flow)
        return {FLOW: flow}

    def forget(self, flow: str) -> None:
        """Withdraw the permission of a flow that has ended. Its request might never have been sent."""
        self.expected.discard(flow)

    async def stop(self) -> None:
        """Refuse new requests, stop running requests, close their connections, and stop the backend."""
        if not await self._listener.stop():
            return
        await self.backend.stop()


class _Handler(StreamHandler):
    """Base class of the HTTP handlers.

    It rejects unexpected flows, unknown resources, and methods that are not in ``METHODS``.
    """

    METHODS: ClassVar[Sequence[str]]

    def initialize(self, backend: TextBackend, running: set[asyncio.Task[None]], expected: set[str] | None) -> None:
        self.backend = backend
        self.running = running
        self.expected = expected

    def prepare(self) -> None:
        method = self.request.method
        if self.expected is not None and not self._is_from_addon(self.expected):
            message = "This port is internal to toolsim: send requests to toolsim's listener."
            self.refuse(ApiError(message, "invalid_request_error", "forbidden", status=403))
        elif not self.exists():
            message = f"No such endpoint: {method} {self.request.path}"
            self.refuse(ApiError(message, "invalid_request_error", "not_found", status=404))
        elif method not in self.METHODS:
            self.set_header("Allow", ", ".join(self.METHODS))
            message = f"{method} is not allowed: expected {' or '.join(self.METHODS)}."
            self.refuse(ApiError(message, "invalid_request_error", "method_not_allowed", status=405))

    def _is_from_addon(self, expected: set[str]) -> bool:
        flow = self.request.headers.get(FLOW, "")
        if flow not in expected or self.request.host_name not in ("127.0.0.1", "localhost"):
            return False
        expected.remove(flow)
        return True

    def exists(self) -> bool:
        """Return whether the request's path names an existing resource."""
        return True


class _Models(_Handler):
    """Handles ``…/models`` and ``…/models/NAME``."""

    METHODS = ("GET", "HEAD")

    async def get(self, name: str | None = None) -> None:
        models = await self.backend.models()
        if isinstance(models, ApiError):
            self.refuse(models)
            return
        data = {model: {"id": model, "object": "model", "created": 0, "owned_by": "toolsim"} for model in models}
        if name is None:
            self.finish({"object": "list", "data": list(data.values())})
        elif name in data:
            self.finish(data[name])
        else:
            message = f"The model '{name[:200]}' does not exist: expected one of {', '.join(models)}."
            self.refuse(ApiError(message, "invalid_request_error", "model_not_found", param="model", status=404))

    async def head(self, name: str | None = None) -> None:
        # Tornado omits the body of a response to HEAD.
        await self.get(name)


class _Answers(_Handler):
    """Handles ``…/responses`` and ``…/chat/completions``."""

    METHODS = ("POST",)

    def exists(self) -> bool:
        return self._api() is not None

    def _api(self) -> Api | None:
        api = api_of_path(self.request.path)
        return api if api in self.backend.apis else None

    async def answer(self) -> None:
        api = self._api()
        assert api is not None
        try:
            request = _read(api, self.request.body)
            async with contextlib.aclosing(self.backend.answer(request)) as events:
                await self._write_all(api, request, events)
        except BadRequest as bad:
            self.refuse(bad.error)
        except StreamClosedError:
            return

    async def _write_all(self, api: Api, request: ClientRequest, events: AsyncIterator[BackendEvent]) -> None:
        stream = request.form.stream
        writer: Writer | None = None
        reason: FinishReason = "stop"
        usage: Usage | None = None
        # A backend whose events have already arrived does not suspend this task, and neither does a connection that
        # accepts all data immediately. The time slice lets other tasks run.
        pace = TimeSlice()
        async for event in events:
            await pace.yield_to_others()
            out: ClientEvent
            match event:
                case Opened():
                    writer = api.writer(replace(request.form, model=event.model or request.form.model))
                    out = event
                case Failed(error=error) if writer is None or not stream:
                    self.refuse(error)
                    return
                case TextDelta() | ReasoningDelta() | Failed():
                    out = event
                case Closed():
                    out = Ended({0: reason}, usage)
                case Finished():
                    reason = event.reason
                    continue
                case Counted():
                    usage = event.usage
                    continue
                case _:
                    raise TypeError(f"a text-only backend must not emit {event!r}")
            assert writer is not None
            for frame in writer.write(out):
                self.set_header("Content-Type", "text/event-stream")
                for name, value in UNBUFFERED.items():
                    self.set_header(name, value)
                self.write(frame)
                # Each frame is flushed separately, because some clients cannot handle a chunk with only a part of a
                # frame.
                await self.flush()
        if stream or writer is None or writer.body is None:
            self.finish()
        else:
            self.set_header("Content-Type", "application/json")
            self.finish(dump(writer.body))


def _read(api: Api, data: bytes) -> ClientRequest:
    """Parse a request body.

    Raises BadRequest if the request is invalid, or if it needs tools, a store or a background worker.
    """
    body = parse_object(data)
    if body is None:
        raise BadRequest("The request body is not a JSON object.")
    request = api.read(body)
    if request.hosted and request.tool_choice.mode != "none":
        kinds = ", ".join(dict.fromkeys(str(tool["type"])[:40] for tool in request.hosted))
        message = (
            f"This backend does not run tools itself, but 'tools' contains {kinds}. Send only functions. To let "
            "toolsim run mcp tools, set toolsim_mcp_hosts. To drop the tools, exclude them with toolsim_tool_allowlist."
        )
        raise BadRequest(message, "tools", "unsupported_value")
    if request.stored_history:
        message = (
            f"Previous response with id '{request.stored_history}' not found: this backend does not store responses."
        )
        raise BadRequest(message, "previous_response_id", "previous_response_not_found")
    if request.stored_history is not None:
        raise BadRequest("This backend does not store conversations.", "conversation", "unsupported_parameter")
    if wants_background(request):
        message = "'background' requires a store, but this proxy has none: set toolsim_store."
        raise BadRequest(message, "background", "unsupported_parameter")
    return request
