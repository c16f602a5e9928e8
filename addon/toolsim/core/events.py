"""The events of an answer.

A reader turns the backend's bytes into ``BackendEvent``s, toolsim turns these into ``ClientEvent``s for each choice,
and a writer turns client events into bytes for the client. Both unions are closed, so a ``match`` can cover all types.
``choice`` is the index of a choice; only Chat Completions has choices other than 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from toolsim.core.errors import ApiError

FinishReason = Literal["stop", "length", "content_filter"]
"""The reason why a backend ended a choice."""
EndReason = FinishReason | Literal["tool_calls"]
"""The reason why a choice ended, as the client sees it."""
ToolKind = Literal["function", "custom", "shell", "local_shell", "apply_patch", "tool_search"]
"""The kind of call that the client receives. All kinds except ``function`` and ``custom`` exist only in the Responses
API (``wire/local_tools.py``).
"""
ItemStatus = Literal["completed", "incomplete"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer.

    ``estimated`` is true if some counts are estimates, because the backend did not report all of them.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False


def added(one: Usage | None, other: Usage | None) -> Usage | None:
    """Return the sum of two answers' token counts. An answer without known counts adds nothing."""
    if one is None or other is None:
        return one or other
    return Usage(
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        total_tokens=one.total_tokens + other.total_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        reasoning_tokens=one.reasoning_tokens + other.reasoning_tokens,
        estimated=one.estimated or other.estimated,
    )


@dataclass(frozen=True, slots=True)
class Opened:
    """The backend has started its answer. ``response_id`` is set only if the backend stores the answer, which only the
    Responses API supports.
    """

    response_id: str | None = None
    created_at: int | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Visible text, never empty. As a backend event, it can contain call blocks; as a client event, it cannot."""

    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class NextMessage:
    """A new message begins. Its text must not be joined to the preceding text."""


@dataclass(frozen=True, slots=True)
class RefusalDelta:
    """A fragment of a refusal, which is not part of the answer's text."""

    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A fragment of the model's reasoning, either of a summary or of the raw reasoning text, as ``kind`` indicates."""

    text: str
    kind: Literal["summary", "text"] = "summary"
    choice: int = 0


@dataclass(frozen=True, slots=True)
class StructuredCall:
    """A structured call from a backend."""

    name: str
    arguments: str
    """JSON text or, for a custom tool, the raw input."""
    kind: ToolKind = "function"
    namespace: str | None = None
    choice: int = 0
    call_id: str | None = field(default=None, compare=False)
    """The backend's ID, for display only. The client receives an ID from toolsim."""
    whole: bool = True
    """False if the answer was truncated, possibly within the call."""
    key: str = field(default="", compare=False)
    """The key of the call's ``StructuredDelta`` events, or "" if there were none."""


@dataclass(frozen=True, slots=True)
class StructuredCallStarted:
    """The backend has started to emit a call. A ``StructuredCall`` completes it, possibly after other events."""

    choice: int = 0


@dataclass(frozen=True, slots=True)
class StructuredDelta:
    """A fragment of the arguments of an unfinished function call. The complete ``StructuredCall`` follows.

    Together, the fragments form a prefix of the call's arguments. A reader emits these events only on request
    (``streams_ahead``).
    """

    key: str
    """Identifies the call within its choice."""
    name: str
    text: str
    is_first: bool
    """Whether this is the call's first fragment."""
    namespace: str | None = None
    choice: int = 0
    is_named: bool = field(default=False, compare=False)
    """Whether the backend's fragment has the call's name but no ID, so that another fragment with the same name might
    begin another call.
    """


@dataclass(frozen=True, slots=True)
class PassThrough:
    """A complete output item of a hosted tool (``mcp_call``, ``web_search_call``, …), without an earlier
    ``HostedStarted`` event.
    """

    item: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HostedStarted:
    """The announcement of a hosted tool's item, with the fields known so far.

    ``key`` identifies the item up to its ``HostedEnded`` event.
    """

    key: str
    item: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HostedProgress:
    """An event about an announced hosted item. ``fields`` excludes the item ID, the index and the sequence number.

    ``key`` is "" for an event of an unknown type that does not belong to an item. An event about an item that was never
    announced is defined only in the backend's own API, so clients of other APIs do not receive it.
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
    """The backend reported why a choice ended. ``length`` also covers all other kinds of truncation."""

    reason: FinishReason
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Counted:
    """The backend's token counts for the entire answer."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Closed:
    """The backend has sent its terminator, such as ``[DONE]``, so the answer is complete. Without a terminator, the
    answer was truncated.
    """


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer cannot be completed, as reported by the backend or detected by toolsim. No event follows."""

    error: ApiError


BackendEvent = (
    Opened
    | TextDelta
    | NextMessage
    | RefusalDelta
    | ReasoningDelta
    | StructuredCall
    | StructuredCallStarted
    | StructuredDelta
    | HostedEvent
    | Finished
    | Counted
    | Closed
    | Failed
)


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The announcement of a call, emitted once. ``number`` is unique in the conversation, and the call's IDs are
    derived from it.
    """

    number: int
    name: str
    kind: ToolKind = "function"
    namespace: str | None = None
    choice: int = 0
    encrypted: tuple[str, ...] = ()
    """Parameters whose values the client treats as encrypted (see ``plan.Tool``)."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """The next fragment of the announced call's arguments (or custom input), never empty."""

    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The end of the announced call. ``status`` is ``incomplete`` if the call broke off after the announcement.

    ``repairs`` are the codes of the repairs that made the block a valid call.
    """

    status: ItemStatus = "completed"
    choice: int = 0
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of all choices. ``reasons`` maps each choice to its end reason, which is ``tool_calls`` if the choice has
    calls. No event follows.
    """

    reasons: dict[int, EndReason] = field(default_factory=dict)
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """No content can be emitted yet, but the stream is alive."""


FIRST_KEEPALIVE_FACTOR = 1.4
"""The delay before the first keep-alive, as a multiple of the keep-alive interval.

The first keep-alive is sent later than the others, because the HTTP status can no longer change once a keep-alive has
been sent. With an interval of 10 s, the delay is 14 s, or up to 16 s because the timer can be late.
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
