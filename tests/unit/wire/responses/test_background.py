"""The status of a background answer, which depends on its stored record and on the process that is producing it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.each import each
from toolsim.wire.json_codec import parse_object
from toolsim.wire.responses.background import (
    LEFT_ALONE,
    is_in_background,
    is_streamed,
    response_now,
    value_of,
    with_response,
)
from toolsim.wire.responses.resources import Resource, ResourceCall, respond
from toolsim.wire.responses.stored import items_of


@each(
    ("kept", "state", "cancel", "now"),
    [
        ("queued", "queued", False, "queued"),
        ("queued", "in_progress", False, "in_progress"),
        ("queued", "in_progress", True, "cancelled"),
        ("queued", "", False, "failed"),
        ("queued", "", True, "failed"),
        ("completed", "", True, "completed"),
        ("completed", "in_progress", True, "completed"),
        ("failed", "", False, "failed"),
        ("cancelled", "", True, "cancelled"),
        ("incomplete", "", True, "incomplete"),
    ],
)
def test_current_state_of_an_answer(kept: str, state: str, cancel: bool, now: str) -> None:
    """The status of a finished answer does not change. An unfinished answer counts as failed if no process is producing
    it.
    """
    response = {"id": "r", "status": kept, "output": []}
    assert response_now(response, state, cancel=cancel)["status"] == now
    value = value_of(json.dumps(response).encode(), b'[{"id":"i"}]', stream=True)
    call = ResourceCall(Resource("cancel" if cancel else "response", "r"), "POST" if cancel else "GET", state=state)
    answered = respond(call, value)
    assert answered.body["status"] == now
    assert (answered.id == "r") is (kept == "queued" and now in ("failed", "cancelled"))
    if answered.id:
        record: Any = parse_object(answered.value)
        assert (record["response"], record["input"]) == (answered.body, [{"id": "i"}])
        assert is_streamed(answered.value)
    if kept == "queued" and not state:
        assert answered.body["error"]["message"] == LEFT_ALONE.message


@pytest.mark.parametrize("stream", [False, True])
def test_background_answer_is_a_marked_record(stream: bool) -> None:
    """A background answer is stored like any other answer. In addition, its record states that it is a background
    answer, and whether it is streamed.
    """
    value = value_of(b'{"id":"r","status":"queued","output":[{"id":"o"}]}', b'[{"id":"i"}]', stream=stream)
    record = parse_object(value)
    assert record is not None
    assert is_in_background(record)
    assert is_streamed(value) is stream
    assert [item["id"] for item in items_of(record)] == ["i", "o"]
    assert with_response(record, record["response"]) == value
    assert not is_in_background({"response": {}, "input": []})
