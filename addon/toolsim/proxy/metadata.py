"""The metadata that toolsim stores in a flow, as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from mitmproxy.http import HTTPFlow

from toolsim.core.custom_forms import read_forms
from toolsim.core.policy import Policy
from toolsim.proxy.legacy import current_field
from toolsim.wire.apis import RESPONSES

REPORT = "toolsim"
"""The metadata key for the report. Every finished exchange that toolsim handled has a report in its flow."""
CLIENT_URL = "toolsim_client_url"
"""The metadata key for the URL that the client requested. The flow itself has the backend's URL."""
SENT = "toolsim_sent"
"""The metadata key for a digest of the body that was sent in place of the client's body."""
PAGE = "toolsim_page"
"""The metadata key for the name of the built-in page that answered a flow."""
SOCKET = "toolsim_socket"
"""The metadata key that marks the flow of a WebSocket connection to the local server."""
REFUSED = "toolsim_refused"
"""The metadata key for the reason why a request was refused."""
COMMENT = "toolsim_comment"
"""The metadata key for the comment that toolsim set on a flow. Any other comment was written by a person."""
NOTE = "toolsim_capture"
"""The metadata key for the description of a recording.

The description includes the ``options`` that were in effect. In a recording, it also includes the ``side`` that the
flow represents, which is "client" or "backend".
"""


def policy_as_dict(policy: Policy) -> dict[str, Any]:
    """Return the fields of a policy that differ from their defaults, as plain data for a flow's metadata."""
    default = Policy()
    # The known profiles are omitted, because only the applied profile has an effect. Its values are in other fields.
    names = [field.name for field in fields(policy) if field.name != "known_profiles"]
    decided = {name: value for name in names if (value := getattr(policy, name)) != getattr(default, name)}
    plain = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in decided.items()}
    return plain | ({"forms": [form.table() for form in policy.forms]} if policy.forms else {})


def is_stored(flow: HTTPFlow) -> bool:
    """Return whether a flow was read from a file, and toolsim has not handled its answer yet."""
    return not flow.live and REPORT not in flow.metadata


def builtin_policy(policy: Policy) -> Policy:
    """Return the policy for a built-in backend. All built-in backends use the Responses API."""
    return replace(policy, backend=RESPONSES.name)


def is_recorded(flow: HTTPFlow) -> bool:
    """Return whether a flow contains the options that were in effect when it was recorded."""
    return "side" in flow.metadata.get(NOTE, {})


def recorded_policy(flow: HTTPFlow, policy: Policy, by_hand: Iterable[str]) -> Policy:
    """Return the policy that was in effect when an exchange was recorded.

    ``by_hand`` names the policy fields that the operator has set explicitly. They are copied from ``policy`` instead.
    """
    default, decided = Policy(), set(by_hand)
    values: dict[str, Any] = {field: getattr(policy, field) for field in decided}
    for name, recorded in flow.metadata[NOTE]["options"].items():
        # A field of the policy has the name of its option, unless the option sets several fields.
        field, recorded = current_field(name, recorded)
        if field == "forms":
            values[field] = read_forms(recorded)
            continue
        value = frozenset(recorded) if isinstance(recorded, list) else recorded
        if field not in decided and type(value) is type(getattr(default, field, None)):
            values[field] = value
    return replace(default, **values)


def is_resent(flow: HTTPFlow) -> bool:
    """Return whether this request is a replay that the operator started in mitmproxy."""
    return flow.is_replay == "request"
