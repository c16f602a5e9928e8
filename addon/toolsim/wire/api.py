"""``Api``, the interface that each of the three APIs implements.

All behavior that depends on the API is a member of ``Api``, so that no other module compares API names::

    path, body ─▶ uses_tools? ─▶ read ─▶ ClientRequest          the client's request
    ClientRequest ─▶ to_items ─▶ items ─▶ … ─▶ compose ─▶ body  the request to a backend of this API
    bytes ─▶ reader ─▶ BackendEvents      ClientEvents ─▶ writer ─▶ bytes

The client's API reads a request; ``to_items`` and ``compose`` are methods of the backend's API.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from toolsim.core.conversation import Called, ClientRequest, Demand, HostedItem, Item, Message
from toolsim.core.errors import ApiError
from toolsim.core.events import BackendEvent, ClientEvent, Failed, StructuredDelta, ToolKind
from toolsim.core.plan import AnswerForm
from toolsim.core.policy import ApiName, Engine, OutputMode, Policy
from toolsim.wire.errors import error_body
from toolsim.wire.hosted_items import HostedItems
from toolsim.wire.json_codec import dump
from toolsim.wire.sse import ServerSentEvent


class Reader(ABC):
    """Converts one answer from a backend to backend events. Never raises an exception, regardless of the input."""

    def __init__(self) -> None:
        self.unknown: dict[str, None] = {}
        """Types of unknown events that the reader ignored, for the log."""
        self.streams_ahead = False
        """Whether to emit fragments of a call before the call is complete."""
        self.offered: Collection[str] = ()
        """Names of the offered tools, if known."""
        self._closed = False  # After the terminator or an error, the reader ignores all further input.

    def event(self, sse: ServerSentEvent) -> list[BackendEvent]:
        """Return the backend events of one server-sent event."""
        data = sse.data.strip()
        if self._closed or not data:
            return []
        if data == "[DONE]":
            return self._done()
        document = sse.parsed()
        if isinstance(document, ApiError):
            return self._fail(document)
        return [] if document is None else self._read(document, sse.event)

    @abstractmethod
    def follow(self, delta: StructuredDelta, texts: Sequence[str]) -> None:
        """Append ``texts`` to the arguments of the call to which ``delta`` belongs. The texts are from later frames of
        the call, which the reader has not seen.
        """

    @abstractmethod
    def whole(self, body: Mapping[str, Any]) -> list[BackendEvent]:
        """Return the events of a non-streamed answer."""

    def end(self) -> list[BackendEvent]:
        """Return the remaining events when the input ends. By default, there are none, because the stream's terminator
        is an event itself.
        """
        return []

    @abstractmethod
    def _read(self, data: dict[str, Any], name: str) -> list[BackendEvent]:
        """Return the backend events of one server-sent event, given its data and its name ("" for none)."""

    def _done(self) -> list[BackendEvent]:
        """Return the events for the terminator ``[DONE]``."""
        return []

    def _fail(self, error: ApiError) -> list[BackendEvent]:
        self._closed = True
        return [Failed(error)]


class Writer(ABC):
    """Converts client events to one answer: frames for a stream, otherwise one ``body``."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self.body: dict[str, Any] | None = None
        self.error: ApiError | None = None

    @abstractmethod
    def write(self, event: ClientEvent) -> list[bytes]:
        """Return the frames of one event (none if the answer is not streamed)."""

    @abstractmethod
    def error_event(self, error: ApiError) -> bytes:
        """Return the frame of an event that ends a stream with an error, even a stream that another writer began."""

    def whole(self) -> bytes:
        """Return the body of a non-streamed answer, or of its error, as JSON."""
        return error_body(self.error) if self.error is not None else dump(self.body).encode()


WINDOW_FIELDS = ("context_length", "context_window", "max_model_len")
"""Field names under which clients look for a model's context window in a list of models."""


@dataclass(frozen=True, slots=True)
class TokenCountEndpoint:
    """An endpoint that counts the tokens of a request."""

    path_suffix: str
    """Path suffix of the token-counting endpoint, to be appended to the path of a normal request."""
    fields: frozenset[str]
    """Fields of a normal request to send to the token-counting endpoint. Strict servers reject all other fields."""
    engines: tuple[Engine, ...] = ()
    """Engines for which tokens are counted at this endpoint even if normal requests use another API. These engines
    count with the model's own tokenizer.
    """


class HeaderChange(NamedTuple):
    """Changes to the headers of a request to a backend: the headers to set, and the names of the headers to remove.
    ``dropped`` describes, for the log, the requested features that are dropped.
    """

    given: Mapping[str, str]
    without: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


class Api(ABC):
    """One API: its distinguishing features, and the code that reads and writes its requests and answers.

    The values and methods that this class defines are defaults that follow OpenAI's APIs. Header names are in lower
    case.
    """

    name: ApiName
    path_suffix: str
    """Suffix of the path at which a backend accepts requests of this API."""
    path_marker: str
    """Path suffix by which a request of this API is recognized. It does not match unrelated requests."""
    backend: ApiName
    """Default API of the backend for clients of this API."""
    conversation_fields: tuple[str, ...]
    """Fields of a request that contain its conversation."""
    delta_text_keys: frozenset[str]
    """Keys under which the deltas of a stream contain text."""
    identifier_keys: frozenset[str]
    """Keys that only this API uses, and whose string values are API terms, IDs or names rather than content."""
    headers: tuple[str, ...] = ("openai-beta", "openai-processing-ms", "openai-version")
    """Headers that are specific to this API and contain no secret."""
    key_headers: tuple[str, ...] = ("authorization", "api-key")
    """Headers that clients use to send their key, either as a bearer token or as the bare key."""
    own_key_header: str = "authorization"
    """The header whose key determines the owner of a request that contains keys in several headers."""
    own_query: str = ""
    """Part of a client's query string, such as ``beta=true``, that is meaningless to a backend with another API, or ""
    if there is none.
    """
    token_count: TokenCountEndpoint | None = None
    manifest_role: Literal["developer", "system"]
    """Default role of the message that contains the manifest."""
    text_follows_calls: bool
    """Whether text can follow the calls in an answer. It can in a list of output items, but not in a chat message."""
    takes_structural_tags: bool = False
    """Whether the answer format can be a structural tag (supported by vLLM and SGLang)."""
    is_storable: bool = False
    """Whether later requests can refer to stored answers of this API."""
    hosted: HostedItems = HostedItems()
    """The conversion between this API and the tools that the proxy runs."""
    has_own_errors: bool = False
    """Whether this API's errors and model lists have a format other than OpenAI's."""

    # -- recognition --

    @abstractmethod
    def is_request(self, body: Mapping[str, Any]) -> bool:
        """Return whether a body is a request of this API, provided that no earlier API in ``APIS`` recognizes it."""

    @abstractmethod
    def is_answer(self, body: Mapping[str, Any]) -> bool:
        """Return whether a body is a non-streamed answer of this API, provided that no earlier API in ``APIS``
        recognizes it.
        """

    @abstractmethod
    def is_event(self, kind: str, data: Mapping[str, Any]) -> bool:
        """Return whether a stream's event belongs to this API, provided that no earlier API in ``APIS`` recognizes it.

        ``kind`` is the type or name of the event, or "" if it has neither.
        """

    @abstractmethod
    def uses_tools(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request declares tools or has calls in its history."""

    # -- requests --

    def expand_opaque_items(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a client's body in the API's own format, with items that only toolsim can read expanded into text.

        An unchanged body is returned as the same object.
        """
        return body

    @abstractmethod
    def read(self, body: Mapping[str, Any]) -> ClientRequest:
        """Parse a client's request. Raises BadRequest if it is invalid. The error's ``param`` is the path of the
        invalid field.
        """

    @abstractmethod
    def answer_form(self, body: Mapping[str, Any]) -> AnswerForm:
        """Return the form of answer that the client expects, even for an otherwise invalid request."""

    @abstractmethod
    def to_items(self, request: ClientRequest) -> tuple[list[Item], list[str]]:
        """Return the items of a request for a backend of this API, and notes on items that the API does not support."""

    @abstractmethod
    def compose(
        self, request: ClientRequest, messages: Sequence[Message | HostedItem], answer_format: Demand, keep_hosted: bool
    ) -> dict[str, Any]:
        """Return the body for a backend, with ``messages`` as its conversation.

        ``answer_format`` is the structured output to request. If ``keep_hosted`` is true, hosted tools are forwarded.
        """

    @abstractmethod
    def append_reply(self, body: Mapping[str, Any], words: str, reply: str) -> dict[str, Any]:
        """Return the request body with an additional turn: the model's text ``words`` ("" for none) and a reply."""

    @abstractmethod
    def append_tool_results(self, body: Mapping[str, Any], words: str, calls: Sequence[Called]) -> dict[str, Any]:
        """Return the request body with an additional turn: the model's text ``words``, its calls and their outputs."""

    @abstractmethod
    def side_request(self, body: Mapping[str, Any], rule: str, question: str) -> dict[str, Any]:
        """Return the body of a request that asks the same model a short question outside the conversation.

        ``rule`` contains instructions for the answer.
        """

    def can_demand(self, answer_format: Mapping[str, Any]) -> bool:
        """Return whether a request of this API can specify ``answer_format``, which is in the flat shape of
        ``text.format``.
        """
        return True

    def calls_of(self, message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield the names and arguments of the calls in a history message."""
        return iter(())

    # -- answers --

    @abstractmethod
    def output_mode(self, policy: Policy) -> OutputMode:
        """Return the form in which clients receive calls from backends of this API, as configured by the operator."""

    @abstractmethod
    def reader(self) -> Reader:
        """Return a new reader for one answer."""

    @abstractmethod
    def writer(self, form: AnswerForm) -> Writer:
        """Return a new writer for one answer."""

    @abstractmethod
    def call_id(self, kind: ToolKind, number: int) -> str:
        """Return the ID that the writer assigns to a call."""

    # -- headers, errors and lists of models --

    def own_backend_headers(self, headers: Mapping[str, str]) -> HeaderChange:
        """Return the header changes that a backend of this API requires for a request from any client."""
        return HeaderChange({})

    def other_backend_headers(self, headers: Mapping[str, str]) -> HeaderChange:
        """Return the header changes that a backend with another API requires for requests from clients of this API."""
        return HeaderChange({})

    def error_answer(self, status: int, body: bytes) -> bytes:
        """Return the body of an error in this API's format, given the body in OpenAI's format."""
        return body

    def model_list(self, body: bytes) -> bytes:
        """Return the body of a model list in this API's format, given the body in OpenAI's format."""
        return body
