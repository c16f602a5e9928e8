"""The ids of calls: how we make them, and which of those in a history we may have made.

Ids are numbered (``fc_001``, ``fc_002``, …; each API has prefixes of its own), continuing from the highest number in
the request's own history, since clients refuse an id that repeats within a conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from toolsim.core.events import ToolKind

RESPONSES_PREFIXES: Mapping[ToolKind, str] = {
    "function": "fc",
    "custom": "ctc",
    "shell": "sh",
    "local_shell": "lsh",
    "apply_patch": "apc",
    "tool_search": "tsc",
}

# Of any API, whoever made it. We never reach more digits than this, so a longer one cannot clash with ours.
_own_id = re.compile(r"[a-z]{2,5}_([0-9]{1,15})").fullmatch


def chat_call_id(kind: ToolKind, number: int) -> str:
    """Return the id of a call in chat completions."""
    return f"call_{number:03}"


def responses_call_id(kind: ToolKind, number: int) -> str:
    """Return the id of a call in the Responses API, where each kind of item has its own prefix."""
    return f"{RESPONSES_PREFIXES[kind]}_{number:03}"


def highest_number(ids: Iterable[str]) -> int:
    """Return the highest number among the ids that we may have made, 0 if there is none."""
    return max([int(found[1]) for found in map(_own_id, set(ids)) if found is not None], default=0)
