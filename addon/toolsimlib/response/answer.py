"""A whole answer: the backend's events in, the client's events out, and one end for all choices.

Each choice has its own turn. What they share is here: the numbers of the calls, which run across all choices; the judge
with its time budget; the usage, which comes once; and the end. The answer ends exactly once, by the first of

1. the backend's own terminator (``Closed``): every choice ends, and what it held back is resolved;
2. the early end of every choice that was asked for: the backend may be stopped (``cut``);
3. a failure: reported by the backend, found in its bytes, or a broken strict guarantee.

If other text after a call would have ended the turn, a backend that fails after one has failed too late: the answer
ends with its calls, as if it had been ended early, and the report says why. Nothing is emitted after the end.
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
    EndReason,
    Failed,
    Finished,
    HostedEnded,
    HostedProgress,
    HostedStarted,
    KeepAlive,
    NextMessage,
    Opened,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    StructuredDelta,
    TextDelta,
    Usage,
)
from toolsimlib.plan import Plan
from toolsimlib.report import Report, entry, loggable_name
from toolsimlib.response.checker import BUDGET_SECONDS
from toolsimlib.response.client_items import ClientItems
from toolsimlib.response.judge import Judge
from toolsimlib.response.parser import reasoned_calls_for
from toolsimlib.response.reasoned_calls import IN_REASONING
from toolsimlib.response.retry import EMPTY_ANSWER, NO_CALL, Retry
from toolsimlib.response.turn import Turn


class Answer:
    """All choices of one answer. ``feed`` it the backend's events in order; it never raises.

    ``again``: why the model is to be asked once more; then the last event is a failure that says so.
    """

    def __init__(self, plan: Plan, report: Report, *, seconds: float = BUDGET_SECONDS) -> None:
        self._plan = plan
        self._report = report
        self._judge = Judge(plan, report, seconds=seconds)
        self._client_items = ClientItems(self._judge.toolbox)
        self._numbers = count(plan.first_number)
        self._turns: dict[int, Turn] = {}
        # Built while the model is still thinking, not when its first text arrives.
        self._first_turn = Turn(plan, report, self._judge, self._numbers)
        self._reasoned = reasoned_calls_for(plan)  # None once reasoning is only reasoning.
        self._usage: Usage | None = None
        self._is_empty = True
        self.retry: Retry | None = None
        self.done = False

    @property
    def buffering(self) -> bool:
        """Whether the client gets nothing because text is being held back."""
        holds_back = self._reasoned is not None and self._reasoned.holds_back
        return not self.done and (holds_back or any(turn.buffering for turn in self._turns.values()))

    @property
    def cut(self) -> bool:
        """Whether the answer ended before the backend did, so that the backend should be stopped."""
        return self.done and any(turn.cut for turn in self._turns.values())

    def feed(self, event: BackendEvent) -> list[ClientEvent]:
        """Take one event of the backend. After the end everything is ignored."""
        if self._reasoned is None:
            return self._feed(event)
        reasoned, emitted = self._reasoned, list[ClientEvent]()
        events = reasoned.take(event)
        if reasoned.is_over:
            self._reasoned = None
            self._report.warnings += [IN_REASONING] * reasoned.found
        for each in events:
            emitted += self._feed(each)
        return emitted

    def _feed(self, event: BackendEvent) -> list[ClientEvent]:
        if self.done:
            return []
        match event:
            case TextDelta():
                turn = self._turn(event.choice)
                return self._checked(turn, turn.text(event.text))
            case NextMessage():
                turn = self._turn(0)
                return self._checked(turn, turn.next_message())
            case ReasoningDelta() | RefusalDelta():
                turn = self._turn(event.choice)
                return self._checked(turn, turn.other(event))
            case PassThrough() | HostedStarted() | HostedProgress() | HostedEnded():
                taken = self._client_items.take(event)
                if taken is None:
                    return []
                turn = self._turn(0)
                if isinstance(taken, StructuredCall):
                    return self._checked(turn, turn.structured(taken))
                return self._checked(turn, turn.other(taken))
            case StructuredCall():
                turn = self._turn(event.choice)
                return self._checked(turn, turn.structured(event))
            case StructuredDelta():
                turn = self._turn(event.choice)
                return self._checked(turn, turn.arriving(event))
            case Opened():
                return [event]
            case Finished():
                turn = self._turn(event.choice)
                return self._checked(turn, turn.finish(event.reason))
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
        if self._reasoned is not None:
            return self.feed(Failed(error))
        if self._plan.asks and (end := self._ask([])):
            return end
        tail = [event for turn in self._turns.values() for event in turn.salvage()]
        code = error.code or error.type
        if self._plan.stops_after_tools and self._turns and all(turn.called for turn in self._turns.values()):
            self._report.warnings.append(entry("FAILED_AFTER_CALLS", code))
            self._report.tool_cutoff = self._report.tool_cutoff or "backend failed after tools"
            return [*tail, self._end(dict.fromkeys(self._turns, "tool_calls"))]
        self.done = True
        self._report.error = code
        self._report.truncated |= error.code == "backend_truncated"
        return [*tail, Failed(error)]

    def keep_alive(self) -> list[ClientEvent]:
        """Emit a keep-alive, if the client gets nothing because text is being held back."""
        return [KeepAlive()] if self.buffering else []

    def _turn(self, choice: int) -> Turn:
        turn = self._turns.get(choice)
        if turn is None:
            is_first = choice == 0
            turn = self._first_turn if is_first else Turn(self._plan, self._report, self._judge, self._numbers, choice)
            self._turns[choice] = turn
        return turn

    def _checked(self, turn: Turn, events: list[ClientEvent]) -> list[ClientEvent]:
        """Check whether a turn has failed, or whether all have ended early."""
        if events:
            self._is_empty = False
        if not turn.over:
            return events
        if self._plan.asks and (end := self._ask(events, early=True)):
            return end
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
            self._is_empty = self._is_empty and not events
            if events and isinstance(events[-1], Failed):
                return self._checked(turn, events)
        if not self._plan.asks:
            return [*events, self._end()]
        turn = self._turn(0)
        if turn.reason is None:
            events += turn.finish("stop")
        if turn.reason in ("stop", "length") and turn.faults.fault is None and not turn.broken:
            turn.faults.missing(self._plan, turn.reason)
        return self._ask(events) or [*events, self._end()]

    def _ask(self, events: list[ClientEvent], *, early: bool = False) -> list[ClientEvent]:
        """End the answer behind ``events`` if it is at fault, and return what ends it; [] if it is not.

        The runner decides what the client gets instead. ``early``: only if the backend is still sending; a fault at the
        end of its text waits for the usage.
        """
        turn = next((turn for turn in self._turns.values() if turn.faults.fault is not None), None)
        if turn is None or turn.faults.fault is None or (early and not turn.cut):
            return []
        fault, otherwise = turn.faults.fault, turn.faults.fault.otherwise
        if not otherwise or not isinstance(otherwise[-1], Failed):
            otherwise = (*otherwise, Ended({0: fault.finish}))
        self.done = True
        self.retry = Retry(fault, turn.faults.words, otherwise, self._usage)
        self._report.asked_again.append(entry(fault.reason, fault.name and loggable_name(fault.name)))
        message = f"The model is asked again ({fault.reason}): expected {fault.expected}."
        return [*events, Failed(ApiError(message, "invalid_request_error", "asked_again", status=422))]

    def _end(self, reasons: dict[int, EndReason] | None = None) -> Ended:
        self.done = True
        if reasons is None:
            reasons = {choice: turn.reason or "stop" for choice, turn in self._turns.items()}
        self._warn_if_empty(set(reasons.values()))
        self._report.finish = reasons.get(0, "stop")
        self._report.truncated |= "length" in reasons.values()
        return Ended(reasons, self._usage)

    def _warn_if_empty(self, reasons: set[EndReason]) -> None:
        """Warn of an answer that looks like success but is empty, or lacks the call that it had to hold."""
        if self._plan.choice.mode == "required" and "tool_calls" not in reasons:
            self._report.warnings.append(NO_CALL)
        if self._is_empty and reasons <= {"stop"}:
            self._report.warnings.append(EMPTY_ANSWER)
