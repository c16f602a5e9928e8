"""Merges the events of several rounds into the events of one answer.

1. The answer is opened once, by the first round that is answered, and has that round's ID.
2. Calls are numbered consecutively across rounds. A call that an earlier round made is not emitted again, because a
   model that is asked for the second of two calls often writes both. To detect such a repetition, a later round's calls
   are withheld until they are complete.
3. If a later round's text directly follows an earlier round's text, it starts a new paragraph. Text after calls is
   emitted only if the API allows text there.
4. The token counts that the backend reports for the rounds are added up.
5. An answer with emitted calls ends with the reason ``tool_calls``, regardless of how its last round ended. However, if
   an announced call has broken off, the answer ends with ``length``. A call that breaks off before it is announced
   leaves no trace.
"""

from __future__ import annotations

from dataclasses import replace

from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Ended,
    EndReason,
    HostedStarted,
    KeepAlive,
    Opened,
    PassThrough,
    TextDelta,
    Usage,
    added,
)
from toolsim.response.segments import utf8_length

_PARAGRAPH = "\n\n"


class Merger:
    """Merges the events of several rounds. The caller passes all events to ``feed`` in order, and calls ``next_round``
    between rounds.

    ``text_follows_calls`` specifies whether a later round's text can follow calls. ``max_calls`` is the maximum number
    of calls in the answer, or 0 for no limit.
    """

    def __init__(self, *, text_follows_calls: bool, max_calls: int = 0) -> None:
        self._text_follows_calls = text_follows_calls
        self._max_calls = max_calls
        self.is_opened = False
        """Whether the answer has started."""
        self._usage: Usage | None = None
        self._is_later = False  # Whether at least one round precedes the current round.
        self._number = 0  # The number of the last call that was emitted.
        self._made: set[tuple[str | None, str, str]] = set()  # The calls of earlier rounds.
        # The calls that this round has emitted.
        self._emitted: list[tuple[str | None, str, str]] = []
        # The events of the unfinished call.
        self._call: list[CallStarted | CallDelta | CallEnded] = []
        # Whether the last text ended a line, or None if no text has followed the last call.
        self._line_end: bool | None = None
        self._begins = False  # Whether this is a later round that has emitted no text yet.
        self._is_broken = False  # Whether an announced call was cut off.
        self.calls: list[str] = []
        """The names of the emitted calls."""
        self.size = 0
        """Size of the emitted text in UTF-8, in bytes."""
        self.has_emitted = False
        """Whether this round has emitted any output."""

    @property
    def has_called(self) -> bool:
        """Whether any calls were emitted."""
        return bool(self.calls)

    def next_round(self) -> None:
        """Start the next round."""
        self._made |= set(self._emitted)
        self._emitted = []
        self._is_later = self._begins = True
        self.has_emitted = False

    def rewind(self) -> None:
        """Undo ``next_round`` if the round has emitted nothing. The next events then belong to the previous round."""
        self._begins = False

    def ended(self, reason: EndReason = "stop") -> Ended:
        """Return the event that ends the answer, given the ``reason`` for the end of the last round (rule 5)."""
        if self._is_broken:
            reason = "length"
        elif self.calls:
            reason = "tool_calls"
        elif reason == "tool_calls":
            reason = "stop"
        return Ended({0: reason}, self._usage)

    def feed(self, event: ClientEvent) -> list[ClientEvent]:
        """Return the events to emit for one event of the round."""
        match event:
            case Opened():
                if self.is_opened:
                    return []
                self.is_opened = True
                return [event]
            case TextDelta():
                return self._text(event)
            case CallStarted() | CallDelta() | CallEnded():
                return self._call_event(event)
            case Ended(reasons=reasons, usage=usage):
                self.count(usage)
                return [self.ended(reasons.get(0, "stop"))]
            case KeepAlive():
                return [event]
            case HostedStarted() | PassThrough():
                # Text after a hosted item is a separate message, which needs no paragraph break before it.
                self._line_end = None
        self.has_emitted = True
        return [event]

    def count(self, usage: Usage | None) -> None:
        """Add a round's token counts to the total, if the backend reported them."""
        self._usage = added(self._usage, usage)

    def _text(self, event: TextDelta) -> list[ClientEvent]:
        if self._is_later and self._made and not self._text_follows_calls:
            return []
        if self._begins and self._line_end is False:
            event = replace(event, text=_PARAGRAPH + event.text)
        self._begins = False
        self._line_end = event.text.endswith("\n")
        self.has_emitted = True
        self.size += utf8_length(event.text)
        return [event]

    def _call_event(self, event: CallStarted | CallDelta | CallEnded) -> list[ClientEvent]:
        if isinstance(event, CallStarted) and self._is_later:
            event = replace(event, number=max(event.number, self._number + 1))
        if isinstance(event, CallDelta):
            self.size += utf8_length(event.text)
        self._call.append(event)
        is_withheld = bool(self._made or (self._is_later and self._max_calls))
        out: list[ClientEvent] = [] if is_withheld else [event]
        if isinstance(event, CallEnded):
            is_whole = event.status == "completed"
            if not is_withheld:
                self._is_new()
                self._is_broken |= not is_whole
            elif is_whole and self._is_new():
                out = [*self._call]
            self._call = []
        if out:
            self.has_emitted = True
            self._line_end = None
        return out

    def _is_new(self) -> bool:
        """Record the current call, which is now complete, and return whether to emit it."""
        started = self._call[0]
        assert isinstance(started, CallStarted)
        arguments = "".join(event.text for event in self._call if isinstance(event, CallDelta))
        key = (started.namespace, started.name, arguments)
        if key in self._made or 0 < self._max_calls <= len(self.calls):
            return False
        self._emitted.append(key)
        self.calls.append(started.name)
        self._number = max(self._number, started.number)
        return True
