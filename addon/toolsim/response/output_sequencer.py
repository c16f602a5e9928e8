"""The output of one choice in the order in which the client receives it: text, other items, and calls.

Each state is a method that processes visible text. The transitions between states are:

    | state       | text              | call  | other item          | end   |
    |-------------|-------------------|-------|---------------------|-------|
    | before_text | text              | call  | before_text         | ended |
    | text        | text              | call  | before_text or call | ended |
    | call        | text, call, ended | call  | call                | ended |
    | ended       | ended             | ended | ended               | ended |

1. Whitespace next to a call does not count as text. Before the first text and after a call, whitespace is held back
   until other text follows.
2. The plan determines what happens to other text after a call: the text ends the turn (``stops_after_tools``), is
   dropped (``suppress_tail_after_tools``), or is emitted. If the backend is already sending another call, which would
   be lost if the turn ended, the text is dropped and the turn continues.
3. Any other item (reasoning, a refusal, an item of a built-in tool) interrupts the text. An item does not end the turn,
   except that a refusal counts as text under rule 2.
4. If an announced call ends as incomplete, it also interrupts the text, and the choice ends as cut off ("length").
5. An empty line separates the texts of two backend messages. The parser reads the empty line as text, so that a call
   that is an entire message is alone on its lines. Rule 1 applies to the empty line, too. A client that receives a list
   of items does not receive the empty line if other output separates the two texts, because the texts are then separate
   items. A chat message has only one text.
"""

from __future__ import annotations

from toolsim.core.events import EndReason, HostedEvent, ReasoningDelta, RefusalDelta, TextDelta
from toolsim.core.plan import Plan
from toolsim.core.report import Report
from toolsim.response.client_calls import ClientCalls
from toolsim.wire.apis import APIS

EMPTY_LINE = "\n\n"
"""The separator between the texts of two messages (rule 5)."""

_MAX_GAP = 65_536
"""Maximum amount of whitespace that is held back, in characters. Some models get stuck and write whitespace endlessly.
Additional whitespace is treated as text.
"""


class Gap:
    """Whitespace that is held back, and emitted only if other text follows (rule 1)."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def hold(self, text: str) -> bool:
        """Hold ``text`` back if it is whitespace; return whether it was held back."""
        if not text.isspace() or self._length + len(text) > _MAX_GAP:
            return False
        self.hold_mark(text)
        return True

    def hold_mark(self, mark: str) -> None:
        """Hold back ``mark``, the opening line of a code fence or a surplus marker. It is dropped if a call follows."""
        self._pieces.append(mark)
        self._length += len(mark)

    def take(self) -> str:
        """Return the held-back text, and clear it."""
        text = "".join(self._pieces)
        self._pieces = []
        self._length = 0
        return text


class OutputSequencer:
    """The output of one choice. Everything is emitted through ``calls``, which delays other output while a call is
    being streamed.
    """

    def __init__(self, plan: Plan, report: Report, calls: ClientCalls, choice: int) -> None:
        self._stops = plan.stops_after_tools
        self._drops = plan.policy.suppress_tail_after_tools
        # Whether a message in the client's API can contain only one text (rule 5).
        self._has_one_text = not APIS[plan.client].text_follows_calls
        self._report = report
        self._calls = calls
        self._choice = choice
        self._gap = Gap()
        self._has_spoken = False  # Whether the client has received any text.
        self._ended_in_text = False  # Whether a message ended with text, and nothing has been emitted since.
        self._has_called = False  # Whether the choice has a call, even one that waits for another call.
        self.calls_started = 0  # Number of calls that the backend has started to send but not completed.
        self.state = self.state_before_text
        self.has_ended = False  # Whether further input is ignored.
        self.is_cut = False  # Whether the choice ended before the backend had sent everything.
        self.reason: EndReason | None = None  # The reason why the choice ended. None after a failure or a fault.

    def __repr__(self) -> str:
        return f"OutputSequencer({self.state.__name__})"

    @property
    def is_in_text(self) -> bool:
        """Whether the last output was text."""
        return self.state == self.state_text

    @property
    def is_in_call(self) -> bool:
        """Whether the choice has a call, and no text after it."""
        return self.state == self.state_call

    @property
    def gap(self) -> Gap | None:
        """The whitespace before the next text. None if text would be dropped or would end the turn (rule 2)."""
        if self.is_in_call and (self._stops or self._drops):
            return None
        return self._gap

    # -- the states, which process text

    def state_before_text(self, text: str) -> None:
        """Process text if no text or call has been emitted, or if another item has interrupted the text (rule 3)."""
        if not self._gap.hold(text):
            self._speak(text)

    def state_text(self, text: str) -> None:
        """Emit text that directly follows other text."""
        self._calls.emit(TextDelta(text, self._choice))

    def state_call(self, text: str) -> None:
        """Process text after a call (rule 2)."""
        if self._gap.hold(text):
            return
        if self._stops:
            self._gap.take()
            self._stop("text after tools")
        elif self._drops:
            self._gap.take()
        else:
            self._speak(text)

    def state_ended(self, text: str) -> None:
        """Drop all text after the end of the turn."""

    def _speak(self, text: str) -> None:
        self._calls.emit(TextDelta(self._gap.take() + text, self._choice))
        self.state = self.state_text
        self._has_spoken = True
        self._ended_in_text = False

    # -- other events

    def item(self, event: RefusalDelta | ReasoningDelta | HostedEvent) -> None:
        """Emit an item that is neither text nor a call. A refusal after a call may end the turn instead (rule 3)."""
        if isinstance(event, RefusalDelta) and self._has_called and self._stops:
            self._stop("refusal after tools")
            return
        self._calls.emit(event)
        self.interrupt()

    def interrupt(self) -> None:
        """Record that the next text does not directly follow the previous text (rules 3 and 4)."""
        self.state = self.state_call if self._has_called else self.state_before_text

    def called(self, *, made: bool) -> None:
        """Record a call. ``made``: whether the client receives the call."""
        self._ended_in_text = False
        if made:
            self._has_called = True
            self._gap.take()
            self.state = self.state_call

    def mark(self, raw: str, *, opening: bool) -> None:
        """Process the line of a code fence around tagged blocks. Next to a call, the line is dropped like
        whitespace.
        """
        if opening:
            self.interrupt()
            self._gap.hold_mark(raw)
        elif not self.is_in_call:
            self.state(raw)

    def end_message(self) -> bool:
        """Process the end of a backend message. Return whether an empty line must follow in the text (rule 5)."""
        self._ended_in_text = self._ended_in_text or self.is_in_text
        self.interrupt()
        return self._ended_in_text or (self._has_one_text and self._has_spoken)

    # -- the end

    def end(self, reason: EndReason | None) -> None:
        """End the choice."""
        self._calls.break_off()
        # If the client cannot tell which call is incomplete, it must not run any of the calls.
        self.reason = "length" if self._calls.has_broken and reason is not None else reason
        self.state = self.state_ended
        self.has_ended = True

    def _stop(self, why: str) -> None:
        """End the turn because of output after a call, unless another call has started and would be lost (rule 2)."""
        if not self.calls_started:
            self.end_early(why)

    def end_early(self, why: str) -> None:
        """End the turn before the backend has sent everything. All further output is dropped."""
        self._report.tool_cutoff = why
        self.is_cut = True
        self.end("tool_calls" if self._calls.made else "stop")

    def fail(self) -> None:
        """End the choice because of a failure or a fault."""
        self.is_cut = True
        self.end(None)

    def end_of_text(self) -> None:
        """Process the end of the text. Held-back whitespace is emitted unless the choice has calls."""
        gap = self._gap.take()
        if gap and not self._calls.made and not self.has_ended:
            self._calls.emit(TextDelta(gap, self._choice))
