"""Answers that end at a fault, so that the model can be asked to correct it (``retry``).

A choice stores the model's text for the retry, and checks whether a verdict is a fault before applying the verdict. An
answer checks for faults before it ends. These classes are used only if retries are allowed (``Plan.retries_allowed``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from toolsim.core.errors import ApiError
from toolsim.core.events import (
    ClientEvent,
    Ended,
    Failed,
    FinishReason,
    HostedEvent,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    TextDelta,
)
from toolsim.core.plan import FIND_TOOLS, Plan
from toolsim.core.report import Report, entry, loggable_name
from toolsim.response.answer import Answer
from toolsim.response.choice import Choice
from toolsim.response.faults import begins_call
from toolsim.response.judge import Judge
from toolsim.response.output_sequencer import EMPTY_LINE
from toolsim.response.retry import CUT_OFF, EMPTY_ANSWER, NO_CALL, Fault, Retry, retry_error
from toolsim.response.segments import BrokenCall, Parser, Segment, split_end
from toolsim.response.verdict import MALFORMED_JSON, JudgedCall, Rejected, Verdict, Violation

_WHOLE = "a complete call, up to its closing tag"

_MAX_SHOWN_CHARS = 65_536
"""Maximum length of the text stored for a retry, in characters. Longer text does not help a model."""

_SLOT = re.compile(r":\s*(<[A-Za-z_][^<>{}\"\n]{0,63}>)\s*[,}\]]")
"""A pattern for the placeholder of a value in the manifest. Small models copy such placeholders into their calls."""


class RetryingChoice(Choice):
    """A choice that ends at the first fault. ``fault``: the fault, or None."""

    def __init__(self, plan: Plan, report: Report, judge: Judge, numbers: Iterator[int], index: int = 0) -> None:
        super().__init__(plan, report, judge, numbers, index)
        # The kinds of faults that are retried. Empty once the answer has failed.
        self._asks = plan.retries_allowed
        self._words: list[str] = []
        self._length = 0
        self._has_items = False  # Whether the choice contains anything other than text and reasoning.
        self.fault: Fault | None = None

    @property
    def words(self) -> str:
        """The model's text, cut to the length that a retry needs."""
        return "".join(self._words)[:_MAX_SHOWN_CHARS]

    def _note(self, text: str) -> None:
        if self._asks and self._length < _MAX_SHOWN_CHARS:
            self._words.append(text)
            self._length += len(text)

    # -- events of the backend

    def text(self, text: str) -> list[ClientEvent]:
        """Process a delta of the backend's text, and store it for a possible retry."""
        if not self.sequencer.has_ended:
            self._note(text)
        return super().text(text)

    def next_message(self) -> list[ClientEvent]:
        """Process the end of a backend message, and add an empty line to the stored text."""
        if not self.sequencer.has_ended and not (self._parser is not None and self._parser.open_size):
            self._note(EMPTY_LINE)
        return super().next_message()

    def other(self, event: RefusalDelta | ReasoningDelta | HostedEvent) -> list[ClientEvent]:
        """Process an event that is neither text nor a call. Any event except reasoning makes the answer non-empty."""
        emitted = super().other(event)
        self._has_items |= not self.sequencer.has_ended and not isinstance(event, ReasoningDelta)
        return emitted

    def recover(self) -> list[ClientEvent]:
        """End the choice because the answer has failed. Faults are no longer reported."""
        self._asks = frozenset()
        return super().recover()

    def drain(self, parser: Parser, reason: FinishReason) -> None:
        """Process the text that the parser still holds back when the text ends, unless it contains a faulty call."""
        was_open, size = parser.in_block, parser.open_size
        segments = parser.finish(cut=reason == "length")
        # Only the open block is part of the call that the model continues, so text before the block is emitted.
        prose, segments = split_end(segments, size)
        self._take(prose)
        fault = self._unfinished(segments, reason) if was_open and self._may_ask else None
        if fault is not None:
            self.fault = fault
            self.sequencer.end(None)
        else:
            self._take(segments)

    def apply(self, verdict: Verdict, structured: StructuredCall | None = None) -> str:
        """Apply a verdict, unless it is a fault. Return the outcome for the log."""
        if structured is not None and isinstance(verdict, Rejected):
            self._note(verdict.raw)
        if self._may_ask and (fault := self._broken(verdict)) is not None:
            self.fault = fault
            self.sequencer.fail()
            return f"retried {fault.reason}"
        return super().apply(verdict, structured)

    # -- faults

    @property
    def _may_ask(self) -> bool:
        """Whether the model can be asked to correct a fault. This requires that another call is allowed, and that every
        announced call has been completed.
        """
        calls = self._calls
        return not (self.sequencer.has_ended or calls.is_open or calls.has_broken or calls.is_exhausted)

    def _broken(self, verdict: Verdict) -> Fault | None:
        """Return the fault that a verdict represents, or None if the verdict is not a fault (rules 2 and 5)."""
        if isinstance(verdict, JudgedCall):
            is_lookup = (
                self._plan.tools_to_look_up and self._plan.finder == FIND_TOOLS and verdict.tool.name == FIND_TOOLS
            )
            if not is_lookup:
                return None
            message = "The model is looking up tools, but there is no time left for another round."
            error = ApiError(message, code="no_round_left", status=504)
            return Fault(FIND_TOOLS, "tools", arguments=verdict.arguments, otherwise=(Failed(error),))
        if verdict.reason not in self._asks or not verdict.expected:
            return None
        if isinstance(verdict, Rejected):
            return _refused(verdict, self._as_text(verdict.raw))
        if self._plan.policy.strict_policy == "message":
            return _refused(verdict, (TextDelta(verdict.error.message),))
        return _refused(verdict, (Failed(verdict.error),))

    def _unfinished(self, segments: Sequence[Segment | BrokenCall], reason: FinishReason) -> Fault | None:
        """Return the fault of a call that the model did not finish, or None (rule 3).

        ``segments``: the segments of the text that the parser has held back. An answer that consists only of a broken
        untagged call is treated in the same way (see ``faults``).
        """
        if segments and isinstance(answer := segments[-1], BrokenCall):
            refused = answer.refused
            if refused is None or refused.reason not in self._asks or reason not in ("stop", "length"):
                return None
            return _refused(refused, self._as_text(answer.raw), reason)
        raw = "".join(segment for segment in segments if isinstance(segment, str))
        if not raw or not all(isinstance(segment, str) for segment in segments):
            return None
        if reason == "length" and CUT_OFF in self._asks:
            return Fault(CUT_OFF, _WHOLE, partial_call=raw, otherwise=self._as_text(raw), finish="length")
        if reason == "stop" and MALFORMED_JSON in self._asks and begins_call(raw):
            return Fault(MALFORMED_JSON, _WHOLE, otherwise=self._as_text(raw))
        return None

    def missing(self, finish: FinishReason) -> Fault | None:
        """Return the fault of an answer that ended for the reason ``finish`` and lacks a required call, or is empty
        (rule 4). Returns None if there is no such fault.
        """
        # An announced call ended as incomplete, so the client must not run a call from another round.
        if self._calls.has_broken:
            return None
        if self._plan.tool_choice.mode == "required" and NO_CALL in self._asks:
            return Fault(NO_CALL, "a call, because this answer must contain one", finish=finish)
        is_empty = not self._has_items and not self.words.strip()
        if self._plan.after_outputs and is_empty and EMPTY_ANSWER in self._asks:
            return Fault(EMPTY_ANSWER, "an answer in plain text", finish=finish)
        return None

    def _as_text(self, raw: str) -> tuple[ClientEvent, ...]:
        """Return the events that emit ``raw`` and the whitespace before it, or () if the client does not receive this
        text.
        """
        gap = self.sequencer.gap
        text = gap.take() + raw if gap is not None else ""
        return (TextDelta(text),) if text else ()


def _refused(verdict: Rejected | Violation, otherwise: tuple[ClientEvent, ...], finish: FinishReason = "stop") -> Fault:
    expected = verdict.expected
    # The model may have copied a placeholder such as <string> from the manifest, which makes the JSON malformed.
    if verdict.reason == MALFORMED_JSON and (slot := _SLOT.search(verdict.raw)) is not None:
        expected += f"; {slot[1]} is a placeholder for a value"
    return Fault(verdict.reason, expected, verdict.name, otherwise=otherwise, finish=finish)


class RetryingAnswer(Answer):
    """An answer that ends at the first fault in a choice. ``retry``: the retry for this fault, or None."""

    def new_choice(self, index: int) -> Choice:
        """Return a new choice that can be retried."""
        return RetryingChoice(self._plan, self._report, self._judge, self._numbers, index)

    def fail(self, error: ApiError) -> list[ClientEvent]:
        """End the answer as failed. If a choice has a fault, the fault is reported instead of ``error``."""
        if self.is_done or self._reasoned is not None:
            return super().fail(error)
        return self._ask([]) or super().fail(error)

    def checked(self, choice: Choice, events: list[ClientEvent]) -> list[ClientEvent]:
        """Return ``events``, followed by the end of the answer if the answer ends here.

        The answer ends if a choice has a fault or has failed, or if all choices have ended early.
        """
        # A fault in the middle of the text ends the answer immediately. A fault at the end is reported after the token
        # counts have arrived.
        if choice.sequencer.is_cut and (end := self._ask(events)):
            return end
        return super().checked(choice, events)

    def closed(self, events: list[ClientEvent]) -> list[ClientEvent]:
        """Return ``events``, followed by the end of the answer or by the error for a retry. Called when every choice
        has ended without failure.
        """
        choice = self._choice(0)
        assert isinstance(choice, RetryingChoice)
        if choice.sequencer.reason is None:
            events = [*events, *choice.finish("stop")]
        if choice.sequencer.reason in ("stop", "length") and choice.fault is None:
            choice.fault = choice.missing(choice.sequencer.reason)
        return self._ask(events) or super().closed(events)

    def _ask(self, events: list[ClientEvent]) -> list[ClientEvent]:
        """Return ``events``, followed by the error for a retry, if a choice has a fault. Otherwise, return [].

        The client never receives this error, because other events replace it.
        """
        choice = next(
            (each for each in self._choices.values() if isinstance(each, RetryingChoice) and each.fault), None
        )
        if choice is None or choice.fault is None:
            return []
        fault, otherwise = choice.fault, choice.fault.otherwise
        if not otherwise or not isinstance(otherwise[-1], Failed):
            otherwise = (*otherwise, Ended({0: fault.finish}))
        self.is_done = True
        self.retry = Retry(fault, choice.words, otherwise, self.usage())
        self._report.retries.append(entry(fault.reason, fault.name and loggable_name(fault.name)))
        return [*events, Failed(retry_error(fault))]
