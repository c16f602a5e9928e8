"""The events inside an answer.

A reader turns backend bytes into ``BackendEvent``s; a choice turns those into ``ClientEvent``s; a writer turns these
into client bytes. Both sets are closed: match on them. ``choice`` is the index of a chat choice; the Responses API only
knows choice 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from toolsim.core.errors import ApiError

FinishReason = Literal["stop", "length", "content_filter"]
"""Why a backend ended one choice."""
EndReason = FinishReason | Literal["tool_calls"]
"""Why a choice ended for the client."""
ToolKind = Literal["function", "custom", "shell", "local_shell", "apply_patch", "tool_search"]
"""What a call is for the client; all except the first two exist only in Responses (``wire/local_tools.py``)."""
ItemStatus = Literal["completed", "incomplete"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the backend counted them. Never invented: an answer without counts has no ``Usage``."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


def added(one: Usage | None, other: Usage | None) -> Usage | None:
    """Return the sum of the tokens of two answers, as far as they are known."""
    if one is None or other is None:
        return one or other
    return Usage(**{name: getattr(one, name) + getattr(other, name) for name in Usage.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class Opened:
    """The backend started its answer. ``response_id``: only if its store can return the answer later (Responses)."""

    response_id: str | None = None
    created_at: int | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Visible text. From a reader it may still hold call blocks, from a choice it never does. Never empty."""

    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class NextMessage:
    """The text that follows is another message's than the text before it: they must not run together."""


@dataclass(frozen=True, slots=True)
class RefusalDelta:
    """A piece of a refusal, beside the text."""

    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's reasoning: its summary, or the raw text if the backend sends it."""

    text: str
    kind: Literal["summary", "text"] = "summary"
    choice: int = 0


@dataclass(frozen=True, slots=True)
class StructuredCall:
    """A whole call from a backend that does emit calls. ``arguments``: JSON text, or a custom tool's raw input.

    ``call_id`` is the backend's, for display only; a choice gives calls its own ids. ``whole`` is false if the answer
    was cut off, perhaps within the call. ``key``: that of its ``StructuredDelta``s, "" if there were none.
    """

    name: str
    arguments: str
    kind: ToolKind = "function"
    namespace: str | None = None
    choice: int = 0
    call_id: str | None = field(default=None, compare=False)
    whole: bool = True
    key: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class StructuredDelta:
    """A piece of the arguments of a function call that the backend is still emitting; its ``StructuredCall`` follows.

    ``key`` identifies the call within its choice; ``is_first``: it is the call's first piece. The pieces together are a
    prefix of its arguments. A reader emits them only on request (``streams_ahead``). ``is_named``: it came with the
    call's name and without an id, so that a piece which differs from it only in its text may begin another call.
    """

    key: str
    name: str
    text: str
    is_first: bool
    namespace: str | None = None
    choice: int = 0
    is_named: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class PassThrough:
    """A whole output item of a hosted tool (``mcp_call``, ``web_search_call``, …) that nobody announced."""

    item: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HostedStarted:
    """An item of a hosted tool is announced, as far as it is known. ``key`` identifies it until it has ended."""

    key: str
    item: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HostedProgress:
    """An event about an announced hosted item: its type, and its fields without item id, index and sequence number.

    ``key`` is "" for an event of a type that nobody knows, about something else. An item that was never announced is
    one that only the backend's own API has: no other API's client gets its events.
    """

    key: str
    type: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostedEnded:
    """An announced hosted item is complete."""

    key: str
    item: dict[str, Any]


HostedEvent = PassThrough | HostedStarted | HostedProgress | HostedEnded


@dataclass(frozen=True, slots=True)
class Finished:
    """The backend reported why one choice ended. ``length`` also stands for any other way of being cut off."""

    reason: FinishReason
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Counted:
    """The backend's token counts for the whole answer."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Closed:
    """The backend's own terminator was read: the answer is complete. Without it the stream was cut off."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer cannot be completed: the backend reported it, or we found out. Nothing follows it."""

    error: ApiError


BackendEvent = (
    Opened
    | TextDelta
    | NextMessage
    | RefusalDelta
    | ReasoningDelta
    | StructuredCall
    | StructuredDelta
    | HostedEvent
    | Finished
    | Counted
    | Closed
    | Failed
)


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call is announced, once. ``number`` is unique within the conversation; a dialect makes ids from it."""

    number: int
    name: str
    kind: ToolKind = "function"
    namespace: str | None = None
    choice: int = 0
    encrypted: tuple[str, ...] = ()
    """As in ``plan.Tool``."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """The next fragment of the announced call's arguments (or custom input). Never empty."""

    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The announced call is over; ``incomplete`` if its block broke after it had been announced.

    ``repairs``: the codes of the repairs without which it would not be a call.
    """

    status: ItemStatus = "completed"
    choice: int = 0
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """Every choice is over. ``reasons`` by choice; a choice that made calls has ``tool_calls``. Nothing follows it."""

    reasons: dict[int, EndReason] = field(default_factory=dict)
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """There is nothing to emit yet, but the stream is alive."""


FIRST_KEEPALIVE_FACTOR = 1.4
"""How much longer a client waits for its first event than for later ones, since it decides the status of the answer.

10 s become 14; with a tick at most 2 s late, no client waits longer than 16 s.
"""


ClientEvent = (
    Opened
    | TextDelta
    | RefusalDelta
    | ReasoningDelta
    | CallStarted
    | CallDelta
    | CallEnded
    | HostedEvent
    | Ended
    | Failed
    | KeepAlive
)
