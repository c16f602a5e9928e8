"""A conversation in one form for all APIs: a request between reading and writing; and what it is about, for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from toolsim.core.events import ToolKind
from toolsim.core.plan import AnswerForm, ApiName, Tool, ToolChoice

Role = Literal["system", "developer", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Text:
    """A text part."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image part; ``url`` may be a data URL."""

    url: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Raw:
    """A part in one dialect's own shape (a file, audio, a file id); only for a backend of that dialect."""

    dialect: ApiName
    part: Mapping[str, Any]


Part = Text | Image | Raw


@dataclass(frozen=True, slots=True)
class Message:
    """One message; ``name`` is chat's participant name."""

    role: Role
    parts: tuple[Part, ...]
    name: str | None = None

    @property
    def text(self) -> str:
        """Its text parts, joined by line ends: all that a text-only model sees of it."""
        return _text_of(self.parts)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model made earlier.

    ``name`` is the model's name; ``arguments`` the JSON text, or a custom tool's input.
    """

    call_id: str
    name: str
    arguments: str
    item_id: str | None = None
    kind: ToolKind = "function"


@dataclass(frozen=True, slots=True)
class CallOutput:
    """The output of the client's tool: text parts are in its record, images follow it."""

    call_id: str
    parts: tuple[Part, ...]
    name: str | None = None

    @property
    def text(self) -> str:
        """What it says in words."""
        return _text_of(self.parts)


Called = tuple[Call, CallOutput]
"""A call with its output."""


@dataclass(frozen=True, slots=True)
class Thought:
    """A model's reasoning before its next text or calls, as the client echoes it."""

    text: str


@dataclass(frozen=True, slots=True)
class HostedItem:
    """A history item of a tool that the backend runs, as sent: only a backend of its API accepts it."""

    item: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """Its type, for the log."""
        return str(self.item.get("type"))[:40]


@dataclass(frozen=True, slots=True)
class Declaration:
    """Tools that the client declares in the middle of a conversation, in addition to those at its beginning.

    ``removed``: the names of those that it withdraws there.
    """

    tools: tuple[Tool, ...] = ()
    removed: tuple[str, ...] = ()


Item = Message | Call | CallOutput | Thought | HostedItem | Declaration


def _text_of(parts: tuple[Part, ...]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def said_last(items: Sequence[Item]) -> Item | None:
    """Return the last item that is not a declaration, None if there is none."""
    return next((item for item in reversed(items) if not isinstance(item, Declaration)), None)


type Demand = Mapping[str, Any] | Literal["as sent"] | None
"""The structured output to request of a backend: in the flat shape of ``text.format``, the client's own, or none."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A client's request, read once."""

    api: ApiName
    """The client's."""
    body: Mapping[str, Any]
    """The JSON object in the shape of the Responses API or, for a client of any other, of chat completions; only
    ``wire`` opens it."""
    items: tuple[Item, ...]
    form: AnswerForm = AnswerForm()
    """How the client wants its answer."""
    instructions: str = ""
    """Those beside the items (Responses)."""
    tools: tuple[Tool, ...] = ()
    """The client's own: functions, custom tools, and kinds that it runs itself."""
    first_tools: tuple[Tool, ...] = ()
    """Those that it declared before the conversation, as they were, if a ``Declaration`` has changed them since."""
    hosted: tuple[Mapping[str, Any], ...] = ()
    """The declarations of all other kinds, as sent."""
    tool_choice: ToolChoice = ToolChoice()
    parallel: bool = True
    n: int = 1
    answer_format: Mapping[str, Any] | None = None
    """The structured output that it demands, in the flat shape of ``text.format``, None for plain text."""
    highest_call: int = 0
    """The highest number among the ids in its history that we may have made, 0 if there is none."""
    stored_history: str | None = None
    """The part of the history that only the backend holds: the previous response's id, or "" if a conversation holds
    it; None if the request contains it all."""
    notes: tuple[str, ...] = field(default_factory=tuple)
    """What was dropped (``item_reference``, ``reasoning``, …), for the log."""
    sent: Mapping[str, Any] | None = None
    """The JSON object as the client sent it, if it has been put into that shape."""
    lost: tuple[str, ...] = ()
    """What of it only a backend of the client's API gets, for the log."""


# -- what it is about --

MAX_WORDS = 60
"""Characters of the user's message: what a column of a list shows."""

# Enough to recognise a conversation, and little enough for a history of 100,000 items.
_MAX_ITEMS = 2_000
_MAX_TEXT = 200
# Programs add context to what their users write, in tags: <environment_details>…</environment_details>.
_TAG = re.compile(r"</?([A-Za-z_][\w-]*)(?: [^<>]{0,200})?>")
_MAX_SEARCHED = 8_000


@dataclass(frozen=True, slots=True)
class Topic:
    """What a request is about: ``words``, the user's latest message, shortened; ``turn`` and ``step``, from 1.

    A turn starts with the user's message; each answer to calls is one more step of it. Two requests belong to one
    conversation if the second starts with everything that the first one held. So a history is identified by a chain of
    digests (``keys``), one per item. Instructions are left out, since clients put the time of day in them; long texts
    count by their beginnings, since clients append to them. Identical conversations count as one until they diverge.
    """

    words: str = ""
    turn: int = 1
    step: int = 1
    keys: tuple[bytes, ...] = ()

    def where(self, conversation: int) -> str:
        """Return the position of the request in that conversation, such as "#3 turn 2 step 4"."""
        return f"#{conversation} turn {self.turn}" + (f" step {self.step}" if self.step > 1 else "")


def topic_of(items: Sequence[Item]) -> Topic:
    """Return what a request with these items is about."""
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
    return Topic(_shorten(words), max(turn, 1), step, tuple(_keys(items)))


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
    bare = _without_context(text)
    if not bare.strip():
        bare = _TAG.sub(" ", text)
    line = " ".join(bare.split())
    return line if len(line) <= MAX_WORDS else f"{line[: MAX_WORDS - 1]}…"


def _without_context(text: str) -> str:
    """Return a text without its tagged parts."""
    parts, done = [], 0
    last = {tag[1]: tag.start() for tag in _TAG.finditer(text) if tag[0].startswith("</")}
    for tag in _TAG.finditer(text):
        if tag.start() >= done and not tag[0].startswith("</") and last.get(tag[1], -1) > tag.start():
            parts += [text[done : tag.start()], " "]
            done = text.index(f"</{tag[1]}", tag.end())
            done = text.index(">", done) + 1
    return "".join([*parts, text[done:]])
