"""The calls of one choice, as its client hears of them: each announced, its arguments, its end, one after the other.

1. A call that the judge has passed is told whole, unless it is one too many, or repeats another (``allowance``). One
   too many is dropped; it ends the turn where other text behind a call would.
2. With incremental arguments a call is announced before it is whole, if it would not be one too many: from a block that
   is still open, as soon as its header is clean (``preview``), or while the backend is emitting it as a call.
3. What was announced stays announced. If the judge passes what goes on where the client was left, the rest is told. If
   it passes anything else, or nothing, the call ends as incomplete, and the choice ends as one that was cut.
4. While a call that the backend emits is announced, no other is: the client hears of one at a time, and of whatever
   is said meanwhile behind it. It is not announced if it may repeat one that came as text.
5. In the output mode obsidian-xml a call is followed by its text, so that whoever stops at the first text has heard of
   the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolsimlib.events import CallDelta, CallEnded, CallStarted, ClientEvent, StructuredDelta, TextDelta
from toolsimlib.plan import Plan, Tool
from toolsimlib.report import Report, entry
from toolsimlib.response.allowance import Allowance
from toolsimlib.response.preview import Preview, as_block
from toolsimlib.response.use_tool import use_tool_text
from toolsimlib.response.verdict import Call


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call: the client's events, whether it was made, and why the turn ends at it, "" if it goes on.

    Events of a call that was not made end one that was announced (rule 3).
    """

    events: Sequence[ClientEvent] = ()
    made: bool = False
    end: str = ""


class ClientCalls:
    """The calls of one choice. ``broken``: whether one of them ended incomplete.

    ``preview``: what is read of the block that is open, None where nothing is.
    """

    def __init__(self, plan: Plan, report: Report, numbers: Iterator[int], choice: int) -> None:
        self._plan = plan
        self._report = report
        self._numbers = numbers
        self._choice = choice
        self._allowance = Allowance(plan)
        self.preview: Preview | None = None
        self._arriving: Preview | None = None  # Of the call that the backend is emitting, if it was announced.
        self._key = ""
        self._held_back: list[ClientEvent] = []
        self.broken = False

    @property
    def made(self) -> int:
        """How many calls were told whole."""
        return self._allowance.made

    @property
    def is_spent(self) -> bool:
        """Whether no further call may be made."""
        return self._allowance.is_spent

    @property
    def is_announced(self) -> bool:
        """Whether the client has heard of the call that is open."""
        return self.preview is not None and self.preview.announced

    @property
    def is_arriving(self) -> bool:
        """Whether the client has heard of a call that the backend is still emitting."""
        return self._arriving is not None

    def is_arriving_as(self, key: str) -> bool:
        """Whether that call is the one whose pieces have this ``key``."""
        return self._arriving is not None and key == self._key

    def make(self, call: Call, *, behind_text: bool, structured: bool = False, key: str = "") -> Outcome:
        """Tell the client of a call. ``behind_text``: text was the last that was told.

        ``structured``: the backend emitted it as one; ``key``: the one that its pieces had, if there were any.
        """
        if self.is_spent:
            return Outcome(end=self.pass_over(call.tool.name))
        if self._allowance.repeats(call.tool.name, call.arguments, structured=structured):
            self._report.warnings.append(entry("DUPLICATE_CALL", call.tool.name))
            return Outcome()
        events: list[ClientEvent] = []
        rest: str | None = call.arguments
        has_arrived = self.is_arriving_as(key)
        announced = self._arriving if has_arrived else self.preview
        if announced is not None and announced.announced:
            rest = announced.rest(call.tool.name, call.arguments)
            if rest is None:
                # The judge passed something else than was announced, a repaired text perhaps: too late for it.
                return Outcome(self.break_off_arriving() if has_arrived else self.break_off())
            if has_arrived:
                self._arriving = None
            else:
                self.preview = None
        else:
            events.append(self._started(call.tool))
        if rest:
            events.append(CallDelta(rest, self._choice))
        events.append(CallEnded("completed", self._choice))
        if self._plan.policy.output_mode == "obsidian-xml":
            gap = self._plan.policy.tool_block_delimiter if self.made or behind_text else ""
            events.append(TextDelta(gap + use_tool_text(call.tool, call.arguments), self._choice))
        if has_arrived:
            events += self._take_held_back()
        self._report.calls.append(call.tool.name)
        self._allowance.made += 1
        first_ends = self._plan.stops_after_tools and self._plan.policy.stop_after_tools_mode == "first"
        return Outcome(events, made=True, end="first call" if first_ends else "")

    def pass_over(self, name: str | None = None) -> str:
        """Drop a call that is one too many; return why the turn ends there, "" if it goes on."""
        stops = self._plan.stops_after_tools
        self._report.drop_call(None if stops else name)
        return f"more than {self._allowance.limit} calls" if stops else ""

    def fragment(self, text: str) -> list[ClientEvent]:
        """Take a piece of the open block's body (rule 2)."""
        preview = self.preview
        if preview is None:
            preview = self.preview = Preview(self._plan.tools)
        was_announced = preview.announced
        delta = preview.feed(text)
        events: list[ClientEvent] = []
        if not was_announced and preview.tool is not None:
            if self.is_spent or self.is_arriving:
                preview.give_up()
                return []
            events.append(self._started(preview.tool))
        if delta:
            events.append(CallDelta(delta, self._choice))
        return events

    def arriving(self, delta: StructuredDelta) -> list[ClientEvent]:
        """Take a further piece of the call that the backend is emitting."""
        text = self._arriving.feed(delta.text) if self._arriving is not None and delta.key == self._key else ""
        return [CallDelta(text, self._choice)] if text else []

    def arrives(self, delta: StructuredDelta, tool: Tool) -> list[ClientEvent]:
        """Take the first piece of such a call, of ``tool``, and announce it if it may be (rule 4)."""
        if self.is_arriving or self.is_announced or self.is_spent or self._allowance.may_be_repeated:
            return []
        preview = Preview([tool])
        text = preview.feed(as_block(tool.name, delta.text))
        if not preview.announced:
            return []
        self._arriving, self._key = preview, delta.key
        return [self._started(tool), CallDelta(text, self._choice)]

    def break_off_arriving(self) -> list[ClientEvent]:
        """End the call that the backend is emitting, if it was announced and is not over, as incomplete."""
        if self._arriving is None:
            return []
        self._arriving = None
        self.broken = True
        return [CallEnded("incomplete", self._choice), *self._take_held_back()]

    @property
    def holds_back(self) -> bool:
        """Whether something waits for the end of the call that is arriving."""
        return bool(self._held_back)

    def hold_back(self, events: Sequence[ClientEvent]) -> None:
        """Tell ``events`` behind the call that is arriving."""
        self._held_back += events

    def _take_held_back(self) -> list[ClientEvent]:
        events, self._held_back = self._held_back, []
        return events

    def break_off(self) -> list[ClientEvent]:
        """Forget the open block; if it was announced and no verdict ended it, it ends incomplete."""
        preview, self.preview = self.preview, None
        if preview is None or not preview.announced:
            return []
        self.broken = True
        return [CallEnded("incomplete", self._choice)]

    def _started(self, tool: Tool) -> CallStarted:
        return CallStarted(next(self._numbers), tool.wire_name, tool.kind, tool.namespace, self._choice)
