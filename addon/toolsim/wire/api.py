"""``Api``, the interface that each of the three APIs implements.

Everything that depends on the API is a member of it, so that no other module compares names::

    path, body ─▶ uses_tools? ─▶ read ─▶ ClientRequest          the client's request
    ClientRequest ─▶ to_items ─▶ items ─▶ … ─▶ compose ─▶ body  the request to a backend of this API
    bytes ─▶ reader ─▶ BackendEvents      ClientEvents ─▶ writer ─▶ bytes

A request is read by the client's API; ``to_items`` and ``compose`` belong to the backend's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from toolsim.core.conversation import Called, ClientRequest, Demand, HostedItem, Item, Message
from toolsim.core.errors import ApiError
from toolsim.core.events import BackendEvent, ClientEvent, Failed, StructuredDelta, ToolKind
from toolsim.core.plan import AnswerForm, ApiName, Engine, OutputMode, Policy
from toolsim.wire.errors import error_body
from toolsim.wire.hosted_items import HostedItems
from toolsim.wire.json_codec import dump
from toolsim.wire.sse import ServerSentEvent


class Reader(ABC):
    """Reads one answer of a backend. Never raises, regardless of the input."""

    def __init__(self) -> None:
        self.unknown: dict[str, None] = {}
        """The types of events that were ignored as unknown, for the log."""
        self.streams_ahead = False
        """Whether to emit fragments of a call before it is complete."""
        self.offered: Collection[str] = ()
        """The names of the offered tools, if they are known."""
        self._closed = False  # After the terminator or an error, everything is ignored.

    def event(self, sse: ServerSentEvent) -> list[BackendEvent]:
        """Return the events of one stream event."""
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
        """Append the texts that followed ``delta`` in frames that differ from it only in their texts."""

    @abstractmethod
    def whole(self, body: Mapping[str, Any]) -> list[BackendEvent]:
        """Return the events of a non-streamed answer."""

    def end(self) -> list[BackendEvent]:
        """Return the events at the end of the stream; none if the terminator is an event."""
        return []

    @abstractmethod
    def _read(self, data: dict[str, Any], name: str) -> list[BackendEvent]:
        """Return the events of one stream event: its data, and its name, or "" for none."""

    def _done(self) -> list[BackendEvent]:
        """Return the events of ``[DONE]``."""
        return []

    def _fail(self, error: ApiError) -> list[BackendEvent]:
        self._closed = True
        return [Failed(error)]


class Writer(ABC):
    """Writes one answer for a client: frames as it goes or, with ``form.stream`` false, one ``body``."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self.body: dict[str, Any] | None = None
        self.error: ApiError | None = None

    @abstractmethod
    def write(self, event: ClientEvent) -> list[bytes]:
        """Return the frames of one event (none when the answer is not streamed)."""

    @abstractmethod
    def error_event(self, error: ApiError) -> bytes:
        """Return an event that ends a stream with an error, whoever wrote the events before it."""

    def whole(self) -> bytes:
        """Return the body, or the error's body, as JSON once it is complete."""
        return error_body(self.error) if self.error is not None else dump(self.body).encode()


WINDOW_FIELDS = ("context_length", "context_window", "max_model_len")
"""The names under which clients look for a model's context window in a list of models."""


@dataclass(frozen=True, slots=True)
class TokenCountEndpoint:
    """An endpoint that counts the tokens of a request."""

    path_suffix: str
    """The suffix that, appended to a turn's path, gives the path for counting its tokens."""
    fields: frozenset[str]
    """The fields of a turn that are counted; strict servers reject any other."""
    engines: tuple[Engine, ...] = ()
    """Servers whose turns use another API but that count tokens through this one, with the model's own tokenizer."""


class HeaderChange(NamedTuple):
    """Changes to a backend's headers: headers to set, names of headers to remove, and a description for the log."""

    given: Mapping[str, str]
    without: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


class Api(ABC):
    """One API: what distinguishes it, and how its requests and answers are read and written.

    A member with a value or body here is the default, which follows OpenAI's APIs. A subclass lists the methods that
    are plain functions of its other modules as ``staticmethod``s. Header names are lower-case.
    """

    name: ApiName
    path_suffix: str
    """The end of a backend's path for requests of this API."""
    path_marker: str
    """The end of a path that only this API's requests have, to distinguish them from other servers' requests."""
    backend: ApiName
    """The default API of a backend whose API the operator has not configured."""
    conversation_fields: tuple[str, ...]
    """The fields of a request that contain its conversation."""
    delta_text_keys: frozenset[str]
    """The keys of texts in the deltas of its streams."""
    identifier_keys: frozenset[str]
    """Keys, unique to this API, of strings that are API terms, ids or names and not content."""
    headers: tuple[str, ...] = ("openai-beta", "openai-processing-ms", "openai-version")
    """Its own headers that contain no secret."""
    key_headers: tuple[str, ...] = ("authorization", "api-key")
    """The headers in which its clients send their key, either as a bearer token or bare."""
    own_key_header: str = "authorization"
    """The header that determines the owner of a request with several keys."""
    own_query: str = ""
    """A part of a client's query that is meaningless to a backend of another API."""
    token_count: TokenCountEndpoint | None = None
    manifest_role: Literal["developer", "system"]
    """The role for instructions from outside the conversation."""
    text_follows_calls: bool
    """Whether an answer can contain text after its calls: an output list can, a chat message cannot."""
    takes_structural_tags: bool = False
    """Whether the answer format can be a structural tag (vLLM and SGLang)."""
    is_storable: bool = False
    """Whether later requests can refer to its answers."""
    hosted: HostedItems = HostedItems()
    """How it shows the tools that the proxy runs."""
    has_own_errors: bool = False
    """Whether its errors and model lists differ from OpenAI's."""

    # -- recognition --

    @abstractmethod
    def is_request(self, body: Mapping[str, Any]) -> bool:
        """Return whether a body is a request of this API, assuming that it is not of an earlier API in ``APIS``."""

    @abstractmethod
    def is_answer(self, body: Mapping[str, Any]) -> bool:
        """Return whether a body is a non-streamed answer of this API, under the same assumption."""

    @abstractmethod
    def is_event(self, kind: str, data: Mapping[str, Any]) -> bool:
        """Return whether an event of a stream belongs to this API, under the same assumption.

        ``kind``: its type or name, or "" for none.
        """

    @abstractmethod
    def uses_tools(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request declares tools or contains a history of calls."""

    # -- requests --

    def expand_opaque_items(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a client's body in the API's own format, with items that only toolsim can read turned into text.

        It is the same object if nothing has to change.
        """
        return body

    @abstractmethod
    def read(self, body: Mapping[str, Any]) -> ClientRequest:
        """Read a client's request. Raises BadRequest with the exact param."""

    @abstractmethod
    def answer_form(self, body: Mapping[str, Any]) -> AnswerForm:
        """Return the form of answer that the client expects; everything else in the body may be invalid."""

    @abstractmethod
    def to_items(self, request: ClientRequest) -> tuple[list[Item], list[str]]:
        """Return the items of a request for a backend of this API, and notes on items that it does not support."""

    @abstractmethod
    def compose(
        self, request: ClientRequest, messages: Sequence[Message | HostedItem], answer_format: Demand, keep_hosted: bool
    ) -> dict[str, Any]:
        """Return a backend's body, with ``messages`` instead of the client's own.

        ``answer_format``: the structured output to request. ``keep_hosted``: whether to forward hosted tools.
        """

    @abstractmethod
    def append_reply(self, body: Mapping[str, Any], words: str, reply: str) -> dict[str, Any]:
        """Return a client's body with an additional turn: the model's ``words`` ("" for none) and the reply to them."""

    @abstractmethod
    def append_tool_results(self, body: Mapping[str, Any], words: str, calls: Sequence[Called]) -> dict[str, Any]:
        """Return a client's body with an additional turn: the model's ``words``, its calls and their outputs."""

    @abstractmethod
    def side_request(self, body: Mapping[str, Any], rule: str, question: str) -> dict[str, Any]:
        """Return a body with a short question to the same model, with a rule, outside the conversation."""

    def can_demand(self, answer_format: Mapping[str, Any]) -> bool:
        """Return whether a request of this API can require this answer format, given as a flat ``text.format``."""
        return True

    def calls_of(self, message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield the names and arguments of the calls in a history message.

        They are used to find calls that the client never saw (``hidden_calls.py``), in an API that does not show them.
        """
        return iter(())

    # -- answers --

    @abstractmethod
    def output_mode(self, policy: Policy) -> OutputMode:
        """Return the form of calls that the operator has configured for this API."""

    @abstractmethod
    def reader(self) -> Reader:
        """Return a new reader for one answer."""

    @abstractmethod
    def writer(self, form: AnswerForm) -> Writer:
        """Return a new writer for one answer."""

    @abstractmethod
    def call_id(self, kind: ToolKind, number: int) -> str:
        """Return the id that the writer assigns to a call."""

    # -- headers, errors and lists of models --

    def own_backend_headers(self, headers: Mapping[str, str]) -> HeaderChange:
        """Return the changes to any client's headers for a backend of this API."""
        return HeaderChange({})

    def other_backend_headers(self, headers: Mapping[str, str]) -> HeaderChange:
        """Return the changes to a client's headers for a backend of another API."""
        return HeaderChange({})

    def error_answer(self, status: int, body: bytes) -> bytes:
        """Return the body of an error, given its body in OpenAI's format."""
        return body

    def model_list(self, body: bytes) -> bytes:
        """Return the body of a model list, given one in OpenAI's format."""
        return body
