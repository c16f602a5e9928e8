"""What a flow's metadata says of it, in plain data: the report of an exchange, and what a recording was made with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from mitmproxy.http import HTTPFlow

from toolsimlib.plan import Policy

REPORT = "toolsim"
"""The key of the report, on every finished exchange of ours."""
NOTE = "toolsim_capture"
"""The key of what a recording says of itself: ``side``, ``options`` and more."""


def policy_as_dict(policy: Policy) -> dict[str, Any]:
    """Return what of a policy is not at its default, as a flow's metadata may hold it."""
    default = Policy()
    said = {field.name: getattr(policy, field.name) for field in fields(policy)}
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in said.items()
        if value != getattr(default, name)
    }


def is_stored(flow: HTTPFlow) -> bool:
    """Tell whether a flow was read from a file, with an answer that the addon has not worked on."""
    return not flow.live and REPORT not in flow.metadata


def recorded_policy(flow: HTTPFlow, policy: Policy, by_hand: Iterable[str]) -> Policy:
    """Return the policy under which a stored exchange was recorded; ``by_hand``: fields that ``policy`` decides."""
    note = flow.metadata.get(NOTE, {})
    if "side" not in note:
        return policy
    default, decided = Policy(), set(by_hand)
    said: dict[str, Any] = {field: getattr(policy, field) for field in decided}
    for field, value in note["options"].items():
        value = frozenset(value) if isinstance(value, list) else value
        if field not in decided and type(value) is type(getattr(default, field, None)):
            said[field] = value
    return replace(default, **said)
