"""What the values of a plan do besides holding data."""

from dataclasses import fields, replace

import pytest
from toolsimlib.plan import HeldCatalogue, Plan, Policy, Tool, varied


def test_a_policy_is_found_by_all_of_its_fields() -> None:
    """Even though its hash covers only a few of them."""
    changed = {"engine": "vllm", "retry": 3, "manifest": "calls", "tool_denylist": frozenset("a")}
    policies = [Policy(), *(replace(Policy(), **{name: value}) for name, value in changed.items())]
    assert len(set(policies)) == len(policies)
    assert set(policies) == {replace(policy) for policy in policies}
    assert varied(Policy(), engine="vllm") is varied(Policy(), engine="vllm")
    assert varied(Policy(retry=1), engine="vllm").retry == 1


@pytest.mark.parametrize("held", [None, HeldCatalogue("digest")])
def test_a_plan_with_the_catalogue_that_is_held(held: HeldCatalogue | None) -> None:
    """All other fields stay."""
    plan = Plan("chat", "responses", tools=(Tool("a", "a"),), policy=Policy(retry=2), begun="begun", first_number=7)
    for was_held in (False, True):
        assert plan.with_held(held, was_held=was_held) == replace(plan, held=held, was_held=was_held)
    assert [field.name for field in fields(Plan)][-2:] == ["held", "was_held"]
