"""Implements the protocol of the WebSocket mode, without I/O: converts messages to requests, and answers to messages.

1. A ``response.create`` message contains the body of a POST request. Its answer consists of the events of the streamed
   response to this POST, with one message per event and without ``[DONE]``. An HTTP error becomes an ``error`` message
   with its status. If an ``error`` event precedes ``response.failed``, it is dropped. Otherwise, clients would treat
   ``error`` as the end of the answer, and ``response.failed`` as part of the next answer.
2. A connection remembers the conversation up to each of its answers. If a request continues an answer, this
   conversation is inserted into the request, so no store is needed, and ``store: false`` is respected. If the proxy
   stores an answer, the connection does not remember it, so that nothing is stored twice.
3. If a request that continues a response fails, the connection forgets this response, as the specification requires.
   The client then sends the entire conversation again. A request with a tool output whose call is unknown also fails.
   Over HTTP, such an output is accepted, because the entire conversation is not always visible there.
4. A ``stream_id`` names a lane. Requests in the same lane are answered in order, and requests in different lanes
   concurrently. Each message of an answer contains the lane's ``stream_id``.
5. With ``generate: false``, a client asks the server to prepare for a turn. toolsim has nothing to prepare, so it
   answers the request immediately, with an empty answer that can be continued.
6. A ``response.steer`` message is rejected with the event that the API defines for this purpose. Codex sends
   ``response.processed`` after it has processed a response. This message needs no answer.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.events import Ended, Opened, Usage
from toolsim.core.fair_cache import FairCache
from toolsim.wire.errors import read_error
from toolsim.wire.json_codec import dump, parse_object, read_body, unreadable
from toolsim.wire.json_fields import mapping, mappings, optional, string
from toolsim.wire.responses.background import CANCELLED
from toolsim.wire.responses.compaction import TRIGGER, since_summary, wants_summary
from toolsim.wire.responses.history import input_items
from toolsim.wire.responses.request import answer_form
from toolsim.wire.responses.shapes import failed
from toolsim.wire.responses.stored import References, not_found
from toolsim.wire.responses.writer import ResponsesWriter
from toolsim.wire.sse import ServerSentEvent, SSEDecoder

MAX_LANES = 32
"""Maximum number of named lanes per connection, the same as OpenAI's."""
MAX_RUNNING = 16
"""Maximum number of concurrent answers per connection, the same as OpenAI's."""
MAX_LANE_NAME = 256
"""Maximum length of a ``stream_id``, in characters. It is limited because each message of an answer contains it."""
MAX_WAITING = 64
"""Maximum number of waiting requests per connection."""
MAX_UNREAD_ERRORS = 1024 * 1024
"""Maximum length, in characters, of the errors that are queued for a client that does not read.

The limit is higher than the total length of the errors for all messages that a client can have in flight.
"""

TOO_MANY_LANES = ApiError(
    f"Too many different values of 'stream_id' on this connection: expected at most {MAX_LANES}.",
    "invalid_request_error",
    "websocket_stream_limit_reached",
    "stream_id",
    status=400,
)
TOO_MANY_WAITING = ApiError(
    f"Too many requests are waiting on this connection: expected at most {MAX_WAITING}.",
    "invalid_request_error",
    "rate_limit_exceeded",
    status=429,
)
NOT_ACTIVE = ApiError(
    "This connection has no such response in progress.",
    "invalid_request_error",
    "response_not_active",
    status=400,
)
TRUNCATED = ApiError("The answer ended unexpectedly.", code="backend_truncated", status=502)
_NO_STEERING = "Steering is not supported: cancel the response, or send the input when the response has ended."

_ENDS = ("response.completed", "response.incomplete", "response.failed")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_CONTINUES_NOTHING = re.compile(r'"previous_response_id":\s*null')
"""Matches a ``previous_response_id`` of null in the JSON text of an event. It never matches inside a string, where the
quotes would be escaped.
"""


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A message from a client. ``lane`` is the message's ``stream_id``, or "" if it has none."""

    kind: Literal["create", "cancel", "steer", "processed"]
    lane: str
    size: int
    """The size of the message, in bytes."""
    draft: RequestDraft | None = None
    """The request of a ``response.create`` message."""
    response_id: str = ""
    """The ID of the response to cancel, or "" for the answer in progress in this lane."""
    refusal: str = ""
    """The event that rejects a ``response.steer`` message."""


class BadMessage(Exception):
    """Raised if a message is invalid or cannot be processed at the moment. ``lane`` is "" if its lane is unknown."""

    def __init__(self, error: ApiError, lane: str = "") -> None:
        super().__init__(error.message)
        self.error = error
        self.lane = lane


def message_or_error(data: bytes) -> ClientMessage | tuple[ApiError, str]:
    """Parse a message. Return the parsed message, or an error and the lane.

    The error is returned, because an exception in a worker process would not reach the caller.
    """
    try:
        return read_message(data)
    except BadMessage as bad:
        return bad.error, bad.lane


def read_message(data: bytes) -> ClientMessage:
    """Parse a client's message. Raises BadMessage if it is not a valid message of a supported type."""
    document = read_body(data)
    if document is None:
        raise BadMessage(BadRequest(unreadable(data, "The message"), code="invalid_json").error)
    lane = document.get("stream_id")
    try:
        lane = optional(document, "stream_id", str) or ""
        if (length := len(lane)) > MAX_LANE_NAME:
            lane = ""
            message = f"Invalid 'stream_id': expected at most {MAX_LANE_NAME} characters, but got {length}."
            raise BadRequest(message, "stream_id", "string_above_max_length")
        kind = string(document.get("type"))
        body = {key: value for key, value in document.items() if key not in ("type", "stream_id", "generate")}
        match kind:
            case "response.create":
                if optional(document, "background", bool):
                    message = "'background' is not supported over WebSocket: send the request over HTTP."
                    raise BadRequest(message, "background", "unsupported_parameter")
                draft = draft_of({**body, "stream": True}, generates=_generates(document))
                return ClientMessage("create", lane, len(data), draft)
            case "response.cancel":
                return ClientMessage("cancel", lane, len(data), response_id=string(body.get("response_id")))
            case "response.steer":
                return ClientMessage("steer", lane, len(data), refusal=_steering_refused(body, lane))
            case "response.processed":
                return ClientMessage("processed", lane, len(data))
        message = f"Invalid value: {kind[:64]!r}. Expected 'response.create' or 'response.cancel'."
        raise BadRequest(message, "type", "invalid_value")
    except BadRequest as bad:
        raise BadMessage(bad.error, lane if isinstance(lane, str) else "") from None


def _generates(document: Mapping[str, Any]) -> bool:
    prewarms = mapping(document.get("prompt_cache_options")).get("prewarm") is True
    return optional(document, "generate", bool) is not False and not prewarms


def error_message(error: ApiError, lane: str = "", headers: Mapping[str, str] | None = None) -> str:
    """Return the message for an error that occurs outside of an answer.

    If there are ``headers`` from the HTTP response, the message contains them.
    """
    # The Open Responses schema requires a code.
    body = {**error.body(), "code": error.code or error.type}
    fields = {"headers": dict(headers)} if headers else {}
    return _in_lane(dump({"type": "error", "status": error.status, "error": body, **fields}), lane)


def _steering_refused(body: Mapping[str, Any], lane: str) -> str:
    """Return the event that rejects steering. It contains the input, so that the client can resend it."""
    error = {"type": "invalid_request_error", "code": "steering_not_supported", "message": _NO_STEERING}
    steer = {key: body.get(key) for key in ("previous_response_id", "input")}
    event = {"type": "response.steer.failed", "sequence_number": 0, "error": error, "steer": steer}
    return _in_lane(dump(event), lane)


def _in_lane(message: str, lane: str) -> str:
    return f'{message.rstrip()[:-1]},"stream_id":{dump(lane)}}}' if lane else message


@dataclass(frozen=True, slots=True)
class Context:
    """A conversation. ``items`` are its items as JSON, separated by commas, and ``calls`` are the IDs of its calls."""

    items: bytes = b""
    calls: frozenset[str] = frozenset()

    @classmethod
    def of(cls, items: Sequence[Mapping[str, Any]]) -> Context:
        """Return a conversation with these items."""
        calls = [string(item.get("call_id")) for item in items if string(item.get("type")).endswith("_call")]
        return cls(b",".join([dump(item).encode() for item in items]), frozenset(calls))

    def extended(self, more: Context) -> Context:
        """Return this conversation with the items of ``more`` appended."""
        return Context(b",".join(filter(None, (self.items, more.items))), self.calls | more.calls)


@dataclass(frozen=True, slots=True)
class RequestDraft:
    """A parsed and serialized request.

    It is created in a worker process, so that the event loop only has to concatenate bytes.
    """

    body: bytes
    """The body of the POST request."""
    own: Context | None = None
    """The items in the request itself, or None if they are invalid. The proxy reports invalid items when it rewrites
    the request.
    """
    answered: tuple[str, ...] = ()
    """The IDs of the calls whose outputs are in the request."""
    previous: str | None = None
    """The ID of the response that the request continues, or None for a new conversation."""
    rest: bytes = b"{}"
    """The ``body`` without its items, if the request continues a response."""
    trigger: bytes = b""
    """The item that requests a summary of the conversation, or b"" if the request has none."""
    in_conversation: bool = False
    is_stored: bool = True
    prepared: bytes | None = None
    """The complete answer to a request with ``generate: false``, or None for any other request."""


def draft_of(body: Mapping[str, Any], *, generates: bool = True) -> RequestDraft:
    """Return the draft of a request, given its ``body``."""
    previous, items = body.get("previous_response_id"), body.get("input")
    draft = RequestDraft(
        dump(body).encode(),
        previous=previous if isinstance(previous, str) else None,
        in_conversation=bool(body.get("conversation")),
        is_stored=body.get("store") is not False,
        prepared=None if generates else prepared(body),
    )
    is_readable = isinstance(items, str | list) and all(isinstance(item, dict) for item in input_items(body))
    if not is_readable or not isinstance(previous, str | None):
        return draft
    trigger = dump({"type": TRIGGER}).encode() if wants_summary(body) else b""
    own = input_items(body)[: -1 if trigger else None]
    draft = replace(draft, own=Context.of(own), answered=tuple(_answered(own)), trigger=trigger)
    if previous is None:
        return draft
    rest = {key: value for key, value in body.items() if key not in ("previous_response_id", "input")}
    return replace(draft, rest=dump(rest).encode())


@dataclass(frozen=True, slots=True)
class SocketTurn:
    """A request that is ready to be sent.

    ``previous`` is the ID of the remembered response that the request continues, or "" if it continues none.
    """

    body: bytes
    previous: str = ""
    context: Context | None = None
    """The conversation up to and including this request, or None if it is unknown."""


MAX_NAMES = 1000
"""Maximum number of responses that one connection remembers."""


class RecentTurns:
    """The conversations that one connection remembers.

    All connections keep their conversations in the shared cache ``places``, in which each ``owner`` has a fair share.
    """

    def __init__(self, places: FairCache[Context], owner: str) -> None:
        self._places = places
        self._owner = owner
        self._prefix = secrets.token_bytes(16)
        # The IDs of the remembered responses, oldest first. Some of these responses may be missing from the cache
        # because other clients needed the space.
        self._names: dict[str, None] = {}

    def turn(self, draft: RequestDraft, *, has_store: bool) -> SocketTurn:
        """Return the turn for a client's message.

        Raises BadRequest if the message continues an unknown response, or contains an output for an unknown call.

        ``has_store`` specifies whether the proxy has a store, which might contain responses that are not remembered
        here.
        """
        previous, own = draft.previous, draft.own
        if own is None:
            return SocketTurn(draft.body)
        if previous is None:
            return SocketTurn(draft.body, "", None if draft.in_conversation else own)
        before = self._find(previous)
        if before is None:
            if not draft.is_stored and not has_store:
                raise _Missing(not_found(References(previous), previous))
            return SocketTurn(draft.body)
        context = before.extended(own)
        if missing := [call_id for call_id in draft.answered if call_id not in context.calls]:
            message = f"No tool call found for function call output with call_id {missing[0][:64]}."
            raise BadRequest(message, "input")
        whole = b",".join(filter(None, (context.items, draft.trigger)))
        return SocketTurn(b"".join((draft.rest[:-1], b',"input":[', whole, b"]}")), previous, context)

    def take(self, answer: SocketAnswer, *, has_store: bool) -> None:
        """Remember the conversation up to a finished answer, unless the answer is in the store.

        If the answer failed, forget the response that it continued.
        """
        turn, response = answer.turn, answer.response or {}
        if answer.has_failed:
            self.forget(turn.previous)
            return
        is_stored = has_store and response.get("store") is True
        if turn.context is None or is_stored:
            return
        output = mappings(response.get("output"))
        context = turn.context.extended(Context.of(output))
        if any(item.get("type") == "compaction" for item in output):
            items = mappings(mapping(parse_object(b'{"items":[' + context.items + b"]}")).get("items"))
            context = Context.of(since_summary(items))
        name = string(response.get("id"))
        self._names.pop(name, None)
        self._names[name] = None
        while len(self._names) > MAX_NAMES:
            self.forget(next(iter(self._names)))
        self._places.put(self._key(name), context, self._owner, len(context.items))

    def forget(self, name: str) -> None:
        """Forget a response."""
        if name in self._names:
            del self._names[name]
            self._places.pop(self._key(name))

    def clear(self) -> None:
        """Forget all responses, because the connection is closed."""
        for name in list(self._names):
            self.forget(name)

    def _find(self, name: str) -> Context | None:
        return self._places.get(self._key(name)) if name in self._names else None

    def _key(self, name: str) -> bytes:
        return self._prefix + name.encode("utf-8", "replace")


class _Missing(BadRequest):
    """Raised if a request continues an unknown response."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def _answered(items: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the IDs of the calls whose outputs are among these items."""
    return [
        string(item.get("call_id")) for item in items if string(item.get("type")) in _OUTPUTS and item.get("call_id")
    ]


def prepared(body: Mapping[str, Any]) -> bytes:
    """Return the stream of events that answers a request with ``generate: false``."""
    writer = ResponsesWriter(replace(answer_form(body), stream=True))
    nothing = Usage(input_tokens=0, output_tokens=0, total_tokens=0)
    return b"".join(writer.write(Opened()) + writer.write(Ended(usage=nothing)))


class SocketAnswer:
    """Converts an HTTP response to WebSocket messages. ``turn`` is the turn whose request it answers."""

    def __init__(self, turn: SocketTurn, lane: str) -> None:
        self.turn = turn
        self._lane = lane
        self._decoder = SSEDecoder()
        self._status = 200
        self._headers: dict[str, str] = {}
        self._is_stream = True
        self._whole = bytearray()
        self._error = ""  # An ``error`` message that is held back, because a ``response.failed`` event may follow.
        self.response: Mapping[str, Any] | None = None
        """The Response object from the first or the last event of the answer."""
        self.is_over = False
        """Whether the last message of the answer has been produced."""
        self.has_failed = False
        """Whether the answer ended with an error."""
        self.is_cancelled = False
        """Whether the client has canceled the answer."""

    def begin(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        """Process the beginning of the response. Its ``headers`` are used only in an error message."""
        self._status = status
        self._headers = dict(headers)
        self._is_stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"

    def feed(self, data: bytes) -> Iterator[list[str]]:
        """Yield a list of messages for each event that ``data`` completes.

        If ``data`` is empty, the response has ended.
        """
        if self._is_stream:
            yield from filter(None, map(self._event, self._decoder.feed(data)))
        else:
            self._whole += data
            if not data:
                yield [self._document(bytes(self._whole))]
        if not data and not self.is_over:
            self.is_over = self.has_failed = True
            yield [self._error or error_message(TRUNCATED, self._lane)]

    def cancel(self) -> str:
        """Return the last message of an answer that the client has canceled."""
        self.is_over = True
        if self.response is None:
            return error_message(CANCELLED, self._lane)
        response = failed(self.response, CANCELLED) | {"status": "cancelled", "store": False}
        return _in_lane(dump({"type": "response.failed", "response": response, "sequence_number": 0}), self._lane)

    def _event(self, sse: ServerSentEvent) -> list[str]:
        """Return the messages for an event. The list may be empty."""
        data = sse.data
        if not self.is_over and sse.has_too_many and isinstance(problem := sse.parsed(), ApiError):
            self.is_over = self.has_failed = True
            return [error_message(problem, self._lane)]
        event = None if self.is_over else parse_object(data.encode("utf-8", "replace"))
        if event is None:
            return []
        kind = event.get("type")
        if isinstance(event.get("response"), dict):
            self.response = event["response"]
            self.is_over = kind in _ENDS
            self.has_failed = kind == "response.failed"
            if self.turn.previous:
                continued = f'"previous_response_id":{dump(self.turn.previous)}'
                # The replacement is a function, because backslashes in a replacement string have a special meaning.
                data = _CONTINUES_NOTHING.sub(lambda _: continued, data, count=1)
        before, self._error = [self._error] if self._error and not self.has_failed else [], ""
        message = _in_lane(data, self._lane)
        if kind == "error":
            self._error = message
            return before
        return [*before, message]

    def _document(self, body: bytes) -> str:
        """Return the message for a non-streamed response body, which is an error or a complete Response object."""
        self.is_over = True
        document = parse_object(body) or {}
        if self._status < 300 and "output" in document:
            self.response = document
            event = {"type": f"response.{document.get('status')}", "response": document}
            return _in_lane(dump({**event, "sequence_number": 0}), self._lane)
        self.has_failed = True
        error = replace(read_error(document), status=self._status if self._status >= 400 else 502)
        return error_message(error, self._lane, self._headers)
