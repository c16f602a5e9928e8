"""What an API is: one object that speaks it, and what others ask of that object.

Everything that depends on the API is found in it, so that no other module compares names::

    path, body ─▶ uses_tools? ─▶ read ─▶ ClientRequest          what the client sent
    ClientRequest ─▶ adopt ─▶ items ─▶ … ─▶ compose ─▶ body     what a backend of this API gets
    bytes ─▶ reader ─▶ BackendEvents      ClientEvents ─▶ writer ─▶ bytes

A request is read by the client's API; ``adopt`` and ``compose`` belong to the backend's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from toolsim.core.conversation import Called, ClientRequest, Demand, HostedItem, Item, Message
from toolsim.core.errors import ApiError
from toolsim.core.events import BackendEvent, ClientEvent, Failed, StructuredDelta, ToolKind
from toolsim.core.plan import AnswerForm, ApiName, Engine, OutputMode, Policy
from toolsim.wire.errors import error_body
from toolsim.wire.json_codec import dump
from toolsim.wire.sse import ServerSentEvent


class Reader(ABC):
    """Reads one answer of a backend. Never raises, whatever the backend sends."""

    def __init__(self) -> None:
        self.unknown: dict[str, None] = {}
        """The types of events that were ignored as unknown, for the log."""
        self.streams_ahead = False
        """Whether to emit pieces of a call before it is complete."""
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
        """Add the pieces that followed ``delta`` and differ from it only in their texts."""

    @abstractmethod
    def whole(self, body: Mapping[str, Any]) -> list[BackendEvent]:
        """Return the events of a whole answer."""

    def end(self) -> list[BackendEvent]:
        """Return the events at the end of the stream: none, if the terminator is an event."""
        return []

    @abstractmethod
    def _read(self, data: dict[str, Any], name: str) -> list[BackendEvent]:
        """Return the events of one stream event: its data, and its name, "" for none."""

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

    def whole(self) -> bytes:
        """Return the body, or that of the error, once there is one, as JSON."""
        return error_body(self.error) if self.error is not None else dump(self.body).encode()


@dataclass(frozen=True, slots=True)
class Counting:
    """How the tokens of a request are counted."""

    ending: str
    """How the path of a count ends, after that of a turn."""
    fields: frozenset[str]
    """The fields of a turn that are counted; strict servers refuse any other."""
    engines: tuple[Engine, ...] = ()
    """Servers whose turns are of another API, and that count by this one with the weights' own tokenizer."""


class HeaderChange(NamedTuple):
    """Headers for a backend: those that are set, the names of those that go, and what they asked for, for the log."""

    given: Mapping[str, str]
    without: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnShape:
    """What an API spells in its own way besides requests and answers. Headers have lower-case names."""

    error_answer: Callable[[int, bytes], bytes]
    """The body of an error, by its status and its body in OpenAI's shape."""
    model_list: Callable[[bytes], bytes]
    """The body of a list of models, by that in OpenAI's shape."""
    for_others: Callable[[Mapping[str, str]], HeaderChange]
    """What changes in a client's headers for a backend of another API."""
    for_own: Callable[[Mapping[str, str]], HeaderChange]
    """What changes in any client's headers for a backend of this API."""
    query: str
    """A part of a client's query that means nothing to a backend of another API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API: what distinguishes it, and how its requests and answers are read and written."""

    name: ApiName
    ending: str
    """How a backend's path for its requests ends."""
    known_by: str
    """What the paths of its requests end with, to be told from those of other servers."""
    backend: ApiName
    """The API of a backend of which the operator has not said what it speaks."""
    is_request: Callable[[Mapping[str, Any]], bool]
    """Whether a body is a request of this API, given that it is none of those before it in ``APIS``."""
    is_answer: Callable[[Mapping[str, Any]], bool]
    """The same of a whole answer."""
    is_event: Callable[[str, Mapping[str, Any]], bool]
    """The same of an event of a stream: its type or name, "" for none, and its data."""
    told: tuple[str, ...]
    """The fields of a request that hold its conversation."""
    pieces: frozenset[str]
    """The keys of the texts that its streams send piece by piece."""
    terms: frozenset[str]
    """The keys of strings that it alone has and that are its own terms, ids or names: no words."""
    headers: tuple[str, ...] = ("openai-beta", "openai-processing-ms", "openai-version")
    """Its own headers that hold no secret, by their lower-case names."""
    key_headers: tuple[str, ...] = ("authorization", "api-key")
    """Where its clients send their key: as a token, or bare."""
    shape: OwnShape | None = None
    """How its errors, its list of models and its headers look; None: as in OpenAI's."""
    counting: Counting | None = None
    """None: it has no endpoint for that."""
    manifest_role: Literal["developer", "system"]
    """The role for instructions from outside the conversation."""
    text_follows_calls: bool
    """Whether an answer has a place for text after its calls: an output list does, a chat message does not."""
    output_mode: Callable[[Policy], OutputMode]
    """The operator's form of its calls."""
    takes_structural_tags: bool = False
    """Whether the answer format can be a structural tag (of vLLM and SGLang)."""
    is_storable: bool = False
    """Whether later requests can refer to its answers."""
    spelt_out: Callable[[dict[str, Any]], dict[str, Any]] = lambda body: body
    """A client's body in the API's own shape, with the items that only toolsim can read as text; the very same body if
    nothing has to change."""
    calls_of: Callable[[Mapping[str, Any]], Iterator[tuple[str, str]]] | None = None
    """The names and arguments of the calls in a message of a history, to find those that its client never saw
    (``hidden.py``); None: answers have items for them."""
    uses_tools: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any]], ClientRequest]
    adopt: Callable[[ClientRequest], tuple[list[Item], list[str]]]
    compose: Callable[[ClientRequest, Sequence[Message | HostedItem], Demand, bool], dict[str, Any]]
    """A backend's body, with messages in place of the client's own, the structured output to request, and whether to
    pass hosted tools on."""
    answer_form: Callable[[Mapping[str, Any]], AnswerForm]
    continued: Callable[[Mapping[str, Any], str, str], dict[str, Any]]
    """A client's body with one more turn: the model's words ("" = none) and the reply to them."""
    called: Callable[[Mapping[str, Any], str, Sequence[Called]], dict[str, Any]]
    """A client's body with one more turn: words, calls and their outputs."""
    aside: Callable[[Mapping[str, Any], str, str], dict[str, Any]]
    """A body that asks the same model something short, under a rule, outside the conversation."""
    reader: Callable[[], Reader]
    writer: Callable[[AnswerForm], Writer]
    call_id: Callable[[ToolKind, int], str]
    """The id that the writer gives a call, by its kind and number."""

    @property
    def shows_hosted(self) -> bool:
        """Whether an answer has items for the work of hosted tools."""
        return self.calls_of is None
