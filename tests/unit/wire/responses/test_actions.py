"""Counting and compacting: their paths, the requests to a backend, and the item that holds a summary."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import CompactedResponse
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from toolsimlib.errors import ApiError, BadRequest
from toolsimlib.wire.responses.actions import (
    NO_SUMMARY,
    SUMMARY_PROMPT,
    action_of,
    action_path,
    compaction,
    countable,
    estimate,
    has_counted,
    remaining,
    summary_request,
    turn_path,
    with_summaries,
)

HELLO = {"role": "user", "content": "Hello"}


def answer(text: str, **fields: Any) -> bytes:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
    return json.dumps({"status": "completed", "output": [message], **fields}).encode()


def compacted(text: str, messages: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    body = compaction(answer(text), json.dumps(messages or []).encode())
    assert isinstance(body, bytes)
    made: dict[str, Any] = json.loads(body)
    return made


@pytest.mark.parametrize(
    ("path", "action", "turn"),
    [
        ("/v1/responses/input_tokens?x=1", "input_tokens", "/v1/responses?x=1"),
        ("/responses/compact/", "compact", "/responses"),
    ],
)
def test_paths(path: str, action: Any, turn: str) -> None:
    """The path of an action and that of its turn can be derived from each other."""
    assert action_of(path) == action
    assert turn_path(path) == turn
    assert action_of(action_path(turn, action)) == action


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/compact_1", "/v1/compact", "/responses/compact/x"])
def test_other_paths(path: str) -> None:
    """What only resembles one is none."""
    assert action_of(path) is None


def test_a_backend_is_asked_with_the_fields_that_it_knows() -> None:
    """Fields that only a turn has would be an error."""
    assert countable({"model": "m", "input": [], "stream": False, "store": False}) == {"model": "m", "input": []}


def test_an_estimate_is_marked() -> None:
    """The real SDK parses it, and keeps the unknown field."""
    read = InputTokenCountResponse.model_validate_json(estimate(5))
    assert (read.input_tokens, read.object, read.model_extra) == (5, "response.input_tokens", {"estimated": True})


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, {"input_tokens": 7}, True),
        (200, {"input_tokens": True}, False),
        (200, {}, False),
        (404, {"detail": "Not Found"}, False),
        (405, {}, False),
        (404, {"error": {"code": "model_not_found"}}, None),
        (404, {"error": {"param": "model"}}, None),
        (401, {}, None),
        (500, {}, None),
    ],
)
def test_whether_the_backend_has_counted(status: int, body: dict[str, Any], expected: bool | None) -> None:
    """A missing endpoint is no error of the request's; any other result is for the client."""
    assert has_counted(status, json.dumps(body).encode()) is expected


def test_a_summary_is_requested_after_the_conversation() -> None:
    """With the request's fields about its model, and nothing that only a turn has."""
    turn = summary_request({"model": "m", "input": "Hello", "instructions": "Be brief.", "tools": [{}], "stream": True})
    assert turn == {
        "model": "m",
        "instructions": "Be brief.",
        "input": [HELLO, {"role": "user", "content": SUMMARY_PROMPT}],
        "stream": False,
        "store": False,
    }
    assert summary_request({"model": "m", "previous_response_id": "r"})["previous_response_id"] == "r"
    assert summary_request({"model": "m", "input": 5})["input"] == 5


@pytest.mark.parametrize("body", [{"input": "x"}, {"model": None}, {"model": 5}, {"model": "m", "instructions": 5}])
def test_what_cannot_be_compacted(body: dict[str, Any]) -> None:
    """A model has to be named."""
    with pytest.raises(BadRequest, match=r"model|instructions"):
        summary_request(body)


def test_messages_of_all_but_the_model_remain() -> None:
    """In order and complete; calls, outputs and the model's own messages are dropped."""
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "u"}], "id": "msg_1"}
    items = [
        {"role": "developer", "content": "Be kind."},
        HELLO,
        {"role": "assistant", "content": "Hi"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        picture,
    ]
    left = remaining({"input": items})
    assert [item["role"] for item in left] == ["developer", "user", "user"]
    assert left[2]["content"] == picture["content"]
    assert all(item["id"] and item["status"] == "completed" for item in left)
    assert remaining({"input": "Hello"})[0]["content"] == [{"type": "input_text", "text": "Hello"}]
    assert remaining({}) == []


def test_what_a_client_gets() -> None:
    """The real SDK parses it: the messages, then the item, and usage even if the backend counts nothing."""
    made = compacted("All of it.", remaining({"input": [HELLO]}))
    read = CompactedResponse.construct(**made)
    assert (read.object, read.usage.total_tokens) == ("response.compaction", 0)
    assert [item.type for item in read.output] == ["message", "compaction"]
    counted = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    body = compaction(answer("x", usage=counted), b"[]")
    assert isinstance(body, bytes)
    assert json.loads(body)["usage"] == counted


@pytest.mark.parametrize(
    "body", [answer("Half of", status="incomplete"), answer(" "), b"{}", b"no", answer("x", status="failed")]
)
def test_no_whole_summary_is_an_error(body: bytes) -> None:
    """Nobody may lose a conversation to half a summary."""
    assert compaction(body, b"[]") is NO_SUMMARY
    assert isinstance(NO_SUMMARY, ApiError)


@given(st.text(min_size=1).filter(lambda text: bool(text.strip())))
def test_an_item_holds_the_summary(text: str) -> None:
    """Whatever it contains, a later request shows it to the model as the user's words."""
    item = compacted(text)["output"][-1]
    shown = with_summaries({"input": [HELLO, item]})["input"]
    assert shown[0] == HELLO
    assert shown[1]["role"] == "user"
    assert shown[1]["content"].partition("\n")[2] == text.strip().encode("utf-16", "surrogatepass").decode(
        "utf-16", "replace"
    )


@pytest.mark.parametrize(
    "item",
    [
        {"type": "compaction", "encrypted_content": "gAAAA"},
        {"type": "compaction", "encrypted_content": "toolsim:no base64!"},
        {"type": "compaction"},
        {"type": "message", "encrypted_content": "toolsim:eA=="},
        "toolsim:",
    ],
)
def test_other_items_are_left_alone(item: Any) -> None:
    """A request without our items is the very same object."""
    body = {"input": [item]}
    assert with_summaries(body) is body
    assert with_summaries({"input": "x"}) == {"input": "x"}
