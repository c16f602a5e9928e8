"""Which parsers of a model's text a plan requires, from the innermost one to the outermost."""

from __future__ import annotations

from toolsimlib.plan import Plan
from toolsimlib.response.answer_format import HeldAnswer
from toolsimlib.response.broken_call import BrokenCalls
from toolsimlib.response.continuation import Continuation
from toolsimlib.response.judge import Judge
from toolsimlib.response.pieces import Parser
from toolsimlib.response.preview import announces_early
from toolsimlib.response.quotation import Quotation
from toolsimlib.response.reasoned_calls import ReasonedCalls
from toolsimlib.response.sentinel import Sentinel
from toolsimlib.response.untagged import Untagged
from toolsimlib.response.verdict import ANSWER_MISMATCH, MALFORMED_JSON

# The quotes, the name and the escapes around the arguments; they are not counted as arguments.
_HEADER_BYTES = 4096


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
        count_lost=judge.count_lost,
    )
    tagged = Quotation(sentinel)
    parser: Parser = tagged
    if _has_untagged(plan):
        parser = Untagged(tagged, judge, limit=limit, repair=plan.policy.repair == "safe")
        if MALFORMED_JSON in plan.asks:
            parser = BrokenCalls(parser, plan, judge, limit)
    if judge.answer_format is not None and ANSWER_MISMATCH in plan.asks:
        parser = HeldAnswer(parser, judge.answer_format, limit)
    if plan.begun:
        parser = Continuation(parser, plan.begun)
    return parser


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
    # A backend that enforces calls writes them untagged.
    return plan.constraint is not None or plan.policy.untagged != "off"
