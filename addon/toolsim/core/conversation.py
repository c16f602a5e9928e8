"""The API-neutral form of a conversation, and a human-readable label for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from toolsim.core.events import ToolKind
from toolsim.core.plan import AnswerForm, Tool, ToolChoice
from toolsim.core.policy import ApiName

Role = Literal["system", "developer", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Text:
    """A text part of a message or tool output."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image part of a message or tool output; ``url`` can be a data URL."""

    url: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Raw:
    """A part in the format of one API (a file, audio, or a file ID). Only a backend with that API accepts it."""

    api_name: ApiName
    part: Mapping[str, Any]


Part = Text | Image | Raw


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``name`` is the name of a participant. Only the Chat Completions API supports such names."""

    role: Role
    parts: tuple[Part, ...]
    name: str | None = None

    @property
    def text(self) -> str:
        """The text parts, joined by newlines: everything in the message that a text-only model sees."""
        return _text_of(self.parts)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model made earlier.

    ``name`` is the model's name for the tool. ``arguments`` is JSON text or, for a custom tool, the input.
    """

    call_id: str
    name: str
    arguments: str
    item_id: str | None = None
    kind: ToolKind = "function"


@dataclass(frozen=True, slots=True)
class CallOutput:
    """The output of a tool that the client ran. The model sees its text parts as a one-line record, followed by its
    images.
    """

    call_id: str
    parts: tuple[Part, ...]
    name: str | None = None

    @property
    def text(self) -> str:
        """The text of the tool output."""
        return _text_of(self.parts)


Called = tuple[Call, CallOutput]
"""A call with its output."""


@dataclass(frozen=True, slots=True)
class Thought:
    """A model's reasoning before its next text or calls, as echoed by the client."""

    text: str


@dataclass(frozen=True, slots=True)
class HostedItem:
    """A history item from a hosted tool, exactly as sent. Only a backend with the same API accepts it."""

    item: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The type of the hosted item, for the log."""
        return str(self.item.get("type"))[:40]


@dataclass(frozen=True, slots=True)
class Declaration:
    """Tools that the client declares within a conversation, in addition to the tools declared at the start.

    ``removed`` are the names of tools that are no longer available after the declaration.
    """

    tools: tuple[Tool, ...] = ()
    removed: tuple[str, ...] = ()


Item = Message | Call | CallOutput | Thought | HostedItem | Declaration


def _text_of(parts: tuple[Part, ...]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def last_item(items: Sequence[Item]) -> Item | None:
    """Return the last item that is not a declaration, or None if there is no such item."""
    return next((item for item in reversed(items) if not isinstance(item, Declaration)), None)


type Demand = Mapping[str, Any] | Literal["as sent"] | None
"""The structured output to request from a backend: a format in the flat shape of ``text.format``, "as sent" to keep the
client's own format, or None for plain text.
"""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A client's parsed request."""

    api: ApiName
    """The API of the client."""
    body: Mapping[str, Any]
    """The client's request as a JSON object. It has the shape of the Responses API if the client uses that API, and
    otherwise the shape of chat completions. Only ``wire`` reads this field.
    """
    items: tuple[Item, ...]
    form: AnswerForm = AnswerForm()
    """The form of answer that the client expects."""
    instructions: str = ""
    """Instructions outside the items (only in the Responses API)."""
    tools: tuple[Tool, ...] = ()
    """Tools that the client runs: functions, custom tools, and built-in tools such as ``shell``."""
    first_tools: tuple[Tool, ...] = ()
    """The tools as declared at the start of the conversation; empty unless a ``Declaration`` has changed them since."""
    hosted: tuple[Mapping[str, Any], ...] = ()
    """The declarations of the tools that the client does not run, exactly as sent."""
    tool_choice: ToolChoice = ToolChoice()
    parallel: bool = True
    n: int = 1
    answer_format: Mapping[str, Any] | None = None
    """The structured output that the request requires, in the flat shape of ``text.format``, or None for plain text."""
    highest_call: int = 0
    """The highest number among the call IDs in the history that toolsim could have created, or 0 if there are none."""
    stored_history: str | None = None
    """The ID of the previous response if part of the history is stored only at the backend, "" if this part is stored
    in a conversation object, or None if no part is stored only at the backend.
    """
    dropped: tuple[str, ...] = field(default_factory=tuple)
    """The kinds of items that were dropped (``item_reference``, ``reasoning``, …), for the log."""
    original_body: Mapping[str, Any] | None = None
    """The JSON object as the client sent it, if ``body`` is a translation."""
    untranslatable: tuple[str, ...] = ()
    """Names of the parts that can be sent only to a backend with the client's API, for the log."""


# -- the label of a conversation --

MAX_WORDS = 60
"""Maximum length of a label's ``words``, in characters. They have to fit in a column of the flow list."""

# The number of history items that identify a conversation, and the number of characters per item. Both numbers are
# limited so that even a history of 100,000 items is processed quickly.
_MAX_ITEMS = 2_000
_MAX_TEXT = 200
# Coding agents add context to their users' messages, enclosed in tags such as
# <environment_details>…</environment_details>.
_TAG = re.compile(r"</?([A-Za-z_][\w-]*)(?: [^<>]{0,200})?>")
_MAX_SEARCHED = 8_000


@dataclass(frozen=True, slots=True)
class ConversationLabel:
    """The subject of a request and its position in the conversation. ``words`` is the user's latest message, shortened.
    ``turn`` and ``step`` count from 1.

    A turn starts with the user's message; each answer that follows tool outputs is another step of the turn. Two
    requests belong to one conversation if the second starts with all items of the first. A history is therefore
    identified by a chain of digests (``keys``), with one digest per item. Instructions are excluded, because clients
    include the time of day in them. Only the beginning of a long text is hashed, because clients append to such texts.
    Identical conversations count as one until they diverge.
    """

    words: str = ""
    turn: int = 1
    step: int = 1
    keys: tuple[bytes, ...] = ()

    def position(self, conversation: int) -> str:
        """Return the position of the request in the given conversation, such as "#3 turn 2 step 4"."""
        return f"#{conversation} turn {self.turn}" + (f" step {self.step}" if self.step > 1 else "")


def label_of(items: Sequence[Item]) -> ConversationLabel:
    """Return the label of a request with these items."""
    turn, step, words = 0, 1, ""
    before: Item | None = None
    for item in items:
        if isinstance(item, Message) and item.role == "user":
            if not (isinstance(before, Message) and before.role == "user"):
                turn, step = turn + 1, 1
            words = item.text or words
        elif isinstance(item, CallOutput) and not isinstance(before, CallOutput):
            step += 1
        before = item if not (isinstance(item, Message) and item.role in ("system", "developer")) else before
    return ConversationLabel(_shorten(words), max(turn, 1), step, tuple(_keys(items)))


def _keys(items: Sequence[Item]) -> Iterator[bytes]:
    key = b""
    for item in items[:_MAX_ITEMS]:
        match item:
            case Message(role="user" | "assistant"):
                text = f"{item.role} {item.text[:_MAX_TEXT].strip()}"
            case Call() | CallOutput():
                text = f"{type(item).__name__} {item.call_id}"
            case _:
                continue
        key = blake2b(key + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        yield key


def _shorten(text: str) -> str:
    text = text[:_MAX_SEARCHED]
    bare = without_context(text)
    if not bare.strip():
        bare = _TAG.sub(" ", text)
    line = " ".join(bare.split())
    return line if len(line) <= MAX_WORDS else f"{line[: MAX_WORDS - 1]}…"


def without_context(text: str) -> str:
    """Return ``text`` without the context that coding agents enclose in tags in their users' messages."""
    if "<" not in text:
        return text
    parts, done = [], 0
    last = {tag[1]: tag.start() for tag in _TAG.finditer(text) if tag[0].startswith("</")}
    for tag in _TAG.finditer(text):
        if tag.start() >= done and not tag[0].startswith("</") and last.get(tag[1], -1) > tag.start():
            parts += [text[done : tag.start()], " "]
            done = text.index(f"</{tag[1]}", tag.end())
            done = text.index(">", done) + 1
    return "".join([*parts, text[done:]])
