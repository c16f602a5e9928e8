"""The calls with which a model ends its reasoning, instead of ending that first.

Qwen3.5 and Kimi K2, among others, now and then call without closing their thought. A server that separates reasoning
from text then has the call in the reasoning, and no text at all. So blocks in reasoning are text if

1. the reasoning ends with them: only whitespace stands behind or between them;
2. the answer holds nothing else but whitespace, no other text, call or item;
3. the backend ended it, and did not cut it off.

Everything else in reasoning is reasoning: a block that is followed by more of it is talk about a call. What may be such
a block is held back until it is known. Untagged calls in reasoning do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolsim.core.events import (
    BackendEvent,
    Closed,
    Counted,
    Finished,
    NextMessage,
    Opened,
    ReasoningDelta,
    TextDelta,
)
from toolsim.core.plan import Plan
from toolsim.response.pieces import BrokenCall, Parser, Piece
from toolsim.response.quotation import tagged_calls
from toolsim.response.thoughts import LastCalls, Thoughts

IN_REASONING = "CALL_IN_REASONING"
"""A warning: the text of the answer is what its reasoning ended with."""


class ReasonedCalls:
    """Takes the events of one choice, and returns those that stand for them; ``sentinel``: a new one for reasoning.

    ``is_over``: the events no longer change, and need not be taken. ``has_found``: reasoning has become text.
    """

    def __init__(self, sentinel: Parser) -> None:
        self._sentinel = sentinel
        self._like = ReasoningDelta("")  # The latest piece of reasoning.
        self._calls = LastCalls(takes_bare=True)
        self.is_over = False
        self.has_found = False

    def take(self, event: BackendEvent) -> list[BackendEvent]:
        """Take one event, while ``is_over`` is false."""
        match event:
            case ReasoningDelta():
                self._like = event
                return self._reasoning(self._sentinel.feed(event.text))
            case Opened() | Counted() | NextMessage():
                return [event]
            case TextDelta(text=text) if not text.strip():
                return [event]
            case Finished(reason="stop") | Closed():
                return [*self._end(cut=False), event]
        return [*self._end(cut=True), event]

    def _reasoning(self, pieces: Sequence[Piece | BrokenCall]) -> list[BackendEvent]:
        text = "".join(self._calls.take(pieces))
        return [replace(self._like, text=text)] if text else []

    def _end(self, *, cut: bool) -> list[BackendEvent]:
        """Return what was held back: as text, or as reasoning if the answer is ``cut`` off or has other content."""
        self.is_over = True
        events = self._reasoning(self._sentinel.finish(cut=cut))
        held = "".join(self._calls.as_text())
        self.has_found = bool(held) and not cut
        if held:
            events.append(TextDelta(held, self._like.choice) if self.has_found else replace(self._like, text=held))
        return events


def reasoned_calls_for(plan: Plan) -> ReasonedCalls | None:
    """Return the parser for the reasoning of an answer, None if no tools are on offer or it has several choices."""
    if not plan.tools or plan.choices != 1:
        return None
    return ReasonedCalls(Thoughts(tagged_calls(plan), lambda: tagged_calls(plan)))
