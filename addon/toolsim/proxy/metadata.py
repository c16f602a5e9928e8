"""A flow's metadata, as plain data.

The report of an exchange, a digest of the sent body, and the options under which a recording was made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from mitmproxy.http import HTTPFlow

from toolsim.core.custom_forms import read_forms
from toolsim.core.plan import Policy
from toolsim.proxy.legacy import current_field
from toolsim.wire.apis import RESPONSES

REPORT = "toolsim"
"""The key of the report, on every finished exchange that toolsim handled."""
CLIENT_URL = "toolsim_client_url"
"""The key of the URL that the client requested: the flow has that of the backend."""
SENT = "toolsim_sent"
"""The key of a digest of the body that was sent in place of the client's."""
PAGE = "toolsim_page"
"""The key of the name of the built-in page that answered a flow."""
SOCKET = "toolsim_socket"
"""The key of a mark on the flow of a WebSocket connection to the local server."""
REFUSED = "toolsim_refused"
"""The key of the reason why a request was refused."""
COMMENT = "toolsim_comment"
"""The key of the comment that toolsim gave a flow: any other comment is a person's."""
NOTE = "toolsim_capture"
"""The key under which a recording describes itself: ``side``, ``options`` and more."""


def policy_as_dict(policy: Policy) -> dict[str, Any]:
    """Return the fields of a policy without their default value, as plain data for a flow's metadata."""
    default = Policy()
    # Profiles that might still apply decide nothing.
    names = [field.name for field in fields(policy) if field.name != "known_profiles"]
    decided = {name: value for name in names if (value := getattr(policy, name)) != getattr(default, name)}
    plain = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in decided.items()}
    return plain | ({"forms": [form.table() for form in policy.forms]} if policy.forms else {})


def is_stored(flow: HTTPFlow) -> bool:
    """Return whether a flow was read from a file, with an answer that the addon has not handled."""
    return not flow.live and REPORT not in flow.metadata


def builtin_policy(policy: Policy) -> Policy:
    """Return the policy for a built-in backend, which uses the Responses API."""
    return replace(policy, backend=RESPONSES.name)


def is_recorded(flow: HTTPFlow) -> bool:
    """Return whether a flow contains the options under which it was recorded."""
    return "side" in flow.metadata.get(NOTE, {})


def recorded_policy(flow: HTTPFlow, policy: Policy, by_hand: Iterable[str]) -> Policy:
    """Return the policy under which an exchange was recorded, except for the fields that the operator set ``by_hand``.

    Those are taken from ``policy``.
    """
    default, decided = Policy(), set(by_hand)
    values: dict[str, Any] = {field: getattr(policy, field) for field in decided}
    for name, recorded in flow.metadata[NOTE]["options"].items():
        # A field of the policy has the name of its option, unless one option decides several.
        field, recorded = current_field(name, recorded)
        if field == "forms":
            values[field] = read_forms(recorded)
            continue
        value = frozenset(recorded) if isinstance(recorded, list) else recorded
        if field not in decided and type(value) is type(getattr(default, field, None)):
            values[field] = value
    return replace(default, **values)


def is_resent(flow: HTTPFlow) -> bool:
    """Return whether a person sends this request, not a client."""
    return flow.is_replay == "request"
