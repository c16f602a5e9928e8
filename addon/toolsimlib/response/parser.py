"""What every parser of a model's text offers, and which of them a plan requires."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from toolsimlib.plan import Plan
from toolsimlib.response.broken_call import BrokenCall, BrokenCalls
from toolsimlib.response.judge import Judge
from toolsimlib.response.preview import announces_early
from toolsimlib.response.quotation import Quotation
from toolsimlib.response.reasoned_calls import ReasonedCalls
from toolsimlib.response.sentinel import Sentinel
from toolsimlib.response.untagged import Piece, Untagged
from toolsimlib.response.verdict import MALFORMED_JSON

# The quotes, the name and the escapes around the arguments; they are not counted as arguments.
_HEADER_BYTES = 4096


class Parser(Protocol):
    """Finds calls in a text that arrives in pieces. What it returns adds up to the text."""

    @property
    def in_block(self) -> bool:
        """Whether text is being held back because it may be a call."""

    @property
    def open_size(self) -> int:
        """How many characters of the open tagged block have arrived, 0 if none is open."""

    def feed(self, text: str) -> Sequence[Piece]:
        """Return what ``text`` completes."""

    def release(self) -> Sequence[Piece]:
        """Return what is held back only while the answer has nothing but text: now it has more."""

    def finish(self, *, cut: bool = False) -> Sequence[Piece | BrokenCall]:
        """Return what is left at the end of the text. Nothing may be fed after it.

        ``cut``: the text is known not to be all that the model would have written.
        """


def parser_for(plan: Plan, judge: Judge) -> Parser | None:
    """Return the parser for the plan, None if no tools are on offer: then all text is text."""
    if not plan.tools:
        return None
    limit = _limit(plan)
    sentinel = Sentinel(
        plan.policy.sentinel,
        use_tool=plan.policy.use_tool,
        limit=limit,
        fragments=announces_early(plan),
        foreign=_has_untagged(plan),
        unread=judge.count_unread,
    )
    tagged = Quotation(sentinel)
    if not _has_untagged(plan):
        return tagged
    parser = Untagged(tagged, judge, limit=limit, repair=plan.policy.repair == "safe")
    return BrokenCalls(parser, plan, judge, limit) if MALFORMED_JSON in plan.asks else parser


def reasoned_calls_for(plan: Plan) -> ReasonedCalls | None:
    """Return the parser for the reasoning of an answer, None if no tools are on offer or it has several choices."""
    if not plan.tools or plan.choices > 1:
        return None
    policy = plan.policy
    return ReasonedCalls(
        Quotation(Sentinel(policy.sentinel, use_tool=policy.use_tool, limit=_limit(plan), foreign=_has_untagged(plan)))
    )


def _limit(plan: Plan) -> int:
    return plan.policy.max_tool_args_bytes + _HEADER_BYTES


def _has_untagged(plan: Plan) -> bool:
    # If the client asked for JSON, JSON is the answer; a backend that enforces calls writes them untagged.
    return plan.constraint is not None or (plan.policy.untagged != "off" and plan.answer_format is None)
