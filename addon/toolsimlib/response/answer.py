"""A whole answer: the backend's events in, the client's events out, and one end for all choices.

Each choice has a turn of its own. What they share is here: the numbers of the calls, which count over all choices; the
judge with its time budget; the usage, which comes once; and the end. The answer ends exactly once, by the first of

1. the backend's own terminator (``Closed``): every choice ends, and what it held back is decided;
2. every choice that was asked for having ended early: the backend may be stopped (``cut``);
3. a failure, told by the backend, found in its bytes, or a broken strict guarantee.

Nothing is emitted after the end.
"""

from __future__ import annotations

from itertools import count

from toolsimlib.errors import ApiError
from toolsimlib.events import (
    BackendEvent,
    ClientEvent,
    Closed,
    Counted,
    Ended,
    Failed,
    Finished,
    KeepAlive,
    Opened,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    TextDelta,
    Usage,
)
from toolsimlib.plan import Plan
from toolsimlib.report import Report
from toolsimlib.response.judge import Judge
from toolsimlib.response.turn import Turn


class Answer:
    """All choices of one answer. ``feed`` it the backend's events in order; it never raises."""

    def __init__(self, plan: Plan, report: Report) -> None:
        self._plan = plan
        self._report = report
        self._judge = Judge(plan, report)
        self._numbers = count(plan.first_number)
        self._turns: dict[int, Turn] = {}
        self._usage: Usage | None = None
        self.done = False

    @property
    def buffering(self) -> bool:
        """Whether the client hears nothing because text is being held back."""
        return not self.done and any(turn.buffering for turn in self._turns.values())

    @property
    def cut(self) -> bool:
        """Whether the answer ended before the backend did, so that the backend should be stopped."""
        return self.done and any(turn.cut for turn in self._turns.values())

    def feed(self, event: BackendEvent) -> list[ClientEvent]:
        """Take one event of the backend. After the end everything is ignored."""
        if self.done:
            return []
        match event:
            case TextDelta():
                return self._checked(self._turn(event.choice).text(event.text))
            case ReasoningDelta() | RefusalDelta():
                return self._checked(self._turn(event.choice).other(event))
            case PassThrough():
                return self._checked(self._turn(0).other(event))
            case StructuredCall():
                return self._checked(self._turn(event.choice).structured(event))
            case Opened():
                return [event]
            case Finished():
                return self._checked(self._turn(event.choice).finish(event.reason))
            case Counted():
                self._usage = event.usage
                return []
            case Failed():
                return self.fail(event.error)
            case Closed():
                return self._close()

    def end_of_input(self) -> list[ClientEvent]:
        """Take the end of the backend's bytes. Without the backend's terminator before it, the answer has failed."""
        return self.fail(
            ApiError("The backend's stream ended before its answer was complete.", code="backend_truncated", status=502)
        )

    def fail(self, error: ApiError) -> list[ClientEvent]:
        """End the answer as failed. Text that was held back comes first, since it would be lost otherwise."""
        if self.done:
            return []
        self.done = True
        self._report.error = error.code or error.type
        self._report.truncated = error.code == "backend_truncated"
        tail = [event for turn in self._turns.values() for event in turn.salvage()]
        return [*tail, Failed(error)]

    def keep_alive(self) -> list[ClientEvent]:
        """Emit a keep-alive, if the client hears nothing because text is being held back."""
        return [KeepAlive()] if self.buffering else []

    def _turn(self, choice: int) -> Turn:
        turn = self._turns.get(choice)
        if turn is None:
            turn = self._turns[choice] = Turn(self._plan, self._report, self._judge, self._numbers, choice)
        return turn

    def _checked(self, events: list[ClientEvent]) -> list[ClientEvent]:
        """Check whether a turn has failed, or whether all have ended early."""
        if events and isinstance(events[-1], Failed):
            self.done = True
            self._report.error = events[-1].error.code
        elif len(self._turns) >= self._plan.choices and all(turn.cut for turn in self._turns.values()):
            return [*events, self._end()]
        return events

    def _close(self) -> list[ClientEvent]:
        events: list[ClientEvent] = []
        for turn in self._turns.values():
            events += turn.finish("stop")
            if events and isinstance(events[-1], Failed):
                return self._checked(events)
        return [*events, self._end()]

    def _end(self) -> Ended:
        self.done = True
        reasons = {choice: turn.reason or "stop" for choice, turn in self._turns.items()}
        self._report.finish = reasons.get(0, "stop")
        self._report.truncated = "length" in reasons.values()
        return Ended(reasons, self._usage)
