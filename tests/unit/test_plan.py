"""What the values of a plan do besides holding data."""

from dataclasses import replace

from toolsimlib.plan import Policy, varied


def test_a_policy_is_found_by_all_of_its_fields() -> None:
    """Even though its hash covers only a few of them."""
    changed = {"engine": "vllm", "retry": 3, "manifest": "calls", "tool_denylist": frozenset("a")}
    policies = [Policy(), *(replace(Policy(), **{name: value}) for name, value in changed.items())]
    assert len(set(policies)) == len(policies)
    assert set(policies) == {replace(policy) for policy in policies}
    assert varied(Policy(), engine="vllm") is varied(Policy(), engine="vllm")
    assert varied(Policy(retry=1), engine="vllm").retry == 1
