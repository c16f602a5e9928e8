"""Answers whose model can be asked again: they end at a fault (``retry``), and report it in place of the rest.

A choice shows the finder of faults what the model writes and each verdict before it acts on it, and an answer each of
its possible ends. Without a reason to ask (``Plan.asks``) none of this is there.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolsimlib.errors import ApiError
from toolsimlib.events import (
    ClientEvent,
    Ended,
    Failed,
    FinishReason,
    HostedEvent,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
)
from toolsimlib.plan import Plan
from toolsimlib.report import Report, entry, loggable_name
from toolsimlib.response.answer import Answer
from toolsimlib.response.checker import BUDGET_SECONDS
from toolsimlib.response.choice import Choice
from toolsimlib.response.judge import Judge
from toolsimlib.response.pieces import Parser, split_end
from toolsimlib.response.retry import FaultFinder, Retry
from toolsimlib.response.speech import EMPTY_LINE
from toolsimlib.response.verdict import Rejected, Verdict


class RetryingChoice(Choice):
    """A choice that ends at a fault of which the model can be told; ``faults`` has it then."""

    def __init__(self, plan: Plan, report: Report, judge: Judge, numbers: Iterator[int], index: int = 0) -> None:
        super().__init__(plan, report, judge, numbers, index)
        self.faults = FaultFinder(plan)

    def text(self, text: str) -> list[ClientEvent]:
        """Take a piece of the backend's text, which may be shown to the model."""
        if not self.is_over:
            self.faults.note(text)
        return super().text(text)

    def next_message(self) -> list[ClientEvent]:
        """Take the end of the backend's message, which is an empty line in the model's words too."""
        if not self.is_over and not (self._parser is not None and self._parser.open_size):
            self.faults.note(EMPTY_LINE)
        return super().next_message()

    def other(self, event: RefusalDelta | ReasoningDelta | HostedEvent) -> list[ClientEvent]:
        """Take what is neither text nor a call; an answer that has it is not empty."""
        emitted = super().other(event)
        if not self.is_over:
            self.faults.note_other(event)
        return emitted

    def salvage(self) -> list[ClientEvent]:
        """End the choice because the answer failed: nothing else is a fault."""
        self.faults.stop()
        return super().salvage()

    def take_rest(self, parser: Parser, reason: FinishReason) -> None:
        """Take what the parser has held back up to the end of the text, unless a call in it is at fault."""
        was_open, size = parser.in_block, parser.open_size
        pieces = parser.finish(cut=reason == "length")
        # What was held back before an open block is not part of the call that the model is asked to continue.
        prose, pieces = split_end(pieces, size)
        self._take(prose)
        if was_open and self._may_ask and self.faults.unfinished(pieces, reason, self._speech.gap):
            self._speech.end(None)
        else:
            self._take(pieces)

    def act(self, verdict: Verdict, structured: StructuredCall | None = None) -> str:
        """Act on a verdict, unless it is a fault; return what became of it, for the log."""
        if structured is not None and isinstance(verdict, Rejected):
            self.faults.note(verdict.raw)
        if self._may_ask and self.faults.broken(verdict, self._speech.gap):
            self._speech.fail()
            return f"asked again {self.faults.fault and self.faults.fault.reason}"
        return super().act(verdict, structured)

    @property
    def _may_ask(self) -> bool:
        """Whether the model can be asked for another call: not beside an announced one, nor for one too many."""
        calls = self._calls
        return not (self.is_over or calls.is_open or calls.has_broken or calls.is_spent)


class RetryingAnswer(Answer):
    """An answer that ends at the first fault of a choice; ``retry`` says then what the model is to be told."""

    def __init__(self, plan: Plan, report: Report, *, seconds: float = BUDGET_SECONDS) -> None:
        self._finders: dict[int, FaultFinder] = {}  # That of each choice, by its index.
        super().__init__(plan, report, seconds=seconds)

    def new_choice(self, index: int) -> Choice:
        """Return a choice that has taken nothing yet."""
        choice = RetryingChoice(self._plan, self._report, self._judge, self._numbers, index)
        self._finders[index] = choice.faults
        return choice

    def fail(self, error: ApiError) -> list[ClientEvent]:
        """End the answer as failed, unless the model can be asked for what is missing of it."""
        if self.is_done or self._reasoned is not None:
            return super().fail(error)
        return self._ask([]) or super().fail(error)

    def checked(self, choice: Choice, events: list[ClientEvent]) -> list[ClientEvent]:
        """Check whether a choice is at fault, has failed, or whether all have ended early."""
        # A fault at the end of the text waits for the usage; one before it ends the answer at once.
        if choice.is_cut and (end := self._ask(events)):
            return end
        return super().checked(choice, events)

    def closed(self, events: list[ClientEvent]) -> list[ClientEvent]:
        """Return what ends the answer, after ``events``: every choice has ended, and none has failed."""
        choice, finder = self._choice(0), self._finders[0]
        if choice.reason is None:
            events = [*events, *choice.finish("stop")]
        if choice.reason in ("stop", "length") and finder.fault is None and not choice.has_broken:
            finder.missing(self._plan, choice.reason)
        return self._ask(events) or super().closed(events)

    def _ask(self, events: list[ClientEvent]) -> list[ClientEvent]:
        """End the answer after ``events`` if it is at fault, and return what ends it; [] if it is not.

        The runner decides what the client gets instead.
        """
        finder = next((finder for finder in self._finders.values() if finder.fault is not None), None)
        if finder is None or finder.fault is None:
            return []
        fault, otherwise = finder.fault, finder.fault.otherwise
        if not otherwise or not isinstance(otherwise[-1], Failed):
            otherwise = (*otherwise, Ended({0: fault.finish}))
        self.is_done = True
        self.retry = Retry(fault, finder.words, otherwise, self._usage)
        name = fault.name and loggable_name(fault.name)
        self._report.asked_again.append(entry(fault.reason, name))
        message = f"The model is asked again ({fault.reason}): expected {fault.expected}."
        error = ApiError(message, "invalid_request_error", "asked_again", status=422)
        return [*events, Failed(error)]
