"""The turn: what the backend says in one answer, ordered into what the client is told.

::

    text ─▶ sentinel ─▶ judge ─▶ speaking ──call──▶ calling ──other text──▶ (stop after tools) over
                                    ▲                  │
                                    └────other text────┘ (otherwise)

Each choice has a turn of its own; the answer holds them together: ids count over all of them, and it ends once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Literal

from toolsimlib.errors import ApiError
from toolsimlib.events import (
    BackendEvent,
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Closed,
    Counted,
    Ended,
    Failed,
    Finished,
    FinishReason,
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
from toolsimlib.response.judge import Call, Judge, Rejected, Verdict, Violation
from toolsimlib.response.preview import Preview
from toolsimlib.response.sentinel import Block, Fragment, Oversize, Piece, Sentinel
from toolsimlib.response.use_tool import use_tool_text

# The quotes, the name and the escapes around the arguments; they are not counted as arguments.
_BLOCK_HEADER_BYTES = 4096
# White space beyond this (characters) is no gap beside a block any more: a model that is stuck writes it for ever.
_MOST_BLANK = 65_536
# Blocks told of in the report: more are nothing that a person would read.
_MOST_BLOCKS = 1000


class Turn:
    """One choice of an answer.

    ``over`` says that it takes nothing more, ``cut`` that it ended before the backend did.
    """

    def __init__(self, plan: Plan, report: Report, judge: Judge, numbers: Iterator[int], choice: int = 0) -> None:
        self._plan = plan
        self._report = report
        self._judge = judge
        self._numbers = numbers
        self._choice = choice
        self._sentinel: Sentinel | None = None
        if plan.tools:
            self._sentinel = Sentinel(
                plan.policy.sentinel,
                use_tool=plan.policy.use_tool,
                limit=plan.policy.max_tool_args_bytes + _BLOCK_HEADER_BYTES,
                fragments=_streams_arguments(plan),
            )
        self._preview: Preview | None = None
        self._read = 0  # Characters of the text that the pieces so far stand for.
        self._half = ""  # The first half of a surrogate pair that the backend split.
        self._blank: list[str] = []  # White space that will be said only if other text follows.
        self._blank_length = 0
        self._speaking = False
        self._calls = 0
        self._seen: set[tuple[str, str]] = set()
        self._broken = False
        self._out: list[ClientEvent] = []
        self.over = False
        self.cut = False
        self.reason: FinishReason | Literal["tool_calls"] | None = None

    def __repr__(self) -> str:
        state = "over" if self.over else "speaking" if self._speaking else "calling" if self._calls else "waiting"
        return f"Turn({state}, {self._calls} calls, {self._sentinel})"

    @property
    def buffering(self) -> bool:
        """Whether the client hears nothing of what the backend says: it is held back, or dropped as a tail."""
        in_block = self._sentinel is not None and self._sentinel.in_block
        dropping = self._calls > 0 and not self._speaking and self._plan.policy.suppress_tail_after_tools
        return not self.over and (in_block or dropping or bool(self._blank))

    def text(self, text: str) -> list[ClientEvent]:
        """Take a piece of the backend's text."""
        if self.over:
            return []
        if self._half:
            text = (self._half + text).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
            self._half = ""
        if "\ud800" <= text[-1] <= "\udbff":
            self._half, text = text[-1], text[:-1]
        if self._sentinel is None:
            self._say(text)
        else:
            for piece in self._sentinel.feed(text):
                self._piece(piece)
            if self._sentinel.in_block and self._is_full and self._plan.stops_after_tools:
                # Whatever becomes of this block, call or text, the turn ends at it.
                self._end_early(f"more than {self._cap} calls")
        return self._flush()

    def other(self, event: RefusalDelta | ReasoningDelta | PassThrough) -> list[ClientEvent]:
        """Take what is neither text nor call. After a call a refusal ends the turn as text does."""
        if self.over:
            return []
        if isinstance(event, RefusalDelta) and self._calls and self._plan.stops_after_tools:
            self._end_early("refusal after tools")
        if not self.over:
            self._out.append(event)
            self._speaking = False
        return self._flush()

    def structured(self, call: StructuredCall) -> list[ClientEvent]:
        """Take a call that the backend emitted as one."""
        if self.over:
            return []
        for verdict in self._judge.structured(call):
            self._verdict(verdict)
        return self._flush()

    def finish(self, reason: FinishReason) -> list[ClientEvent]:
        """End the choice, for the backend's own reason. What was held back is decided now."""
        if self.over:
            return []
        self._drain()
        if not self.over:
            self.over = True
            self.reason = "length" if self._broken else "tool_calls" if self._calls else reason
        return self._flush()

    def salvage(self) -> list[ClientEvent]:
        """End the choice because the answer failed: what was held back is given out, a second failure is not."""
        if self.over:
            return []
        self._drain()
        self.over = True
        return [event for event in self._flush() if not isinstance(event, Failed)]

    def _drain(self) -> None:
        """Decide over all that was held back."""
        pieces: list[Piece] = []
        if self._sentinel is None:
            pieces = [self._half] if self._half else []
        else:
            pieces = self._sentinel.feed(self._half) + self._sentinel.finish()
        self._half = ""
        for piece in pieces:
            self._piece(piece)
        self._break_preview()
        # White space is all that was said: then it is the answer. Beside a call it is nothing.
        if self._blank and not self._calls:
            self._out.append(TextDelta("".join(self._blank), self._choice))
        self._drop_blank()

    def _flush(self) -> list[ClientEvent]:
        out, self._out = self._out, []
        return out

    def _piece(self, piece: Piece) -> None:
        if self.over:
            return
        match piece:
            case str():
                self._read += len(piece)
                self._break_preview()
                self._say(piece)
            case Fragment():
                self._fragment(piece.text)
            case Block() | Oversize():
                self._block(piece)
                self._break_preview()

    def _block(self, block: Block | Oversize) -> None:
        repaired = len(self._report.repairs)
        verdicts = self._judge.block(block) if isinstance(block, Block) else [self._judge.oversize(block.raw)]
        outcomes: list[str] = []
        for verdict in verdicts:
            made = len(self._report.calls)
            self._verdict(verdict)
            outcomes.append(_outcome(verdict, made=len(self._report.calls) > made))
        start, self._read = self._read, self._read + len(block.raw)
        if len(self._report.blocks) < _MOST_BLOCKS:
            entry = {"choice": self._choice, "start": start, "end": self._read, "verdicts": outcomes}
            self._report.blocks.append(entry | {"repairs": self._report.repairs[repaired:]})

    def _verdict(self, verdict: Verdict) -> None:
        if self.over:
            return
        match verdict:
            case Call():
                self._call(verdict)
            case Rejected():
                self._break_preview()
                self._say(verdict.raw)
            case Violation():
                self._violate(verdict.error)

    # -- text

    def _say(self, text: str) -> None:
        if not text:
            return
        if not self._speaking:
            if text.isspace() and self._blank_length + len(text) <= _MOST_BLANK:
                self._blank.append(text)
                self._blank_length += len(text)
                return
            if self._calls and self._plan.stops_after_tools:
                self._end_early("text after tools")
                return
            if self._calls and self._plan.policy.suppress_tail_after_tools:
                self._drop_blank()
                return
            if self._blank:
                text = "".join([*self._blank, text])
                self._drop_blank()
            self._speaking = True
        self._out.append(TextDelta(text, self._choice))

    def _drop_blank(self) -> None:
        self._blank = []
        self._blank_length = 0

    # -- calls

    def _call(self, call: Call) -> None:
        if not self._admit(call.tool.name, call.arguments):
            return
        preview = self._preview
        if preview is not None and preview.announced:
            rest = preview.rest(call.tool.name, call.arguments)
            if rest is None:
                # The judge passed something else than was announced, a repaired text perhaps: too late for it.
                self._break_preview()
            else:
                self._preview = None
                if rest:
                    self._out.append(CallDelta(rest, self._choice))
                self._out.append(CallEnded("completed", self._choice))
                self._count(call.tool.name)
            return
        if self._plan.policy.output_mode == "obsidian-xml":
            gap = self._plan.policy.tool_block_delimiter if self._calls or self._speaking else ""
            self._out.append(TextDelta(gap + use_tool_text(call.tool, call.arguments), self._choice))
        tool = call.tool
        self._out.append(CallStarted(next(self._numbers), tool.wire_name, tool.kind, tool.namespace, self._choice))
        if call.arguments:
            self._out.append(CallDelta(call.arguments, self._choice))
        self._out.append(CallEnded("completed", self._choice))
        self._count(tool.name)

    def _admit(self, name: str, arguments: str) -> bool:
        """Decide whether one more call may be made; ends or passes over what may not."""
        if self._is_full:
            why = f"more than {self._cap} calls"
            if self._plan.stops_after_tools:
                self._end_early(why)
            self._report.tool_cutoff = self._report.tool_cutoff or why
            return False
        if self._plan.policy.tool_block_dedup:
            if (name, arguments) in self._seen:
                self._report.warnings.append(f"DUPLICATE_CALL {name}")
                return False
            self._seen.add((name, arguments))
        return True

    @property
    def _cap(self) -> int:
        """How many calls the turn may hold; 0 = any number."""
        if self._plan.one_call or self._plan.legacy_functions:
            return 1
        return self._plan.policy.tool_block_max

    @property
    def _is_full(self) -> bool:
        return 0 < self._cap <= self._calls

    def _count(self, name: str) -> None:
        self._calls += 1
        self._report.calls.append(name)
        self._drop_blank()
        self._speaking = False
        if self._plan.stops_after_tools and self._plan.policy.stop_after_tools_mode == "first":
            self._end_early("first call")

    def _end_early(self, why: str) -> None:
        """End the turn before the backend does: all that follows is dropped."""
        self._report.tool_cutoff = why
        self.over = True
        self.cut = True
        self.reason = "tool_calls" if self._calls else "stop"

    def _violate(self, error: ApiError) -> None:
        self._break_preview()
        if self._plan.policy.strict_policy == "message":
            self._speaking = True
            self._out.append(TextDelta(error.message, self._choice))
            self._end_early("strict failure")
        else:
            self.over = True
            self.cut = True
            self._out.append(Failed(error))

    # -- arguments as they arrive

    def _fragment(self, text: str) -> None:
        if self._preview is None:
            self._preview = Preview(self._plan.tools)
        preview = self._preview
        announced = preview.announced
        delta = preview.feed(text)
        if preview.tool is not None and not announced:
            if self._is_full:
                preview.give_up()
                return
            tool = preview.tool
            self._out.append(CallStarted(next(self._numbers), tool.wire_name, tool.kind, tool.namespace, self._choice))
        if delta:
            self._out.append(CallDelta(delta, self._choice))

    def _break_preview(self) -> None:
        """Forget the open block; if it was announced and no verdict ended it, it ends incomplete."""
        if self._preview is not None and self._preview.announced:
            self._out.append(CallEnded("incomplete", self._choice))
            self._broken = True
            self._speaking = False
        self._preview = None


def _outcome(verdict: Verdict, *, made: bool) -> str:
    """Return what became of a verdict, for the report."""
    match verdict:
        case Call(tool=tool):
            return f"call {tool.name}" if made else f"passed over {tool.name}"
        case Rejected(reason=reason):
            return f"text {reason}"
        case Violation(reason=reason):
            return f"failure {reason}"


def _streams_arguments(plan: Plan) -> bool:
    policy = plan.policy
    # What changes a call after it is whole (its XML beside it, dropping a twin) cannot announce it before.
    changes = policy.output_mode != "openai-json" or policy.tool_block_dedup
    return plan.stream and policy.stream_arguments == "incremental" and not changes


class Answer:
    """All choices of one answer: backend events in, client events out, one end."""

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
        """Whether the client hears nothing because a block is being held back."""
        return not self.done and any(turn.buffering for turn in self._turns.values())

    @property
    def cut(self) -> bool:
        """Whether the answer ended before the backend did, so that the backend should be stopped."""
        return self.done and any(turn.cut for turn in self._turns.values())

    def feed(self, event: BackendEvent) -> list[ClientEvent]:
        """Take one event of the backend. After the end everything is passed over."""
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
        """Take the end of the backend's bytes: without its terminator before it the answer has failed."""
        return self.fail(
            ApiError("The backend's stream ended before its answer was complete.", code="backend_truncated", status=502)
        )

    def fail(self, error: ApiError) -> list[ClientEvent]:
        """End the answer as failed; text that was held back comes first, since it is lost otherwise."""
        if self.done:
            return []
        self.done = True
        self._report.error = error.code or error.type
        self._report.truncated = error.code == "backend_truncated"
        tail = [event for turn in self._turns.values() for event in turn.salvage()]
        return [*tail, Failed(error)]

    def keep_alive(self) -> list[ClientEvent]:
        """Say that the answer lives, if the client hears nothing because a block is being held back."""
        return [KeepAlive()] if self.buffering else []

    def _turn(self, choice: int) -> Turn:
        turn = self._turns.get(choice)
        if turn is None:
            turn = self._turns[choice] = Turn(self._plan, self._report, self._judge, self._numbers, choice)
        return turn

    def _checked(self, events: list[ClientEvent]) -> list[ClientEvent]:
        """Look whether a turn has failed, or whether all have ended early."""
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
