"""One choice of an answer, which turns the backend's events into text and calls.

    text ─▶ parser ─▶ segments ─▶ judge ─▶ verdicts ─▶ output sequencer, or calls

1. Three modules share the decisions: ``output_sequencer`` orders text and calls and determines when the choice ends,
   ``client_calls`` emits the calls, and ``judge`` decides whether text is a call.
2. While a call is being streamed to the client, other events wait until it has ended. Text and other items that arrive
   meanwhile are still treated as if they preceded the call, as they would if the call were emitted in one step. A
   structured call that arrives meanwhile is treated as if it followed the call.
3. If a tagged block is incomplete at the end of a backend message, it continues in the next message. The empty line
   that otherwise separates the texts of two messages is not inserted into the block.
4. If the plan ends the turn at any text after a call, the first character of a call over the limit also ends the turn.
   The turn ends even if the call would be invalid, and regardless of how the text is split into chunks.
5. A block directly after a block that cannot be parsed is text, so that the second of two calls does not run without
   the first. Calls before the malformed block do run, since the client may have received them already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from toolsim.core.events import (
    ClientEvent,
    Failed,
    FinishReason,
    HostedEvent,
    HostedProgress,
    ReasoningDelta,
    RefusalDelta,
    StructuredCall,
    StructuredDelta,
    TextDelta,
)
from toolsim.core.plan import Plan
from toolsim.core.report import Report, entry, loggable_name
from toolsim.response.answer_format import HeldAnswer
from toolsim.response.calls_in_reasoning import Thoughts
from toolsim.response.client_calls import ClientCalls
from toolsim.response.faults import BrokenCalls, Continuation
from toolsim.response.judge import Judge
from toolsim.response.output_sequencer import EMPTY_LINE, OutputSequencer
from toolsim.response.quotation import block_limit, tagged_calls
from toolsim.response.repetition import ONE_CALL
from toolsim.response.segments import (
    Block,
    BrokenCall,
    Calls,
    FenceMark,
    Fragment,
    Oversize,
    Parser,
    Segment,
    joined,
)
from toolsim.response.structured import StructuredCalls
from toolsim.response.untagged import Untagged
from toolsim.response.verdict import (
    ANSWER_MISMATCH,
    CALL_AS_TEXT,
    MALFORMED_JSON,
    QUOTED_CALL,
    JudgedCall,
    Rejected,
    Verdict,
    Violation,
)


class Choice:
    """One choice of an answer. Each method processes one backend event and returns the resulting events for the client.

    ``sequencer`` determines whether the choice has ended, and why.
    """

    def __init__(self, plan: Plan, report: Report, judge: Judge, numbers: Iterator[int], index: int = 0) -> None:
        self._plan = plan
        self._report = report
        self._judge = judge  # The judge and its time budget are shared by all choices of the answer.
        self._structured_calls = StructuredCalls(judge)
        self._index = index  # The index of this choice, included in each of its events.
        self._parser = parser_for(plan, judge)  # None if no tools are offered, in which case all output is text.
        self._calls = ClientCalls(plan, report, numbers, index)
        self.sequencer = OutputSequencer(plan, report, self._calls, index)
        self._is_unreadable = False  # Whether the latest block was a call that could not be parsed.
        self._position = 0  # Number of characters of text received so far.

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sequencer}, {self._calls.made} calls, {self._parser})"

    @property
    def has_called(self) -> bool:
        """Whether the choice has calls, and all of them are complete."""
        return self._calls.made > 0 and not self._calls.has_broken

    @property
    def _in_block(self) -> bool:
        return self._parser is not None and self._parser.in_block

    # -- events of the backend

    def text(self, text: str) -> list[ClientEvent]:
        """Process a delta of the backend's text."""
        if self.sequencer.has_ended:
            return []
        if self._parser is not None:
            self._take(self._parser.feed(text))
            # Rule 4: the limit on calls has been reached, so the block that has just started cannot become a call.
            is_surplus = self._plan.stops_after_tools and self._calls.is_exhausted and self._in_block
            if is_surplus and not self.sequencer.has_ended:
                self.sequencer.end_early(self._calls.skip())
        elif text:  # No tools are offered, so all output is text.
            self.sequencer.state(text)
        return self._calls.take()

    def next_message(self) -> list[ClientEvent]:
        """Process the end of a backend message that is followed by another message in the same answer."""
        if self.sequencer.has_ended:
            return []
        follows = self.sequencer.end_message()
        if self._parser is None:
            segments: Sequence[Segment] = [EMPTY_LINE]
        elif self._parser.open_size:
            # Rule 3: the block continues in the next message.
            segments = []
        else:
            # The parser reads the empty line, because a call at the end of the message may have to be alone on its
            # lines.
            segments = self._parser.feed(EMPTY_LINE)
        # The empty line is dropped if the text before or after it is missing, unless the line completed held-back text.
        if follows or not all(isinstance(segment, str) and segment.isspace() for segment in segments):
            self._take(segments)
        return self._calls.take()

    def other(self, event: RefusalDelta | ReasoningDelta | HostedEvent) -> list[ClientEvent]:
        """Process an event that is neither text nor a call."""
        # A progress event for an item that the client already has does not interrupt the text.
        if isinstance(event, HostedProgress) and not event.key:
            if not self.sequencer.has_ended:
                self._calls.emit(event)
            return self._calls.take()
        # Text that was held back is emitted first. It may contain a call and end the choice.
        self._release_text()
        if not self.sequencer.has_ended:
            self.sequencer.item(event)
        return self._calls.take()

    def call_started(self) -> None:
        """Record that the backend has started to send a structured call. ``structured`` is called when the call is
        complete.
        """
        self.sequencer.calls_started += 1

    def structured(self, call: StructuredCall) -> list[ClientEvent]:
        """Process a structured call from the backend."""
        self.sequencer.calls_started = max(0, self.sequencer.calls_started - 1)
        self._release_text()
        # Rule 2: another call is being streamed, so this call is postponed until that call has ended.
        if self._calls.is_open and not self._calls.is_arriving_as(call.key):
            self._after_call(broke=self._calls.postpone(call))
        elif not self.sequencer.has_ended:
            self._structured(call)
        return self._calls.take()

    def arriving(self, delta: StructuredDelta) -> list[ClientEvent]:
        """Process a delta of a structured call. ``structured`` is called when the call is complete."""
        if self.sequencer.has_ended:
            return []
        # While a block is open, no structured call is announced, because the block may contain a call that is about to
        # be announced.
        may_announce = delta.is_first and not self._in_block
        self._calls.arriving(delta, self._structured_calls.arriving(delta) if may_announce else None)
        return self._calls.take()

    def finish(self, reason: FinishReason) -> list[ClientEvent]:
        """End the choice for the reason that the backend reported, after emitting all held-back text."""
        if self.sequencer.has_ended:
            return []
        self._drain(reason)
        # The held-back text may contain calls or end the choice. If it contains calls, the choice ends with
        # "tool_calls".
        if not self.sequencer.has_ended:
            self.sequencer.end("tool_calls" if self._calls.made else reason)
        return self._calls.take()

    def recover(self) -> list[ClientEvent]:
        """End the choice because the answer has failed. Held-back text is emitted, but a second failure is not."""
        if self.sequencer.has_ended:
            return []
        self._drain("length")  # The rest of the text is missing, as if a length limit had cut it off.
        self.sequencer.end(self.sequencer.reason)
        return [event for event in self._calls.take() if not isinstance(event, Failed)]

    # -- segments

    def _take(self, segments: Sequence[Segment | BrokenCall]) -> None:
        for segment in joined(segments) if len(segments) > 1 else segments:
            if self.sequencer.has_ended:
                return
            match segment:
                case str():
                    # If the client has received the beginning of a call from this text, the call ends as incomplete.
                    self._position += len(segment)
                    self._end_block()
                    self._is_unreadable = self._is_unreadable and segment.isspace()
                    self.sequencer.state(segment)
                case Fragment():
                    # A fragment is a preview of a block. Its text follows later, as part of the block.
                    self._calls.fragment(segment.text)
                case Block() | Oversize():
                    is_announced = isinstance(segment, Block) and self._calls.streams(segment.body)
                    # Any verdict may end the choice. Later verdicts are then skipped, and the log reports them as
                    # skipped.
                    with self._reported(segment.raw) as outcomes:
                        verdicts = self._judge.block(segment, is_announced=is_announced)
                        # Rule 5: the second of two calls must not run without the first.
                        if self._is_unreadable and isinstance(verdicts[0], JudgedCall):
                            rejected = self._judge.reject(segment.raw, MALFORMED_JSON, verdicts[0].tool.name)
                            verdicts = [replace(rejected, is_unreadable=True)]
                        outcomes += [self.apply(verdict) for verdict in verdicts]
                    self._is_unreadable = all(
                        isinstance(verdict, Rejected) and verdict.is_unreadable for verdict in verdicts
                    )
                    self._end_block()
                case Calls():
                    self._untagged(segment)
                case FenceMark():
                    # The line of a code fence next to a call is dropped, like whitespace.
                    self._position += len(segment.raw)
                    self.sequencer.mark(segment.raw, opening=segment.opening)
                case BrokenCall():
                    # The model is not asked to correct the broken call, so the text of the call is the answer.
                    self.sequencer.state(segment.raw)

    def _untagged(self, segment: Calls) -> None:
        with self._reported(segment.raw) as outcomes:
            # If a tool's output contains one of these calls, the model has copied all of them from the output.
            if any(accepted.is_quoted for accepted in segment.calls):
                for accepted in segment.calls:
                    self._judge.warn(QUOTED_CALL, accepted.call.tool.name)
                outcomes.append(f"text {QUOTED_CALL}")
                self.sequencer.state(segment.raw)
                return
            for accepted in segment.calls:
                self._judge.count_untagged(accepted)
                outcomes.append(self.apply(accepted.call))
        # The model is repeating the same call, and would continue endlessly (``repetition``).
        if segment.ends and not self.sequencer.has_ended:
            self.sequencer.end_early(ONE_CALL)

    def _reported(self, raw: str) -> AbstractContextManager[list[str]]:
        start = self._position
        self._position += len(raw)
        return self._report.add_block(self._index, start, self._position)

    def _release_text(self) -> None:
        """Emit text that the parser has held back in case the answer consists only of text."""
        if self._parser is not None:
            self._take(self._parser.release())

    def _drain(self, reason: FinishReason) -> None:
        """Emit all held-back text as text or as calls, because the choice ends.

        ``reason``: the reason for the end. It is "length" if the answer was truncated in any way.
        """
        # A structured call is incomplete, and its remaining deltas will not arrive.
        if self._calls.is_arriving:
            self._after_call(broke=self._calls.break_off())
        if self._parser is not None:
            self.drain(self._parser, reason)
        # A call that was announced before its block was complete ends as incomplete.
        self._end_block()
        self.sequencer.end_of_text()

    def drain(self, parser: Parser, reason: FinishReason) -> None:
        """Process the text that the parser still holds back when the text ends."""
        self._take(parser.finish(cut=reason == "length"))

    # -- verdicts

    def apply(self, verdict: Verdict, structured: StructuredCall | None = None) -> str:
        """Apply a verdict, and return the outcome for the log.

        ``structured``: the backend's structured call that the verdict is about, or None if the call was found in text.
        """
        match verdict:
            case JudgedCall():
                return self._call(verdict, structured)
            case Rejected():
                return self._reject(verdict, structured)
            case Violation():
                return self._violate(verdict)

    def _call(self, call: JudgedCall, structured: StructuredCall | None) -> str:
        """Emit a call, unless it exceeds the limit or repeats another call."""
        passed_over = f"passed over {call.tool.name}"
        if self.sequencer.has_ended:
            return passed_over
        # The client has already received the beginning of another call, which is still arriving from the backend.
        if structured is None and self._calls.is_arriving:
            # The postponed call already counts as a call, so text that follows is treated as text after a call.
            self.sequencer.called(made=True)
            self._after_call(broke=self._calls.postpone(call))
            return f"call {call.tool.name}"
        outcome = self._calls.make(call, structured.key if structured else None)
        # A dropped call does not split the text around it.
        self.sequencer.called(made=outcome.made)
        if outcome.end:
            self.sequencer.end_early(outcome.end)
        self._after_call(broke=outcome.broke)
        return f"call {call.tool.name}" if outcome.made else passed_over

    def _reject(self, verdict: Rejected, structured: StructuredCall | None) -> str:
        """Emit the text of a block that is not a call, or a description of a structured call that is not passed on."""
        outcome = f"text {verdict.reason}"
        if not verdict.raw or self.sequencer.has_ended:
            return outcome
        if structured is not None:
            self._say_in_words(verdict, structured)
            return outcome
        # The client may have received the beginning of this block as a call, which then ends as incomplete.
        self._end_block()
        self.sequencer.state(verdict.raw)
        return outcome

    def _say_in_words(self, verdict: Rejected, call: StructuredCall) -> None:
        """Emit a rejected structured call as text."""
        if self._calls.is_arriving_as(call.key) and self._calls.break_off():
            self.sequencer.interrupt()
        # Text directly after a call would be dropped, or would end the turn.
        if self.sequencer.gap is None:
            return
        self._report.warnings.append(entry(CALL_AS_TEXT, verdict.name and loggable_name(verdict.name)))
        # The model did not write this text, so it is put in a separate paragraph.
        parting = EMPTY_LINE if self.sequencer.is_in_text else ""
        self.sequencer.state(f"{parting}{verdict.raw}")

    def _violate(self, verdict: Violation) -> str:
        """End the choice with an error because a strict tool's call is invalid. The option ``toolsim_strict_policy``
        can turn the error into text.
        """
        if self.sequencer.has_ended:
            return f"failure {verdict.reason}"
        # Rule 4: the limit on calls has been reached, so even a valid call would not be emitted.
        if self._calls.is_exhausted:
            end = self._calls.skip(verdict.name and loggable_name(verdict.name))
            if end:
                self.sequencer.end_early(end)
            return f"passed over {verdict.reason}"
        # Postponed calls are emitted before the error. One of them may end the choice.
        self._end_block()
        if self.sequencer.has_ended:
            return f"failure {verdict.reason}"
        # With ``toolsim_strict_policy=message``, the answer contains the error message as text.
        if self._plan.policy.strict_policy == "message":
            self._calls.emit(TextDelta(verdict.error.message, self._index))
            self.sequencer.end_early("strict failure")
        else:
            self._calls.emit(Failed(verdict.error))
            self.sequencer.fail()
        return f"failure {verdict.reason}"

    # -- calls

    def _structured(self, call: StructuredCall) -> None:
        is_announced = self._plan.stream and self._calls.is_arriving_as(call.key)
        for verdict in self._structured_calls.verdicts(call, is_announced=is_announced):
            self.apply(verdict, call)
        # If the client has received the beginning of this structured call but the call was not made, it ends as
        # incomplete.
        broke = self._calls.is_arriving_as(call.key) and self._calls.break_off()
        self._after_call(broke=broke)

    def _end_block(self) -> None:
        if self._calls.has_block:
            self._after_call(broke=self._calls.end_block())

    def _after_call(self, *, broke: bool) -> None:
        """Process the calls that were postponed while a call was being streamed.

        ``broke``: whether the streamed call ended as incomplete. If so, this call separates the text before it from the
        text after it.
        """
        if broke:
            self.sequencer.interrupt()
        for call in self._calls.take_postponed():
            if self.sequencer.has_ended:
                return
            if isinstance(call, JudgedCall):
                self._call(call, None)
            else:
                self._structured(call)


def parser_for(plan: Plan, judge: Judge) -> Parser | None:
    """Return the parser (a chain of nested parsers) for the model's text, or None if no tools are offered."""
    if not plan.tools:
        return None
    limit = block_limit(plan)
    tagged = tagged_calls(
        plan, fragments=plan.announces_early, keeps_unread=plan.any_strict, count_lost=judge.count_lost
    )
    parser: Parser = tagged
    if plan.reads_untagged:
        parser = Untagged(tagged, judge, limit=limit, repair=plan.policy.repair == "safe")
    parser = Thoughts(parser, lambda: tagged_calls(plan))
    if plan.reads_untagged and MALFORMED_JSON in plan.retries_allowed:
        parser = BrokenCalls(parser, plan, judge, limit)
    if judge.answer_format is not None and ANSWER_MISMATCH in plan.retries_allowed:
        parser = HeldAnswer(parser, judge.answer_format, limit)
    if plan.partial_call:
        parser = Continuation(parser, plan.partial_call)
    return parser
