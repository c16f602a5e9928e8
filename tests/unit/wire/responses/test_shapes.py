from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import ResponseUsage
from toolsim.core.errors import ApiError
from toolsim.core.events import Usage
from toolsim.wire.json_codec import dump
from toolsim.wire.responses.shapes import failed, failure, part_of, response_json, usage_of


@pytest.mark.parametrize(
    ("code", "final"),
    [
        ("invalid_tool_call", "invalid_prompt"),
        ("backend_truncated", "server_error"),
        (None, "server_error"),
        ("x", "server_error"),
        ("429", "rate_limit_exceeded"),
        ("rate_limit_error", "rate_limit_exceeded"),
        ("503", "server_error"),
        ("422", "invalid_prompt"),
        ("context_length_exceeded", "context_length_exceeded"),
        ("invalid_image", "invalid_image"),
    ],
)
def test_failure_has_a_code_that_clients_know(code: str | None, final: str) -> None:
    """Internal error codes are replaced with codes that clients recognize, because the code determines whether
    clients retry."""
    assert failure(ApiError("Why.", code=code)) == {"code": final, "message": "Why."}


def test_answer_that_failed_late_is_not_completed() -> None:
    """If a completed answer fails afterwards, its status becomes "failed", and its completion time is removed."""
    response = {"id": "resp_1", "status": "completed", "error": None, "completed_at": 7, "output": [1]}
    final = failed(response, ApiError("Why.", code="store_unavailable"))
    error = {"code": "server_error", "message": "Why."}
    assert final == {"id": "resp_1", "status": "failed", "error": error, "completed_at": None, "output": [1]}


def test_parts_contain_their_text() -> None:
    """The text of each type of message part is in the field that the API defines for this type."""
    assert part_of("refusal", "no") == {"type": "refusal", "refusal": "no"}
    assert {part_of(kind, "x")["text"] for kind in ("text", "summary", "reasoning_text")} == {"x"}


def test_usage_is_null_until_known() -> None:
    """``usage`` is null until the token counts are known. After that, it contains all required fields."""
    assert usage_of(None) is None
    assert ResponseUsage.model_validate(usage_of(Usage(1, 2, 3, 1, 2))).total_tokens == 3


@pytest.mark.parametrize("output", [[], [{"id": "msg_1"}], [{"id": str(number), "x": "é\n"} for number in range(12)]])
def test_final_object_repeats_its_items(output: list[dict[str, Any]]) -> None:
    """A final object that is assembled from already encoded items equals, byte for byte, an object that is encoded as a
    whole.
    """
    response = {"id": "resp_1", "metadata": {"output": "[]"}, "output": output, "error": None, "usage": {"a": 1}}
    items = {place: dump(item) for place, item in reversed(list(enumerate(output)))}
    assert response_json(response, items) == dump(response)
    assert json.loads(response_json(response, items)) == response
