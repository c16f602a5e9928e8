from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from mitmproxy.test import tflow
from toolsim.core.policy import Policy
from toolsim.proxy.metadata import NOTE, REPORT, is_recorded, is_stored, policy_as_dict, recorded_policy

POLICY = replace(Policy(), tool_allowlist=frozenset({"b", "a"}), tool_block_max=2, output_mode="obsidian-xml")


def test_policy_survives_a_round_trip() -> None:
    """A recording contains the policy values that differ from the defaults, and a replay restores them."""
    recorded = policy_as_dict(POLICY)
    assert recorded == {"tool_allowlist": ["a", "b"], "tool_block_max": 2, "output_mode": "obsidian-xml"}
    policy_as_dict(POLICY)["tool_allowlist"].append("of another flow")
    assert policy_as_dict(POLICY) == recorded
    flow = tflow.tflow()
    flow.metadata[NOTE] = {"side": "backend", "options": recorded}
    assert recorded_policy(flow, Policy(), ()) == POLICY


def test_explicit_option_overrides_the_recorded_one() -> None:
    """An explicitly set option takes precedence over the value in the recording."""
    flow = tflow.tflow()
    flow.metadata[NOTE] = {"side": "backend", "options": policy_as_dict(POLICY)}
    by_hand = Policy(tool_block_max=5)
    assert recorded_policy(flow, by_hand, ["tool_block_max"]) == replace(POLICY, tool_block_max=5)


def test_unknown_policy_fields_are_ignored() -> None:
    """Unknown fields in a recorded policy are ignored, as are values of the wrong type."""
    flow = tflow.tflow()
    flow.metadata[NOTE] = {"side": "backend", "options": {"tool_block_max": "x", "gone": 1}}
    assert recorded_policy(flow, POLICY, ()) == Policy()
    assert is_recorded(flow)
    assert not is_recorded(tflow.tflow())


@pytest.mark.parametrize(
    ("recorded", "policy"),
    [
        ({"fix_empty_final": True}, Policy(fix_empty_final="on")),
        ({"fix_empty_final": True, "fix_empty_final_disable_tools": False}, Policy(fix_empty_final="with_tools")),
        ({"max_tool_args_bytes": 5, "max_tool_output_bytes": 5}, Policy(max_tool_bytes=5)),
        ({"tool_use_mode": "relaxed", "fallback_retry_count": 1}, Policy(tool_use_mode="relaxed")),
    ],
)
def test_earlier_field_names_are_converted(recorded: dict[str, Any], policy: Policy) -> None:
    """Field names from earlier versions in a recorded policy are converted to the current options."""
    flow = tflow.tflow()
    flow.metadata[NOTE] = {"side": "backend", "options": recorded}
    assert recorded_policy(flow, Policy(), ()) == policy


def test_stored_flows_are_recognized() -> None:
    """A flow counts as stored if it was read from a file and the addon has not processed it."""
    flow = tflow.tflow()
    flow.live = True
    assert not is_stored(flow)
    flow.live = False
    assert is_stored(flow)
    flow.metadata[REPORT] = {}
    assert not is_stored(flow)
