"""The ids of calls: how they are created, and which ids in a history toolsim might have created.

Ids are numbered (``fc_001``, ``fc_002``, …; each API has its own prefixes), continuing from the highest number in
the request's own history, since clients reject an id that repeats within a conversation.
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

# Ids of any API and origin. toolsim never reaches more digits than this, so longer ids cannot clash.
_own_id = re.compile(r"[a-z]{2,5}_([0-9]{1,15})").fullmatch


def chat_call_id(kind: ToolKind, number: int) -> str:
    """Return the id of a call in chat completions."""
    return f"call_{number:03}"


def responses_call_id(kind: ToolKind, number: int) -> str:
    """Return the id of a call in the Responses API, where each kind of item has its own prefix."""
    return f"{RESPONSES_PREFIXES[kind]}_{number:03}"


def highest_number(ids: Iterable[str]) -> int:
    """Return the highest number among the ids that toolsim might have created; 0 if there is none."""
    return max([int(found[1]) for found in map(_own_id, set(ids)) if found is not None], default=0)
