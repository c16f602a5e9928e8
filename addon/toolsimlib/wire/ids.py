"""The ids of calls: how we make them, and which of those in a history we may have made.

Ids count (``fc_001``, ``fc_002``, …; ``call_…`` in chat), on from the highest number in the request's own history,
since clients refuse an id that repeats in one conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from toolsimlib.events import ToolKind

CHAT_PREFIX = "call"
RESPONSES_PREFIXES: Mapping[ToolKind, str] = {"function": "fc", "custom": "ctc"}

# More digits than this we never reach, so that such an id cannot meet one of ours.
_OWN_ID = re.compile(rf"(?:{'|'.join((CHAT_PREFIX, *RESPONSES_PREFIXES.values()))})_([0-9]{{1,15}})")


def call_id(prefix: str, number: int) -> str:
    """Return the id of the call ``number``."""
    return f"{prefix}_{number:03}"


def highest_number(ids: Iterable[str]) -> int:
    """Return the highest number among the ids that we may have made, 0 if there is none."""
    return max((int(found[1]) for each in ids if (found := _OWN_ID.fullmatch(each))), default=0)
