"""Turns the backend's events of one answer into the client's events, and ends the answer once for all choices.

``Answer`` contains the state that the choices share: the call numbers, which are consecutive across all choices; the
judge with its time budget; the usage, which is reported once and estimated if the backend reports none; and the end of
the answer. The answer ends exactly once, at the first of these events:

1. the backend's own terminator (``Closed``): every choice ends, and its held-back text is emitted as text or as calls;
2. the early end of every requested choice, in which case the backend may be stopped (``is_cut``);
3. a failure: an error reported by the backend, invalid bytes, or an invalid call to a strict tool.

A backend failure after a call is not reported to the client if the plan ends the answer at any text after a call. In
this case, the answer ends with its calls, as if it had ended early, and the report contains the reason. Nothing is
emitted after the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from itertools import count

from toolsim.core.errors import ApiError
from toolsim.core.events import (
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
    NextMessage,
    Opened,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    StructuredCallStarted,
    StructuredDelta,
    TextDelta,
    Usage,
)
from toolsim.core.plan import Plan
from toolsim.core.report import Report, entry
from toolsim.response.answer_format import AnswerWatch
from toolsim.response.calls_in_reasoning import IN_REASONING, CallsInReasoning, calls_in_reasoning_for
from toolsim.response.checker import BUDGET_SECONDS
from toolsim.response.choice import Choice
from toolsim.response.judge import Judge
from toolsim.response.retry import EMPTY_ANSWER, NO_CALL, Retry
from toolsim.response.structured import ClientItems
from toolsim.response.verdict import UNKNOWN_TOOL

Estimate = Callable[[str], Usage]
"""Estimates the token counts of an answer to a given request, based on all text that the model wrote."""


class Answer:
    """All choices of one answer. Call ``feed`` with the backend's events in order. It never raises exceptions.

    ``estimate``: called at the end if the client expects token counts that the backend has not reported. ``retry``: the
    retry, if the model should correct the answer; otherwise None. An answer with a retry ends with a failure, which the
    caller can replace with the events of the retry (``retrying_choice``).
    """

    def __init__(
        self, plan: Plan, report: Report, *, seconds: float = BUDGET_SECONDS, estimate: Estimate | None = None
    ) -> None:
        self._plan = plan
        self._report = report
        self._judge = Judge(plan, report, seconds=seconds)
        self._client_items = ClientItems(self._judge.toolbox)
        self._numbers = count(plan.first_number)
        self._choices: dict[int, Choice] = {}
        # Finds calls in reasoning. None once the answer can no longer contain such calls.
        self._reasoned = calls_in_reasoning_for(plan)
        wanted = self._judge.answer_format
        self._watch = AnswerWatch(wanted, report) if wanted is not None else None
        self._usage: Usage | None = None
        self._estimate = estimate if plan.form.include_usage or not plan.stream else None
        self._written = StringIO() if self._estimate is not None else None
        """All text that the model wrote, from which token counts are estimated. None if no estimate is needed."""
        self._is_empty = True
        self.retry: Retry | None = None
        self.is_done = False  # Whether the last event has been returned.

    @property
    def is_cut(self) -> bool:
        """Whether the answer ended before the backend had sent everything. If so, the backend should be stopped."""
        return self.is_done and any(choice.sequencer.is_cut for choice in self._choices.values())

    def feed(self, event: BackendEvent) -> list[ClientEvent]:
        """Process one backend event. Events after the end are ignored."""
        emitted = self._feed(event) if self._reasoned is None else self._feed_reasoned(self._reasoned, event)
        if self._watch is not None:
            self._watch.take(emitted)
        return emitted

    def _feed_reasoned(self, reasoned: CallsInReasoning, event: BackendEvent) -> list[ClientEvent]:
        emitted: list[ClientEvent] = []
        events = reasoned.take(event)
        if reasoned.is_over:
            self._reasoned = None
            self._report.warnings += [IN_REASONING] * reasoned.has_found
        for each in events:
            emitted += self._feed(each)
        return emitted

    def _feed(self, event: BackendEvent) -> list[ClientEvent]:
        if self.is_done:
            return []
        match event:
            case TextDelta():
                if self._written is not None:
                    self._written.write(event.text)
                choice = self._choice(event.choice)
                return self.checked(choice, choice.text(event.text))
            case NextMessage():
                choice = self._choice(0)
                return self.checked(choice, choice.next_message())
            case ReasoningDelta() | RefusalDelta():
                if self._written is not None:
                    self._written.write(event.text)
                choice = self._choice(event.choice)
                return self.checked(choice, choice.other(event))
            case PassThrough() | HostedStarted() | HostedProgress() | HostedEnded():
                taken = self._client_items.take(event)
                if taken is None:
                    return []
                choice = self._choice(0)
                if isinstance(taken, StructuredCall):
                    return self.checked(choice, choice.structured(taken))
                return self.checked(choice, choice.other(taken))
            case StructuredCall():
                if self._written is not None:
                    self._written.write(f"{event.name}({event.arguments})\n")
                choice = self._choice(event.choice)
                return self.checked(choice, choice.structured(event))
            case StructuredCallStarted():
                self._choice(event.choice).call_started()
                return []
            case StructuredDelta():
                choice = self._choice(event.choice)
                return self.checked(choice, choice.arriving(event))
            case Opened():
                # The client's name for the model may differ from the name sent to the backend.
                return [replace(event, model=None) if self._plan.policy.backend_model else event]
            case Finished():
                choice = self._choice(event.choice)
                return self.checked(choice, choice.finish(event.reason))
            case Counted():
                self._usage = event.usage
                return []
            case Failed():
                return self.fail(event.error)
            case Closed():
                return self._close()

    def end_of_input(self) -> list[ClientEvent]:
        """Process the end of the backend's bytes. The answer fails if the backend has not sent its terminator."""
        return self.fail(
            ApiError("The backend's stream ended before its answer was complete.", code="backend_truncated", status=502)
        )

    def fail(self, error: ApiError) -> list[ClientEvent]:
        """End the answer as failed, after emitting held-back text so that it is not lost."""
        if self.is_done:
            return []
        if self._reasoned is not None:
            return self.feed(Failed(error))
        tail = [event for choice in self._choices.values() for event in choice.recover()]
        code = error.code or error.type
        if (
            self._plan.stops_after_tools
            and self._choices
            and all(choice.has_called for choice in self._choices.values())
        ):
            self._report.warnings.append(entry("FAILED_AFTER_CALLS", code))
            self._report.tool_cutoff = self._report.tool_cutoff or "backend failed after tools"
            return [*tail, self._end(dict.fromkeys(self._choices, "tool_calls"))]
        self.is_done = True
        self._report.error = code
        self._report.truncated |= error.code == "backend_truncated"
        return [*tail, Failed(error)]

    def declares(self, name: str) -> bool:
        """Return whether ``name``, as the model wrote it, refers to one of the client's tools, even one that is not on
        offer.
        """
        found = self._judge.toolbox.written(name)
        return found.tool is not None or found.reason != UNKNOWN_TOOL

    def new_choice(self, index: int) -> Choice:
        """Return a new choice with this index."""
        return Choice(self._plan, self._report, self._judge, self._numbers, index)

    def _choice(self, index: int) -> Choice:
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = self.new_choice(index)
        return choice

    def checked(self, choice: Choice, events: list[ClientEvent]) -> list[ClientEvent]:
        """Return ``events``. If every choice has now ended early, the end of the answer is appended.

        If ``choice`` has failed, the failure in ``events`` already ends the answer.
        """
        if events:
            self._is_empty = False
        if not choice.sequencer.has_ended:
            return events
        if events and isinstance(events[-1], Failed):
            self.is_done = True
            self._report.error = events[-1].error.code
        elif len(self._choices) >= self._plan.choices and all(
            choice.sequencer.is_cut for choice in self._choices.values()
        ):
            return [*events, self._end()]
        return events

    def _close(self) -> list[ClientEvent]:
        events: list[ClientEvent] = []
        for choice in self._choices.values():
            events += choice.finish("stop")
            self._is_empty = self._is_empty and not events
            if events and isinstance(events[-1], Failed):
                return self.checked(choice, events)
        return self.closed(events)

    def closed(self, events: list[ClientEvent]) -> list[ClientEvent]:
        """Return ``events``, followed by the end of the answer. Called when every choice has ended without failure."""
        return [*events, self._end()]

    def _end(self, reasons: dict[int, EndReason] | None = None) -> Ended:
        self.is_done = True
        if reasons is None:
            reasons = {index: choice.sequencer.reason or "stop" for index, choice in self._choices.items()}
        self._warn_if_empty(set(reasons.values()))
        self._report.finish = reasons.get(0, "stop")
        self._report.truncated |= "length" in reasons.values()
        return Ended(reasons, self.usage())

    def usage(self) -> Usage | None:
        """Return the token counts, with estimates for counts that the backend has not reported. Returns None if there
        are no counts and no estimate is required.
        """
        usage, written = self._usage, self._written
        if self._estimate is None or written is None or (usage and usage.input_tokens and usage.output_tokens):
            return usage
        estimated = self._estimate(written.getvalue())
        if usage is None:
            return estimated
        # A prompt is never empty, so zero means that the count is unknown.
        read, wrote = usage.input_tokens or estimated.input_tokens, usage.output_tokens or estimated.output_tokens
        if (read, wrote) == (usage.input_tokens, usage.output_tokens):
            return usage
        return replace(usage, input_tokens=read, output_tokens=wrote, total_tokens=read + wrote, estimated=True)

    def _warn_if_empty(self, reasons: set[EndReason]) -> None:
        """Warn about an answer that looks successful but is empty or lacks a required call."""
        if self._plan.tool_choice.mode == "required" and "tool_calls" not in reasons:
            self._report.warnings.append(NO_CALL)
        if self._is_empty and reasons <= {"stop"}:
            self._report.warnings.append(EMPTY_ANSWER)
