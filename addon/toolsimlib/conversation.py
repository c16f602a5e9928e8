"""A conversation in one form for both dialects: a request between reading and writing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from toolsimlib.events import ToolKind
from toolsimlib.plan import AnswerForm, ApiName, Tool, ToolChoice

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
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


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
    """Tools that the client declares in the middle of a conversation, beside those at its beginning."""

    tools: tuple[Tool, ...]


Item = Message | Call | CallOutput | Thought | HostedItem | Declaration


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
