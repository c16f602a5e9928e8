"""Creates the IDs of calls, and recognizes IDs in a history that toolsim might have created.

IDs are numbered (``fc_001``, ``fc_002``, …; each API has its own prefixes). The numbers continue from the highest
number in the request's history, because clients reject an ID that occurs twice in a conversation.
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

# Matches the IDs of all APIs, regardless of who created them. IDs with more digits cannot collide with toolsim's IDs.
_own_id = re.compile(r"[a-z]{2,5}_([0-9]{1,15})").fullmatch


def chat_call_id(kind: ToolKind, number: int) -> str:
    """Return the ID of a call in chat completions."""
    return f"call_{number:03}"


def responses_call_id(kind: ToolKind, number: int) -> str:
    """Return the ID of a call in the Responses API. The prefix depends on the kind of the call's item."""
    return f"{RESPONSES_PREFIXES[kind]}_{number:03}"


def highest_number(ids: Iterable[str]) -> int:
    """Return the highest number among the IDs that toolsim might have created, or 0 if there are no such IDs."""
    return max([int(found[1]) for found in map(_own_id, set(ids)) if found is not None], default=0)
