"""What the values that say what was decided do beyond holding it."""

from dataclasses import fields, replace

import pytest
from toolsimlib.plan import HeldCatalogue, Plan, Policy, Tool, varied


def test_a_policy_is_found_by_all_of_its_fields() -> None:
    """Though its hash is of a few alone."""
    changed = {"engine": "vllm", "retry": 3, "manifest": "calls", "tool_denylist": frozenset("a")}
    policies = [Policy(), *(replace(Policy(), **{name: value}) for name, value in changed.items())]
    assert len(set(policies)) == len(policies)
    assert set(policies) == {replace(each) for each in policies}
    assert varied(Policy(), engine="vllm") is varied(Policy(), engine="vllm")
    assert varied(Policy(retry=1), engine="vllm").retry == 1


@pytest.mark.parametrize("told", [None, HeldCatalogue("digest")])
def test_a_plan_with_what_was_told(told: HeldCatalogue | None) -> None:
    """All else stays."""
    plan = Plan("chat", "responses", tools=(Tool("a", "a"),), policy=Policy(retry=2), begun="begun", first_number=7)
    for is_told in (False, True):
        assert plan.with_told(told, is_told=is_told) == replace(plan, told=told, is_told=is_told)
    assert [each.name for each in fields(Plan)][-2:] == ["told", "is_told"]
