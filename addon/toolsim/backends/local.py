"""Runs a model file as a backend, with llama.cpp in this process, through the package xllamacpp (extra ``[local]``).

The library answers a chat completions request in a separate thread, and passes each chunk to a callback. The request
and the chunks have the same format as for any other chat completions server. When a client disconnects, the model stops
at its next token. The model answers one request at a time.

llama.cpp also opens a port on 127.0.0.1. toolsim does not use the port, and protects it with a random secret key.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import secrets
import threading
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolsim.backends.text_backend import TextBackend
from toolsim.command_line import missing
from toolsim.core.conversation import ClientRequest, Message
from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.events import BackendEvent, Failed
from toolsim.wire.apis import CHAT
from toolsim.wire.content import with_parts_for
from toolsim.wire.json_codec import dump
from toolsim.wire.sse import ServerSentEvent

if TYPE_CHECKING:
    from toolsim.proxy.options.settings import Settings

logger = logging.getLogger(__name__)

CONTEXT_TOKENS = 16_384
"""Context size in tokens: enough for an agent's tool manifest and an answer, but small enough for a laptop's memory."""

_NOT_LOADED = ApiError("The model is not loaded.", code="backend_unavailable", status=503, retry_after=5)


class LocalBackend(TextBackend):
    """A GGUF file as a backend for the loopback server."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._server: Any = None

    async def start(self) -> None:
        """Load the model. If loading fails, the reason is logged, and requests fail with a 503."""
        try:
            library = importlib.import_module("xllamacpp")
        except ModuleNotFoundError as problem:
            logger.error("%s", missing(problem))
            return
        logger.info("loading %s", self._file.name)
        try:
            self._server = await asyncio.to_thread(_load, library, self._file)
        except Exception as problem:
            logger.error("llama.cpp cannot load %s: %s", self._file, " ".join(str(problem).split()))

    async def stop(self) -> None:
        """Release the model."""
        # The destructor waits for llama.cpp's threads. The last reference is therefore dropped in a separate thread, so
        # that the event loop is not blocked.
        holder, self._server = [self._server], None
        await asyncio.to_thread(holder.clear)

    async def models(self) -> Sequence[str] | ApiError:
        """Return the name of the model's file, without its extension, as the only model."""
        return [self._file.stem] if self._server is not None else _NOT_LOADED

    async def answer(self, request: ClientRequest) -> AsyncGenerator[BackendEvent]:
        """Answer one request. Raises BadRequest if the Chat Completions API cannot represent its content."""
        server = self._server
        if server is None:
            yield Failed(_NOT_LOADED)
            return
        body = dump(chat_body(request))
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        has_left = threading.Event()

        def enqueue(chunk: str | Exception | None) -> bool:
            with contextlib.suppress(RuntimeError):  # The event loop may already be closed.
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            return has_left.is_set()

        def ask() -> None:
            try:
                server.handle_chat_completions(body, enqueue)
            except Exception as problem:
                enqueue(problem)
            enqueue(None)

        work = loop.run_in_executor(None, ask)
        reader = CHAT.reader()
        try:
            while (chunk := await chunks.get()) is not None:
                if isinstance(chunk, Exception):
                    yield Failed(ApiError(f"llama.cpp: {chunk}", "invalid_request_error", "model_refused", status=400))
                    return
                for event in reader.event(ServerSentEvent("", chunk)):
                    yield event
            for event in (*reader.event(ServerSentEvent("", "[DONE]")), *reader.end()):
                yield event
        finally:
            has_left.set()
            await asyncio.shield(asyncio.gather(work, return_exceptions=True))


def chat_body(request: ClientRequest) -> dict[str, Any]:
    """Return the request as a chat completions body, with streaming and token counts enabled.

    Raises BadRequest if the request contains no message.
    """
    items, notes = CHAT.to_items(request)
    named = [with_parts_for(item, None, notes) for item in items]
    messages = [item for item in named if isinstance(item, Message)]
    if not messages:
        raise BadRequest("There is nothing to answer: the request contains no message.")
    body = CHAT.compose(request, messages, "as sent", False)
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def _load(library: Any, file: Path) -> Any:
    params = library.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel = CONTEXT_TOKENS, 1
    # One core is left for other work, because llama.cpp's threads use their cores even while they wait.
    params.cpuparams.n_threads = max(1, (os.cpu_count() or 2) - 1)
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [secrets.token_hex(16)]
    params.ui, params.verbosity = False, 0
    return library.Server(params)


def backend_of(settings: Settings) -> LocalBackend:
    """Return the backend that the settings select."""
    assert settings.model is not None
    return LocalBackend(settings.model)
