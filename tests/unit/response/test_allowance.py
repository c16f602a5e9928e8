from __future__ import annotations

import pytest
from toolsimlib.plan import AnswerForm, Plan, Policy
from toolsimlib.response.allowance import Allowance


@pytest.mark.parametrize(
    ("plan", "limit"),
    [
        (Plan("chat", "chat"), 0),
        (Plan("chat", "chat", policy=Policy(tool_block_max=3)), 3),
        (Plan("chat", "chat", one_call=True, policy=Policy(tool_block_max=3)), 1),
        (Plan("chat", "chat", AnswerForm(legacy_functions=True)), 1),
    ],
)
def test_the_limit(plan: Plan, limit: int) -> None:
    """The smallest of the client's limit, the operator's, and that of the legacy form; 0 means none."""
    allowance = Allowance(plan)
    assert allowance.limit == limit
    for _ in range(limit or 100):
        assert not allowance.is_spent
        allowance.made += 1
    assert allowance.is_spent == bool(limit)


def test_a_call_in_both_kinds_is_one() -> None:
    """A call as text and as a structured call is one; the operator may want every repetition dropped."""
    once, never = Allowance(Plan("chat", "chat")), Allowance(Plan("chat", "chat", policy=Policy(tool_block_dedup=True)))
    kinds = (False, False, True)
    assert [once.repeats("f", "{}", structured=kind) for kind in kinds] == [False, False, True]
    assert [never.repeats("f", "{}", structured=kind) for kind in kinds] == [False, True, True]
