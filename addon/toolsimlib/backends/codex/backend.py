"""The Codex app-server as a text-only model: a Responses body in, one turn of one short-lived thread, events out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolsimlib.backends.codex.jsonrpc import Notification
from toolsimlib.backends.codex.server import AppServer, Connection, Refusal, Unavailable
from toolsimlib.backends.codex.text_only import settings
from toolsimlib.errors import ApiError, BadRequest
from toolsimlib.events import (
    BackendEvent,
    Closed,
    Counted,
    Failed,
    Finished,
    FinishReason,
    Opened,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from toolsimlib.wire.lenient import count, mapping, string

logger = logging.getLogger(__name__)

# Seconds without a word from the model after which a stream's headers are sent all the same: until then its failure can
# still be told by an HTTP status, after that a client would rather hear nothing than wait for headers.
_HEADERS_LIMIT = 10.0
# Seconds that Codex may take to accept a request: it never answers a line that it cannot read, such as one with
# a schema that is too deep for it.
_BEGIN_LIMIT = 60.0
# Seconds that the ending of an abandoned turn may take in the background.
_ABANDON_LIMIT = 30.0
# A model that answers with nothing but calls of tools that do not exist is asked again by Codex, without end.
_MAX_SAMPLINGS = 3


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A Responses body as Codex takes it: raw message items with roles, and the parameters of thread and turn."""

    items: tuple[Mapping[str, Any], ...]
    thread: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    turn: Mapping[str, Any] = field(default_factory=dict)


def read_request(body: Mapping[str, Any]) -> TurnRequest:
    """Read a Responses body. Raises BadRequest for what Codex cannot be asked.

    What Codex has no parameter for (temperature, max_output_tokens, …) is left out; items other than messages too.
    """
    if body.get("previous_response_id"):
        message = "The codex backend keeps no responses: send the whole conversation as input."
        raise BadRequest(message, "previous_response_id", "previous_response_not_found")
    for key in ("conversation", "background"):
        if body.get(key):
            raise BadRequest(f"The codex backend knows no {key}.", key, "unsupported_parameter")
    given = body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise BadRequest("Invalid type for 'input': expected a string or an array.", "input", "invalid_type")
    items = [_text_item("developer", text)] if (text := string(body.get("instructions"))) else []
    for index, item in enumerate(given):
        if isinstance(item, dict) and item.get("type", "message") == "message":
            items.append(_item(item, f"input[{index}]"))
    items = [item for item in items if item["content"]]
    answer_format = mapping(mapping(body.get("text")).get("format"))
    turn: dict[str, Any] = {}
    if answer_format.get("type") == "json_schema":
        turn["outputSchema"] = answer_format.get("schema")
    elif answer_format.get("type") == "json_object":
        items.append(_text_item("developer", "Answer with one JSON object and nothing else, without a code fence."))
    reasoning = mapping(body.get("reasoning"))
    if effort := string(reasoning.get("effort")):
        turn["effort"] = effort
    if summary := string(reasoning.get("summary")):
        turn["summary"] = summary
    verbosity = string(mapping(body.get("text")).get("verbosity"))
    model = string(body.get("model"))
    return TurnRequest(
        tuple(items),
        thread={"model": model} if model else {},
        config={"model_verbosity": verbosity} if verbosity else {},
        turn=turn,
    )


def _item(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = string(item.get("role")) or "user"
    # Codex drops a system message without a word.
    role = "developer" if role == "system" else role
    content = item.get("content")
    if isinstance(content, str):
        return _text_item(role, content)
    parts = []
    for index, part in enumerate(content if isinstance(content, list) else []):
        parts.append(_part(role, mapping(part), f"{where}.content[{index}]"))
    return {"type": "message", "role": role, "content": parts}


def _text_item(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}] if text else []}


def _part(role: str, part: Mapping[str, Any], where: str) -> dict[str, Any]:
    match part:
        case {"text": str(text)} | {"refusal": str(text)}:
            return {"type": "output_text" if role == "assistant" else "input_text", "text": text}
        case {"type": "input_image", "image_url": str(url)} if url.startswith("data:"):
            detail = part.get("detail")
            return {"type": "input_image", "image_url": url, **({"detail": detail} if detail else {})}
        case {"type": "input_image"}:
            raise BadRequest("The codex backend takes images as data URLs only.", f"{where}.image_url", "invalid_value")
        case _:
            kind = part.get("type")
            raise BadRequest(f"The codex backend takes text and images, but got '{kind}'.", where, "invalid_value")


def one_text(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a whole conversation as the input of one turn, for servers that take no items: one text, then images."""
    messages = []
    images = []
    for item in items:
        texts = [part["text"] for part in item["content"] if "text" in part]
        images += [{"type": "image", "url": part["image_url"]} for part in item["content"] if "image_url" in part]
        messages.append(f"[{item['role']}]\n" + "\n".join(texts))
    return [{"type": "text", "text": "\n\n".join(messages)}, *images]


class Turn:
    """One turn's notifications as events, without I/O. ``done`` once ``Closed`` or ``Failed`` was returned."""

    def __init__(self, model: str | None) -> None:
        self.done = False
        self.opened = False
        self._model = model
        self._said: dict[str, int] = {}
        self._samplings = 0
        self._usage: Usage | None = None
        self._error: Mapping[str, Any] = {}

    def open(self) -> list[BackendEvent]:
        """Say that the answer has begun, once."""
        if self.opened:
            return []
        self.opened = True
        return [Opened(model=self._model)]

    def feed(self, news: Notification) -> list[BackendEvent]:
        """Return what one notification of the thread means; most mean nothing to a client."""
        if self.done:
            return []
        params = news.params
        match news.method:
            case "item/started":
                return self._start(mapping(params.get("item")))
            case "item/agentMessage/delta":
                return self._say(string(params.get("itemId")), string(params.get("delta")))
            case "item/completed":
                item = mapping(params.get("item"))
                if item.get("type") != "agentMessage":
                    return []
                # A server that sent no deltas, or not all of them.
                name = string(item.get("id"))
                return self._say(name, string(item.get("text"))[self._said.get(name, 0) :])
            case "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" if delta := string(params.get("delta")):
                return [*self.open(), ReasoningDelta(delta, "summary" if "summary" in news.method else "text")]
            case "item/reasoning/summaryPartAdded" if params.get("summaryIndex"):
                return [*self.open(), ReasoningDelta("\n\n")]
            case "thread/tokenUsage/updated":
                self._usage = _usage(mapping(mapping(params.get("tokenUsage")).get("total")))
                self._samplings += 1
                return self._check_samplings() if self._samplings > 1 else []
            case "error":
                return self._trouble(params)
            case "turn/completed":
                return self._end(mapping(params.get("turn")))
        return []

    def fail(self, error: ApiError) -> list[BackendEvent]:
        """End the answer with an error."""
        self.done = True
        return [Failed(error)]

    def _start(self, item: Mapping[str, Any]) -> list[BackendEvent]:
        match item.get("type"):
            case "contextCompaction":
                return self.fail(_CONTEXT)
            case "userMessage":
                return []
        return (self._check_samplings() if self._samplings else []) or self.open()

    def _check_samplings(self) -> list[BackendEvent]:
        """End a turn whose model was asked again, as it is after a call that nobody serves: text is its answer."""
        if self._said:
            return self._close("stop")
        if self._samplings >= _MAX_SAMPLINGS:
            message = "The model only called tools that it was not offered."
            return self.fail(ApiError(message, code="no_text", status=502))
        return []

    def _say(self, item: str, text: str) -> list[BackendEvent]:
        if not text:
            return []
        between = [TextDelta("\n\n")] if self._said and item not in self._said else []
        self._said[item] = self._said.get(item, 0) + len(text)
        return [*self.open(), *between, TextDelta(text)]

    def _trouble(self, params: Mapping[str, Any]) -> list[BackendEvent]:
        self._error = mapping(params.get("error"))
        if params.get("willRetry") is not True:
            return []
        # Codex would say all of it again.
        return self.fail(turn_error(self._error)) if self._said else []

    def _end(self, turn: Mapping[str, Any]) -> list[BackendEvent]:
        error = mapping(turn.get("error")) or self._error
        match turn.get("status"):
            case "completed":
                return self._close("stop")
            case "interrupted":
                return self.fail(ApiError("The turn was interrupted.", code="interrupted", status=502, retry_after=1))
            case _ if self._said and "max_output_tokens" in string(error.get("message")):
                return self._close("length")
            case _ if self._said and "content_filter" in string(error.get("message")):
                return self._close("content_filter")
        return self.fail(turn_error(error))

    def _close(self, reason: FinishReason) -> list[BackendEvent]:
        self.done = True
        counted = [Counted(self._usage)] if self._usage else []
        return [*self.open(), Finished(reason), *counted, Closed()]


_CONTEXT = ApiError(
    "The conversation is longer than the model's context window.",
    type="invalid_request_error",
    code="context_length_exceeded",
    param="input",
    status=400,
)

# By `codexErrorInfo`: HTTP status, type, code.
_KINDS: Mapping[str, tuple[int, str, str | None]] = {
    "usageLimitExceeded": (429, "insufficient_quota", "insufficient_quota"),
    "sessionBudgetExceeded": (429, "insufficient_quota", "insufficient_quota"),
    "rateLimitExceeded": (429, "rate_limit_error", "rate_limit_exceeded"),
    "unauthorized": (401, "authentication_error", "invalid_api_key"),
    "modelNotFound": (404, "invalid_request_error", "model_not_found"),
    "badRequest": (400, "invalid_request_error", None),
    "cyberPolicy": (400, "invalid_request_error", "invalid_prompt"),
    "misalignmentPolicyViolation": (400, "invalid_request_error", "invalid_prompt"),
    "inferenceHookDenied": (403, "invalid_request_error", "access_denied"),
    "serverOverloaded": (503, "server_error", "server_is_overloaded"),
    "flexUnavailable": (503, "server_error", "server_is_overloaded"),
    "policyCapacityUnavailable": (503, "server_error", "server_is_overloaded"),
    "internalServerError": (502, "server_error", "server_error"),
}
# By the HTTP status of the model's own server, where Codex tells it.
_STATUSES: Mapping[int, str] = {
    401: "unauthorized",
    403: "unauthorized",
    404: "modelNotFound",
    429: "rateLimitExceeded",
    400: "badRequest",
    413: "badRequest",
    422: "badRequest",
    503: "serverOverloaded",
}


def turn_error(error: Mapping[str, Any]) -> ApiError:
    """Return a Codex turn error in OpenAI's shape."""
    message = string(error.get("message")) or "The turn failed, and Codex did not say why."
    info = error.get("codexErrorInfo")
    if info == "contextWindowExceeded":
        return _CONTEXT
    if isinstance(info, dict):
        # Codex names what it was doing, and the status that it got: {"httpConnectionFailed": {"httpStatusCode": 401}}.
        statuses = [count(mapping(detail), "httpStatusCode") for detail in info.values()]
        info = next((_STATUSES[status] for status in statuses if status in _STATUSES), None)
    if isinstance(info, str) and info in _KINDS:
        status, kind, code = _KINDS[info]
        if status == 401:
            message = f"Codex's login was refused, run `codex login`: {message}"
        retry = 5 if status >= 500 else None
        return ApiError(message, kind, code, "model" if code == "model_not_found" else None, status, retry)
    with contextlib.suppress(ValueError, RecursionError):
        # A 400 of the model's server comes as its whole body.
        body = mapping(json.loads(message))
        quoted = mapping(body.get("error"))
        if body:
            # ChatGPT's own has "detail" alone, as for a model that the account may not use.
            text = string(quoted.get("message")) or string(body.get("detail")) or message
            code = string(quoted.get("code")) or None
            return ApiError(text, "invalid_request_error", code, string(quoted.get("param")) or None, 400)
    return ApiError(message, code="server_error", status=502, retry_after=1)


def _usage(total: Mapping[str, Any]) -> Usage | None:
    usage = Usage(
        input_tokens=count(total, "inputTokens"),
        output_tokens=count(total, "outputTokens"),
        total_tokens=count(total, "totalTokens"),
        cached_tokens=count(total, "cachedInputTokens"),
        reasoning_tokens=count(total, "reasoningOutputTokens"),
    )
    return usage if usage.input_tokens or usage.output_tokens else None


@dataclass(frozen=True, slots=True)
class _Running:
    """A turn that was started."""

    thread: str
    turn: str
    model: str | None
    news: asyncio.Queue[Notification | None]


class CodexBackend:
    """The app-server as a backend for the loopback; each request is a thread of its own, side by side with others."""

    chat = False

    def __init__(self, command: Sequence[str] = ("codex", "app-server")) -> None:
        self._server = AppServer(command)
        self._abandoned: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the app-server; if it cannot start, the log says why and requests are answered with 503."""
        await self._server.start()

    async def stop(self) -> None:
        """End the app-server."""
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=1)
        await self._server.stop()
        for task in list(self._abandoned):
            task.cancel()
        await asyncio.gather(*self._abandoned, return_exceptions=True)

    async def models(self) -> Sequence[str] | ApiError:
        """Return the user's own default model, then those that Codex lists."""
        try:
            connection = await self._server.connection()
            listed = await connection.request("model/list", {"limit": 100})
        except Unavailable as unavailable:
            return unavailable.error
        except Refusal as refusal:
            return _refused(refusal)
        models = [string(mapping(each).get("id")) for each in listed.get("data", [])]
        default = connection.default_model
        return list(dict.fromkeys(model for model in (default, *models) if model))

    async def answer(self, body: Mapping[str, Any]) -> AsyncGenerator[BackendEvent]:
        """Answer one Responses body. Raises BadRequest."""
        request = read_request(body)
        try:
            connection = await self._server.connection()
        except Unavailable as unavailable:
            yield Failed(unavailable.error)
            return
        # A task of its own, so that a client that leaves in the middle of it leaves no turn behind.
        beginning = asyncio.create_task(_begin(connection, request))
        finished = False
        try:
            try:
                running = await asyncio.wait_for(asyncio.shield(beginning), _BEGIN_LIMIT)
            except TimeoutError:
                beginning.cancel()
                message = f"Codex did not accept the request within {_BEGIN_LIMIT:.0f} s."
                yield Failed(ApiError(message, code="not_accepted", status=504))
                return
            except Unavailable as unavailable:
                yield Failed(unavailable.error)
                return
            except Refusal as refusal:
                yield Failed(_refused(refusal))
                return
            turn = Turn(running.model)
            while not turn.done:
                try:
                    news = await asyncio.wait_for(running.news.get(), None if turn.opened else _HEADERS_LIMIT)
                except TimeoutError:
                    events = turn.open()
                else:
                    events = turn.feed(news) if news is not None else turn.fail(_death(connection))
                    finished = news is None or news.method == "turn/completed"
                for event in events:
                    yield event
        finally:
            ending = asyncio.create_task(_end(connection, beginning, finished=finished))
            self._abandoned.add(ending)
            ending.add_done_callback(self._abandoned.discard)


async def _begin(connection: Connection, request: TurnRequest) -> _Running:
    """Start a thread with the conversation in it, and its turn."""
    started = await connection.request(
        "thread/start",
        {
            **request.thread,
            "ephemeral": True,
            "cwd": str(connection.folder),
            # Ours are among the items, in their place. None would ask for Codex's own.
            "baseInstructions": "",
            "developerInstructions": "",
            "approvalPolicy": "never",
            "sandbox": "read-only",
            "config": {**settings(connection.mcp_servers), **request.config},
        },
    )
    thread = string(mapping(started.get("thread")).get("id"))
    for source in connection.new_sources(started.get("instructionSources")):
        logger.warning("Codex shows the model your %s in every request; no setting keeps it out", source)
    news = connection.listen(thread)
    try:
        given: list[dict[str, Any]] = []
        if connection.injects:
            try:
                await connection.request("thread/inject_items", {"threadId": thread, "items": request.items})
            except Refusal as refusal:
                if not refusal.unknown_method:
                    raise
                connection.injects = False
                logger.warning("codex %s takes no items: conversations go as one text", connection.version)
        if not connection.injects:
            given = one_text(request.items)
        turn = await connection.request("turn/start", {"threadId": thread, "input": given, **request.turn})
    except BaseException:
        connection.forget(thread)
        await _unload(connection, thread)
        raise
    name = string(mapping(turn.get("turn")).get("id"))
    return _Running(thread, name, string(started.get("model")) or None, news)


async def _end(connection: Connection, beginning: asyncio.Task[_Running], *, finished: bool) -> None:
    """Interrupt the turn unless it has finished, and unload its thread."""
    with contextlib.suppress(Refusal, Unavailable, TimeoutError):
        async with asyncio.timeout(_ABANDON_LIMIT):
            running = await beginning
            connection.forget(running.thread)
            if not finished:
                await connection.request("turn/interrupt", {"threadId": running.thread, "turnId": running.turn})
            await _unload(connection, running.thread)


async def _unload(connection: Connection, thread: str) -> None:
    """Let Codex forget a thread."""
    with contextlib.suppress(Refusal, Unavailable):
        await connection.request("thread/unsubscribe", {"threadId": thread})


def _refused(refusal: Refusal) -> ApiError:
    message = f"Codex refused the request: {refusal.message}"
    return ApiError(message, type="invalid_request_error", status=400)


def _death(connection: Connection) -> ApiError:
    return connection.death or ApiError("The Codex app-server died.", code="backend_died", status=502, retry_after=1)
