"""Builds the parser for the text of one choice, as its plan requires."""

from __future__ import annotations

from toolsimlib.plan import Plan
from toolsimlib.response.broken_call import BrokenCalls
from toolsimlib.response.judge import Judge
from toolsimlib.response.preview import announces_early
from toolsimlib.response.sentinel import Sentinel
from toolsimlib.response.untagged import Untagged
from toolsimlib.response.verdict import MALFORMED_JSON

# The quotes, the name and the escapes around the arguments; they are not counted as arguments.
_HEADER_BYTES = 4096


def parser_for(plan: Plan, judge: Judge) -> Sentinel | Untagged | BrokenCalls | None:
    """Return the parser for the plan, None if no tools are on offer: then all text is text."""
    if not plan.tools:
        return None
    policy = plan.policy
    limit = policy.max_tool_args_bytes + _HEADER_BYTES
    # If the client asked for JSON, JSON is the answer; a backend that enforces calls writes them untagged.
    untagged = plan.constraint is not None or (policy.untagged == "on" and plan.answer_format is None)
    sentinel = Sentinel(
        policy.sentinel,
        use_tool=policy.use_tool,
        limit=limit,
        fragments=announces_early(plan),
        foreign=untagged,
        unread=judge.count_unread,
    )
    if not untagged:
        return sentinel
    parser = Untagged(sentinel, judge, limit=limit, repair=policy.repair == "safe")
    return BrokenCalls(parser, plan, judge, limit) if MALFORMED_JSON in plan.asks else parser
