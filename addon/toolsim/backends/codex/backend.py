"""Uses the Codex app-server as a text-only model. Each request runs as one turn of a short-lived thread.

    request ─▶ thread/start ─▶ thread/inject_items ─▶ turn/start ─▶ notifications ─▶ events
                                                 client disconnects, turn is cut ─▶ turn/interrupt
                                                       in any case, at the end   ─▶ thread/unsubscribe

Each request has a separate thread, which contains the client's entire conversation. No state has to be stored between
requests, and concurrent requests are independent. ``ephemeral`` keeps the thread off the user's disk, and
``thread/unsubscribe`` removes it from the child's memory.

``thread/inject_items`` passes the entire conversation, and the turn itself has no input. ``turn/start`` would accept
only one text from the user, whereas injected items retain their roles, order and images, and Codex adds nothing to
them.

Codex is a coding agent. Three types of settings together reduce it to a text model, because no single type is
sufficient. toolsim passes all settings to the child, and never writes them to the user's files:
- ``thread/start``: empty base and developer instructions (Codex would use its own instructions if they were absent), no
  approvals, a read-only sandbox in an empty folder;
- its ``config``: no shell, web search, plugins, skills, memories, MCP servers and so on (``text_only.settings``);
- the model catalog: properties of each model that override the settings (``text_only.text_catalog``).

A global ``AGENTS.md`` still reaches the model. No setting prevents this, so a warning with the file's path is logged
once.

Two timeouts apply. Codex never answers a line that it cannot parse, for example because a schema is nested too deeply.
So a request that Codex does not accept within ``_ACCEPT_TIMEOUT`` fails with a 504. The response headers are delayed
until the model's first word, but for at most ``_HEADERS_TIMEOUT``, so that an earlier failure can be reported as an
HTTP status.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolsim.backends.codex.child import Child
from toolsim.backends.codex.errors import CodexUnavailable, RpcError, child_died, request_rejected
from toolsim.backends.codex.jsonrpc import Notification
from toolsim.backends.codex.request import CodexRequest, codex_request
from toolsim.backends.codex.server import AppServer
from toolsim.backends.codex.text_only import settings
from toolsim.backends.codex.turn import CodexTurn
from toolsim.backends.text_backend import TextBackend
from toolsim.core.conversation import ClientRequest
from toolsim.core.errors import ApiError
from toolsim.core.events import BackendEvent, Failed
from toolsim.core.tasks import spawn
from toolsim.wire.apis import RESPONSES
from toolsim.wire.json_fields import mapping, mappings, string

if TYPE_CHECKING:
    from toolsim.proxy.options.settings import Settings

logger = logging.getLogger(__name__)

# Maximum delay of the response headers, in seconds (see the module docstring).
_HEADERS_TIMEOUT = 10.0
_ACCEPT_TIMEOUT = 60.0
# Maximum duration of the cleanup after a request, in seconds. The cleanup runs in the background, and ``stop`` waits
# for it.
_CLEANUP_TIMEOUT = 30.0
_STOP_PATIENCE = 1.0

# The number of models to request from Codex per page. It is larger than the number of models, so one page contains all
# of them.
_MODELS_PAGE = 100


@dataclass(frozen=True, slots=True)
class _Running:
    """A turn that Codex has started. ``model`` is the model that Codex selected."""

    thread: str
    turn: str
    model: str | None
    notifications: asyncio.Queue[Notification | None]


class CodexBackend(TextBackend):
    """The Codex app-server as a backend for the loopback server. ``command`` is a command line, as a list."""

    apis = (RESPONSES,)

    def __init__(self, command: Sequence[str] = ("codex", "app-server")) -> None:
        self._server = AppServer(command)
        self._cleanups: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the app-server without waiting for it.

        If the start fails, the reason is logged, and requests fail with a 503.
        """
        await self._server.start()

    async def stop(self) -> None:
        """Stop the app-server."""
        if self._cleanups:
            await asyncio.wait(self._cleanups, timeout=_STOP_PATIENCE)
        await self._server.stop()
        for task in list(self._cleanups):
            task.cancel()
        await asyncio.gather(*self._cleanups, return_exceptions=True)

    async def models(self) -> Sequence[str] | ApiError:
        """Return the user's default model, followed by the models that Codex lists."""
        try:
            child = await self._server.child()
            listed = await child.request("model/list", {"limit": _MODELS_PAGE})
        except CodexUnavailable as unavailable:
            return unavailable.error
        except RpcError as error:
            return request_rejected(error)
        models = [string(model.get("id")) for model in mappings(listed.get("data"))]
        return list(dict.fromkeys(model for model in (child.default_model, *models) if model))

    async def answer(self, request: ClientRequest) -> AsyncGenerator[BackendEvent]:
        """Answer one Responses request.

        Raises BadRequest if the request contains no message, or an image that is not a data URL.
        """
        asked = codex_request(request)
        try:
            child = await self._server.child()
        except CodexUnavailable as unavailable:
            yield Failed(unavailable.error)
            return
        # The start runs in a separate task, so that it continues if the client disconnects. Otherwise, the cleanup
        # would not know which thread to unload.
        starting = asyncio.create_task(_start(child, asked))
        has_ended = False
        try:
            try:
                running = await asyncio.wait_for(asyncio.shield(starting), _ACCEPT_TIMEOUT)
            except TimeoutError:
                starting.cancel()
                message = f"Codex did not accept the request within {_ACCEPT_TIMEOUT:.0f} s."
                yield Failed(ApiError(message, code="not_accepted", status=504))
                return
            except CodexUnavailable as unavailable:
                yield Failed(unavailable.error)
                return
            except RpcError as error:
                yield Failed(request_rejected(error))
                return
            turn = CodexTurn(running.model)
            while not turn.is_done:
                try:
                    async with asyncio.timeout(None if turn.is_opened else _HEADERS_TIMEOUT):
                        notification = await running.notifications.get()
                except TimeoutError:
                    events = turn.open()
                else:
                    if notification is None:
                        events = turn.fail(child.death or child_died("died."))
                    else:
                        events = turn.feed(notification)
                    has_ended = notification is None or notification.method == "turn/completed"
                for event in events:
                    yield event
        finally:
            spawn(_clean_up(child, starting, has_ended=has_ended), self._cleanups)


async def _start(child: Child, request: CodexRequest) -> _Running:
    """Start a thread that contains the conversation, and start its turn.

    Raises RpcError if Codex rejects the request, or CodexUnavailable if the child is dead. In both cases, no thread is
    left behind.
    """
    started = await child.request(
        "thread/start",
        {
            **request.thread,
            "ephemeral": True,
            "cwd": str(child.workdir),
            "baseInstructions": "",
            "developerInstructions": "",
            "approvalPolicy": "never",
            "sandbox": "read-only",
            "config": {**settings(child.mcp_servers), **request.config},
        },
    )
    thread = string(mapping(started.get("thread")).get("id"))
    for source in child.unreported_sources(started.get("instructionSources")):
        logger.warning("Codex includes the file %s in every request to the model; no setting prevents this", source)
    notifications = child.subscribe(thread)
    try:
        await child.request("thread/inject_items", {"threadId": thread, "items": request.items})
        turn = await child.request("turn/start", {"threadId": thread, "input": [], **request.turn})
    except BaseException:
        child.unsubscribe(thread)
        await _unload(child, thread)
        raise
    turn_id = string(mapping(turn.get("turn")).get("id"))
    return _Running(thread, turn_id, string(started.get("model")) or None, notifications)


async def _clean_up(child: Child, starting: asyncio.Task[_Running], *, has_ended: bool) -> None:
    """Interrupt a turn unless it has ended, and unload the turn's thread."""
    with contextlib.suppress(RpcError, CodexUnavailable, TimeoutError):
        async with asyncio.timeout(_CLEANUP_TIMEOUT):
            running = await starting
            child.unsubscribe(running.thread)
            if not has_ended:
                await child.request("turn/interrupt", {"threadId": running.thread, "turnId": running.turn})
            await _unload(child, running.thread)


async def _unload(child: Child, thread: str) -> None:
    """Unload a thread, which frees Codex's memory."""
    with contextlib.suppress(RpcError, CodexUnavailable):
        await child.request("thread/unsubscribe", {"threadId": thread})


def backend_of(settings: Settings) -> CodexBackend:
    """Return the backend that the settings select."""
    return CodexBackend(settings.codex_command)
