"""The part of a conversation that only the backend holds, and whether it is certainly complete."""

from __future__ import annotations

from typing import Any

import pytest
from toolsimlib.wire.responses.context import continued_context, is_kept_whole, stored_history


@pytest.mark.parametrize(
    ("body", "history", "context", "is_kept"),
    [
        ({}, None, "", True),
        ({"previous_response_id": "r"}, "r", "r", True),
        ({"previous_response_id": 5}, "", "", True),
        ({"previous_response_id": "r", "store": False}, "r", "r", False),
        ({"previous_response_id": "r", "truncation": "disabled", "context_management": []}, "r", "r", True),
        ({"previous_response_id": "r", "truncation": "auto"}, "r", "", False),
        ({"previous_response_id": "r", "context_management": [{"type": "compaction"}]}, "r", "", False),
        ({"conversation": "c"}, "", "", False),
    ],
)
def test_contexts(body: dict[str, Any], history: str | None, context: str, is_kept: bool) -> None:
    """Any that may have lost something, or is shared, is not relied on."""
    assert (stored_history(body), continued_context(body), is_kept_whole(body)) == (history, context, is_kept)
