"""One choice of an answer: puts what the backend sends into the order in which the client gets it.

The state is a method that takes visible text. Between one state and the next:

    | state    | text                    | call    | other item         | end  |
    |----------|-------------------------|---------|--------------------|------|
    | waiting  | speaking                | calling | waiting            | over |
    | speaking | speaking                | calling | waiting or calling | over |
    | calling  | speaking, calling, over | calling | calling            | over |
    | over     | over                    | over    | over               | over |

1. Whitespace beside a call is not text: while waiting or calling it is held back until other text follows.
2. The plan decides what other text does after a call: it ends the turn (stop after tools), is dropped (suppress tail),
   or is emitted.
3. Another item (reasoning, a refusal, an item of a built-in tool) interrupts the text. It ends nothing, except that a
   refusal counts as text under rule 2. So does another message of the backend (``parting``).
4. ``client_calls`` decides how a call is emitted. One that was announced and breaks later ends incomplete; then the
   turn ends as cut ("length").
5. What arrives while a call is open is emitted behind it. Text and other items count as if they had come before it, as
   they do if the call is emitted whole; calls that the backend emits as such count from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from toolsimlib.errors import ApiError
from toolsimlib.events import (
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
from toolsimlib.plan import Plan
from toolsimlib.report import Report, entry, loggable_name
from toolsimlib.response.begun import Continuation
from toolsimlib.response.block_log import BlockLog
from toolsimlib.response.broken_call import BrokenCall
from toolsimlib.response.client_calls import ClientCalls
from toolsimlib.response.gap import Gap
from toolsimlib.response.judge import Judge
from toolsimlib.response.parser import parser_for
from toolsimlib.response.parting import Parting
from toolsimlib.response.pieces import Block, Fragment, Oversize, joined, split_end
from toolsimlib.response.retry import FaultFinder
from toolsimlib.response.same_call import ONE_CALL
from toolsimlib.response.units import Calls, FenceMark
from toolsimlib.response.untagged import Piece
from toolsimlib.response.verdict import CALL_AS_TEXT, QUOTED_CALL, Call, Rejected, Verdict, Violation


class Turn:
    """One choice. ``over``: it takes nothing more; ``cut``: it ended before the backend did; ``reason``: why it ended.

    ``faults``: the fault at which it ended, if the model can be asked to mend it.
    Each method takes one event of the backend and returns the client's events for it.
    """

    def __init__(self, plan: Plan, report: Report, judge: Judge, numbers: Iterator[int], choice: int = 0) -> None:
        self._plan = plan
        self._report = report
        self._judge = judge
        self._choice = choice
        self._parser = parser_for(plan, judge)
        self._calls = ClientCalls(plan, report, numbers, choice)
        self._gap = Gap()
        self._blocks = BlockLog(report, choice)
        self._continuation = Continuation(plan.begun) if plan.begun else None
        self.faults = FaultFinder(plan)
        self._parting = Parting(plan, self._parser, self.faults)
        self.state = self.state_waiting
        self.over = False
        self.cut = False
        self.reason: FinishReason | Literal["tool_calls"] | None = None

    def __repr__(self) -> str:
        return f"Turn({self.state.__name__}, {self._calls.made} calls, {self._parser})"

    @property
    def called(self) -> bool:
        """Whether there were calls, all of them whole."""
        return self._calls.made > 0 and not self._calls.broken

    @property
    def broken(self) -> bool:
        """Whether an announced call ended incomplete."""
        return self._calls.broken

    @property
    def buffering(self) -> bool:
        """Whether the client gets nothing of what the backend sends: it is held back, or dropped as a tail."""
        dropping = self.state == self.state_calling and self._plan.policy.suppress_tail_after_tools
        return not self.over and (self._in_block or dropping or bool(self._gap) or self._calls.holds_back)

    @property
    def _in_block(self) -> bool:
        return self._parser is not None and self._parser.in_block

    # -- what the backend does

    def text(self, text: str) -> list[ClientEvent]:
        """Take a piece of the backend's text."""
        if self.over:
            return []
        self.faults.note(text)
        if self._continuation is not None:
            text = self._continuation.join(text)
        if self._parser is not None:
            self._take(self._parser.feed(text))
            if self._parser.in_block and self._calls.is_spent and self._plan.stops_after_tools and not self.over:
                # Whatever becomes of this block, call or text, the turn ends at it.
                self._end_early(self._calls.pass_over())
        elif text:
            self.state(text)
        return self._calls.take()

    def next_message(self) -> list[ClientEvent]:
        """Take the end of the backend's message, before the text of another one (rule 3)."""
        if not self.over:
            pieces = self._parting.pieces(is_speaking=self.state == self.state_speaking)
            self._interrupt()
            self._take(pieces)
        return self._calls.take()

    def other(self, event: RefusalDelta | ReasoningDelta | HostedEvent) -> list[ClientEvent]:
        """Take what is neither text nor a call."""
        if isinstance(event, HostedProgress) and not event.key:  # It interrupts nothing, whatever it is.
            if not self.over:
                self._calls.emit(event)
            return self._calls.take()
        if isinstance(event, RefusalDelta) and self._calls.made and self._plan.stops_after_tools and not self.over:
            self._end_early("refusal after tools")
        self._release_text()
        if not self.over:
            self._calls.emit(event)
            self.faults.note_other(event)
            self._interrupt()
        return self._calls.take()

    def structured(self, call: StructuredCall) -> list[ClientEvent]:
        """Take a call that the backend emitted as one."""
        self._release_text()
        if self._calls.is_open and not self._calls.is_arriving_as(call.key):
            self._after_call(broke=self._calls.postpone(call))
        elif not self.over:
            self._structured(call)
        return self._calls.take()

    def arriving(self, delta: StructuredDelta) -> list[ClientEvent]:
        """Take a piece of a call that the backend is emitting as one; the whole call follows."""
        if self.over:
            return []
        self._calls.arriving(delta, self._judge.arriving(delta) if delta.is_first and not self._in_block else None)
        return self._calls.take()

    def finish(self, reason: FinishReason) -> list[ClientEvent]:
        """End the choice, for the backend's own reason. What was held back is resolved now."""
        if self.over:
            return []
        self._drain(reason)
        if not self.over:
            self._end("tool_calls" if self._calls.made else reason)
        return self._calls.take()

    def salvage(self) -> list[ClientEvent]:
        """End the choice because the answer failed: what was held back is emitted, a second failure is not."""
        if self.over:
            return []
        self.faults.stop()
        self._drain("length")
        self._end(self.reason)
        return [event for event in self._calls.take() if not isinstance(event, Failed)]

    # -- the states: what visible text does

    def state_waiting(self, text: str) -> None:
        """There is no text yet, or an item has interrupted it, and there was no call."""
        if not self._gap.hold(text):
            self._speak(text)

    def state_speaking(self, text: str) -> None:
        """Text is being emitted."""
        self._calls.emit(TextDelta(text, self._choice))

    def state_calling(self, text: str) -> None:
        """There was a call, and no text since (rule 2)."""
        if self._gap.hold(text):
            return
        if self._plan.stops_after_tools:
            self._end_early("text after tools")
        elif self._plan.policy.suppress_tail_after_tools:
            self._gap.take()
        else:
            self._speak(text)

    def state_over(self, text: str) -> None:
        """The turn has ended: everything is dropped."""

    def _speak(self, text: str) -> None:
        self._calls.emit(TextDelta(self._gap.take() + text, self._choice))
        self.state = self.state_speaking
        self._parting.spoke()

    def _interrupt(self) -> None:
        self.state = self.state_calling if self._calls.made else self.state_waiting

    def _end(self, reason: FinishReason | Literal["tool_calls"] | None) -> None:
        self._calls.break_off()
        # A client that cannot see which call is incomplete must not run any.
        self.reason = "length" if self._calls.broken and reason is not None else reason
        self.state = self.state_over
        self.over = True

    def _end_early(self, why: str) -> None:
        """End the turn before the backend does: all that follows is dropped."""
        self._report.tool_cutoff = why
        self.cut = True
        self._end("tool_calls" if self._calls.made else "stop")

    # -- pieces of text and their verdicts

    def _release_text(self) -> None:
        if self._parser is not None:
            self._take(self._parser.release())

    def _take(self, pieces: Sequence[Piece | BrokenCall]) -> None:
        for piece in joined(pieces) if len(pieces) > 1 else pieces:
            if self.over:
                return
            match piece:
                case str():
                    self._blocks.position += len(piece)
                    self._end_block()
                    self.state(piece)
                case Fragment():
                    self._calls.fragment(piece.text)
                case Block() | Oversize():
                    self._block(piece)
                case Calls():
                    self._untagged(piece)
                case FenceMark():
                    self._fence_mark(piece)
                case BrokenCall():
                    self.state(piece.raw)

    def _drain(self, reason: FinishReason) -> None:
        """Resolve everything held back, at an end for ``reason``; "length" stands for any cut."""
        if self._calls.is_arriving:
            self._after_call(broke=self._calls.break_off())
        if self._parser is not None:
            if self._continuation is not None:
                self._take(self._parser.feed(self._continuation.end()))
            was_open, size = self._parser.in_block, self._parser.open_size
            pieces = self._parser.finish(cut=reason == "length")
            # What was held back before an open block is not part of the call that the model is asked to continue.
            prose, pieces = split_end(pieces, size)
            self._take(prose)
            if was_open and not self.over and self._may_ask and self.faults.unfinished(pieces, reason, self._text_gap):
                self._end(None)
                return
            self._take(pieces)
        self._end_block()
        # Whitespace is the answer if there is nothing else; beside a call it is dropped.
        if (gap := self._gap.take()) and not self._calls.made and not self.over:
            self._calls.emit(TextDelta(gap, self._choice))

    def _block(self, block: Block | Oversize) -> None:
        repaired = len(self._report.repairs)
        verdicts = self._judge.block(block) if isinstance(block, Block) else [self._judge.oversize(block.raw)]
        outcomes = [self._verdict(verdict) for verdict in verdicts]
        self._blocks.add(block.raw, outcomes, self._report.repairs[repaired:])
        self._end_block()

    def _untagged(self, piece: Calls) -> None:
        repairs, outcomes = list[str](), list[str]()
        if any(accepted.is_quoted for accepted in piece.calls):
            for accepted in piece.calls:
                self._judge.count_quoted(accepted)
            self._blocks.add(piece.raw, [f"text {QUOTED_CALL}"], repairs)
            self.state(piece.raw)
            return
        for accepted in piece.calls:
            repairs += self._judge.count_untagged(accepted)
            outcomes.append(self._verdict(accepted.call))
        self._blocks.add(piece.raw, outcomes, repairs)
        if piece.ends and not self.over:
            self._end_early(ONE_CALL)

    def _fence_mark(self, mark: FenceMark) -> None:
        """Hold a fence's opening line back like whitespace before the block; drop the closing line behind a call."""
        self._blocks.position += len(mark.raw)
        if mark.opening:
            self._interrupt()
            self._gap.hold_mark(mark.raw)
        elif self.state != self.state_calling:
            self.state(mark.raw)

    def _structured(self, call: StructuredCall) -> None:
        for verdict in self._judge.structured(call):
            if isinstance(verdict, Rejected):
                self.faults.note(verdict.raw)
            self._verdict(verdict, call)
        # If it is still open, it was not emitted as a call.
        self._after_call(broke=self._calls.is_arriving_as(call.key) and self._calls.break_off())

    def _verdict(self, verdict: Verdict, structured: StructuredCall | None = None) -> str:
        """Act on a verdict, which may be on a ``structured`` call; return what became of it, for the report."""
        match verdict:
            case _ if self._ask_again(verdict):
                return f"asked again {self.faults.fault and self.faults.fault.reason}"
            case Call(tool=tool):
                made = not self.over and self._call(verdict, structured)
                return f"call {tool.name}" if made else f"passed over {tool.name}"
            case Rejected(raw=raw, reason=reason, name=name):
                if raw and not self.over and structured is not None:
                    self._emit_in_words(raw, name, structured)
                elif raw and not self.over:
                    self._end_block()
                    self.state(raw)
                return f"text {reason}"
            case Violation(name=name, reason=reason) if self._calls.is_spent and not self.over:
                # A right call would not be emitted here either: where the text is cut must not matter.
                if end := self._calls.pass_over(name and loggable_name(name)):
                    self._end_early(end)
                return f"passed over {reason}"
            case Violation(error=error, reason=reason):
                if not self.over:
                    self._violate(error)
                return f"failure {reason}"

    def _emit_in_words(self, words: str, name: str | None, call: StructuredCall) -> None:
        """Emit a refused call of the backend's as text, unless text after a call would end the turn, or is dropped."""
        if self._calls.is_arriving_as(call.key) and self._calls.break_off():
            self._interrupt()
        if self.state == self.state_calling and self._text_gap is None:
            return
        self._report.warnings.append(entry(CALL_AS_TEXT, name and loggable_name(name)))
        self.state(f"\n\n{words}" if self.state == self.state_speaking else words)

    def _call(self, call: Call, structured: StructuredCall | None) -> bool:
        """Emit a call; return whether it was made."""
        self._parting.called()
        outcome = self._calls.make(call, structured.key if structured else None)
        if outcome.made:
            self._gap.take()
            self.state = self.state_calling
        if outcome.end:
            self._end_early(outcome.end)
        self._after_call(broke=outcome.broke)
        return outcome.made

    def _end_block(self) -> None:
        if self._calls.has_block:
            self._after_call(broke=self._calls.end_block())

    def _after_call(self, *, broke: bool) -> None:
        """Continue behind a call. One that ``broke`` after it was announced interrupts the text like any item."""
        if broke:
            self._interrupt()
        for call in self._calls.take_postponed():
            if not self.over:
                self._structured(call)

    @property
    def _may_ask(self) -> bool:
        """Whether the model can be asked for another call: not beside an announced one, and not for one too many."""
        return not (self._calls.is_open or self._calls.broken or self._calls.is_spent)

    @property
    def _text_gap(self) -> Gap | None:
        """The whitespace that goes with the text which follows; None if that text is dropped (rule 2)."""
        drops = self._plan.stops_after_tools or self._plan.policy.suppress_tail_after_tools
        return None if drops and self.state == self.state_calling else self._gap

    def _ask_again(self, verdict: Verdict) -> bool:
        """End the turn if the verdict is a fault that the model can be asked to mend; return whether it is."""
        if self.over or not self._may_ask or not self.faults.broken(verdict, self._text_gap):
            return False
        self.cut = True
        self._end(None)
        return True

    def _violate(self, error: ApiError) -> None:
        self._end_block()
        if self.over:
            return
        if self._plan.policy.strict_policy == "message":
            self._calls.emit(TextDelta(error.message, self._choice))
            self._end_early("strict failure")
        else:
            self._calls.emit(Failed(error))
            self.cut = True
            self._end(None)
