"""The three APIs, each as one object that speaks it.

Everything that depends on the API is found here, so that no other module compares names::

    path, body ─▶ uses_tools? ─▶ read ─▶ ClientRequest          what the client sent
    ClientRequest ─▶ adopt ─▶ items ─▶ … ─▶ compose ─▶ body     what a backend of this API gets
    bytes ─▶ reader ─▶ BackendEvents      ClientEvents ─▶ writer ─▶ bytes

A request is read by the client's API; ``adopt`` and ``compose`` belong to the backend's. Another API is one more object
in ``APIS`` and a name in ``plan.ApiName``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Literal, Protocol

from toolsimlib.conversation import Called, ClientRequest, Demand, HostedItem, Item, Message
from toolsimlib.errors import ApiError
from toolsimlib.events import BackendEvent, ClientEvent, StructuredDelta, ToolKind
from toolsimlib.plan import AnswerForm, ApiName, OutputMode, Policy
from toolsimlib.wire.chat import hidden as chat_hidden
from toolsimlib.wire.chat import request as chat
from toolsimlib.wire.chat.reader import ChatReader
from toolsimlib.wire.chat.writer import ChatWriter
from toolsimlib.wire.errors import error_body
from toolsimlib.wire.ids import chat_call_id, messages_call_id, responses_call_id
from toolsimlib.wire.json_fields import mappings, string
from toolsimlib.wire.messages import request as messages
from toolsimlib.wire.messages.errors import error_answer
from toolsimlib.wire.messages.models import model_list
from toolsimlib.wire.messages.reader import MessagesReader
from toolsimlib.wire.messages.writer import MessagesWriter
from toolsimlib.wire.responses import request as responses
from toolsimlib.wire.responses.compaction import CompactionWriter, with_summaries
from toolsimlib.wire.responses.reader import ResponsesReader
from toolsimlib.wire.responses.writer import ResponsesWriter
from toolsimlib.wire.sse import ServerSentEvent


class Reader(Protocol):
    """Reads one answer of a backend. Never raises, whatever the backend sends.

    ``unknown``: the types of events that were ignored as unknown, for the log. ``streams_ahead``: whether to emit
    pieces of a call before it is complete; false unless it is set.
    """

    unknown: dict[str, None]
    streams_ahead: bool

    def event(self, sse: ServerSentEvent) -> list[BackendEvent]:
        """Return the events of one stream event."""

    def follow(self, delta: StructuredDelta, texts: Sequence[str]) -> None:
        """Add the pieces that followed ``delta`` and differ from it only in their texts."""

    def whole(self, body: Mapping[str, Any]) -> list[BackendEvent]:
        """Return the events of a whole answer."""

    def end(self) -> list[BackendEvent]:
        """Return the events at the end of the stream."""


class Writer(Protocol):
    """Writes one answer for a client: frames as it goes, or one ``body`` if the form is not a stream."""

    body: dict[str, Any] | None
    error: ApiError | None

    def write(self, event: ClientEvent) -> list[bytes]:
        """Return the frames of one event (none when the answer is not streamed)."""

    def whole(self) -> bytes:
        """Return the body, once there is one, as JSON."""


class Compose(Protocol):
    """Writes a backend's body: ``messages`` in place of the client's own."""

    def __call__(
        self,
        request: ClientRequest,
        messages: Sequence[Message | HostedItem],
        *,
        answer_format: Demand,
        keep_hosted: bool,
    ) -> dict[str, Any]:
        """``answer_format``: the structured output to request. ``keep_hosted``: pass hosted tools on."""


@dataclass(frozen=True, slots=True)
class HiddenCalls:
    """What an API needs for calls hidden from the client."""

    key: Callable[[Mapping[str, Any], str], bytes]
    """The key of a request's conversation."""
    answer_key: Callable[[bytes, str, Iterable[tuple[str, str]]], bytes]
    """The key of the answer to it."""
    restored: Callable[[Mapping[str, Any], str, Callable[[bytes], Sequence[Called]]], dict[str, Any]]
    """A request with the calls that are found for the answers in it."""


@dataclass(frozen=True, slots=True)
class OwnShape:
    """What an API spells in its own way besides requests and answers."""

    error_answer: Callable[[int, bytes], bytes]
    """The body of an error, by its status and its body in OpenAI's shape."""
    model_list: Callable[[bytes], bytes]
    """The body of a list of models, by that in OpenAI's shape."""
    key_header: str
    """The header in which clients send their key."""
    version_header: str
    """The header by which a client of this API is known where the path is none of its own."""
    other_headers: tuple[str, ...]
    """More headers that mean nothing to a backend of another API."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API: what distinguishes it, and how its requests and answers are read and written."""

    name: ApiName
    ending: str
    """How a backend's path for its requests ends."""
    known_by: str
    """What the paths of its requests end with, to be told from those of other servers."""
    backend: ApiName
    """The API of a backend of which the operator has not said what it speaks."""
    shape: OwnShape | None
    """How its errors, its list of models and its headers look; None: as in OpenAI's."""
    manifest_role: Literal["developer", "system"]
    """The role for instructions from outside the conversation."""
    text_follows_calls: bool
    """Whether an answer has a place for text after its calls: an output list does, a chat message does not."""
    output_mode: Callable[[Policy], OutputMode]
    """The operator's form of its calls."""
    takes_structural_tags: bool
    """Whether the answer format can be a structural tag (of vLLM and SGLang)."""
    is_storable: bool
    """Whether later requests can refer to its answers."""
    spelt_out: Callable[[dict[str, Any]], dict[str, Any]]
    """A client's body, with the items that only toolsim can read as text; the very same body if it has none."""
    shows_hosted: bool
    """Whether an answer has items for the work of hosted tools."""
    hidden: HiddenCalls | None
    """If it does not, how that work is restored in a history."""
    uses_tools: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any]], ClientRequest]
    adopt: Callable[[ClientRequest], tuple[list[Item], list[str]]]
    compose: Compose
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


MESSAGES_EVENTS = frozenset(
    {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"}
)
"""The types of events by which a Messages stream is known."""

CHAT = Api(
    name="chat",
    ending="/chat/completions",
    known_by="/chat/completions",
    backend="chat",
    shape=None,
    # The role that every chat template knows; many servers do not know developer.
    manifest_role="system",
    text_follows_calls=False,
    output_mode=attrgetter("output_mode"),
    takes_structural_tags=True,
    is_storable=False,
    spelt_out=lambda body: body,
    shows_hosted=False,
    hidden=HiddenCalls(chat_hidden.whole_key, chat_hidden.answer_key, chat_hidden.with_hidden),
    uses_tools=chat.uses_tools,
    read=chat.read_request,
    adopt=chat.adopt,
    compose=chat.compose,
    answer_form=chat.answer_form,
    continued=chat.continued,
    called=chat.called,
    aside=chat.aside,
    reader=ChatReader,
    writer=ChatWriter,
    call_id=chat_call_id,
)
RESPONSES = Api(
    name="responses",
    ending="/responses",
    known_by="/responses",
    backend="responses",
    shape=None,
    manifest_role="developer",
    text_follows_calls=True,
    output_mode=attrgetter("responses_output_mode"),
    takes_structural_tags=False,
    is_storable=True,
    spelt_out=with_summaries,
    shows_hosted=True,
    hidden=None,
    uses_tools=responses.uses_tools,
    read=responses.read_request,
    adopt=responses.adopt,
    compose=responses.compose,
    answer_form=responses.answer_form,
    continued=responses.continued,
    called=responses.called,
    aside=responses.aside,
    reader=ResponsesReader,
    writer=lambda form: CompactionWriter(form) if form.compacts else ResponsesWriter(form),
    call_id=responses_call_id,
)
MESSAGES = Api(
    name="messages",
    ending="/messages",
    # Many a website has messages too.
    known_by="/v1/messages",
    # Nearly every server speaks chat completions, hardly any this one.
    backend="chat",
    shape=OwnShape(
        error_answer,
        model_list,
        key_header="x-api-key",
        version_header="anthropic-version",
        other_headers=("anthropic-beta", "anthropic-dangerous-direct-browser-access"),
    ),
    manifest_role="system",
    # It has one, but Claude's own answers never put text there.
    text_follows_calls=False,
    output_mode=lambda policy: "openai-json",
    takes_structural_tags=False,
    is_storable=False,
    spelt_out=lambda body: body,
    shows_hosted=False,
    hidden=HiddenCalls(
        chat_hidden.whole_key, chat_hidden.answer_key, partial(chat_hidden.with_hidden, called=messages.called)
    ),
    uses_tools=messages.uses_tools,
    read=messages.read_request,
    adopt=messages.adopt,
    compose=messages.compose,
    answer_form=messages.answer_form,
    continued=chat.continued,
    called=messages.called,
    aside=messages.aside,
    reader=MessagesReader,
    writer=MessagesWriter,
    call_id=messages_call_id,
)
APIS: Mapping[ApiName, Api] = {api.name: api for api in (RESPONSES, CHAT, MESSAGES)}


def written_error(api: Api, error: ApiError) -> bytes:
    """Return the body of an error answer in an API's shape."""
    body = error_body(error)
    return body if api.shape is None else api.shape.error_answer(error.status, body)


@lru_cache(maxsize=64)
def api_of_path(path: str) -> Api | None:
    """Return the API whose requests are sent to ``path`` (query included), None if there is none.

    Cached: six callers look up the path of each request.
    """
    plain = path.partition("?")[0].rstrip("/")
    return next((api for api in APIS.values() if plain.endswith(api.known_by)), None)


def api_of_headers(headers: Mapping[str, str]) -> Api | None:
    """Return the API that a request names in its headers (by their lower-case names), None if in none of them."""
    return next((api for api in APIS.values() if api.shape and api.shape.version_header in headers), None)


def api_of_request(body: Mapping[str, Any]) -> Api:
    """Return the API in which a request's ``body`` is written; one that could be either counts as Responses."""
    if "messages" not in body:
        return RESPONSES
    return MESSAGES if "system" in body or _has_blocks(body) else CHAT


def _has_blocks(body: Mapping[str, Any]) -> bool:
    """Return whether a body with ``messages`` has something in them, or in its tools, that only one API has."""
    if any("input_schema" in tool for tool in mappings(body.get("tools"))):
        return True
    blocks = (block for message in mappings(body["messages"]) for block in mappings(message.get("content")))
    return any(block.get("type") in ("tool_use", "tool_result", "image") for block in blocks)


def api_of_answer(body: Mapping[str, Any]) -> Api | None:
    """Return the API in which a whole answer is written, None if it is not an answer, or a bare error."""
    if "choices" in body:
        return CHAT
    if body.get("type") == "message" and "content" in body:
        return MESSAGES
    return RESPONSES if body.get("object") == "response" or "output" in body else None


def api_of_event(event: str, data: Mapping[str, Any]) -> Api | None:
    """Return the API whose stream holds this event (``event``: its name, "" for none), None if it could be either."""
    if string(data.get("type") or event).startswith("response."):
        return RESPONSES
    if string(data.get("type") or event) in MESSAGES_EVENTS:
        return MESSAGES
    return CHAT if "choices" in data or data.get("error") else None
