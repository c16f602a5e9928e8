"""Token counting and compaction in the Responses API: the paths, the requests to a backend, and the answers to the
client.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import CompactedResponse
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from toolsim.core.errors import BadRequest
from toolsim.wire.apis import RESPONSES, api_of_path
from toolsim.wire.responses.compaction import NO_SUMMARY
from toolsim.wire.responses.operations import (
    action_of,
    action_path,
    compaction,
    count_answer,
    count_body,
    has_counted,
    remaining,
    summary_request,
    turn_path,
)

HELLO = {"role": "user", "content": "Hello"}


ITEM = {"id": "cmp_1", "type": "compaction", "encrypted_content": "toolsim:eA=="}


def answer(*items: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"status": "completed", "output": items, **fields}).encode()


@pytest.mark.parametrize(
    ("path", "action", "turn"),
    [
        ("/v1/responses/input_tokens?x=1", "input_tokens", "/v1/responses?x=1"),
        ("/v1/messages/count_tokens?beta=true", "input_tokens", "/v1/messages?beta=true"),
        ("/responses/compact/", "compact", "/responses"),
    ],
)
def test_paths(path: str, action: Any, turn: str) -> None:
    """The path of an operation can be derived from the path for turns, and vice versa."""
    assert action_of(path) == action
    assert turn_path(path) == turn
    assert action_of(action_path(turn, action, api_of_path(turn))) == action


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/compact_1", "/v1/compact", "/responses/compact/x"])
def test_other_paths(path: str) -> None:
    """A path that only resembles an operation's path is not recognized."""
    assert action_of(path) is None


def test_backend_receives_only_supported_fields() -> None:
    """The request for a token count contains only the fields that the backend's counting endpoint supports."""
    body = {"model": "m", "input": [], "stream": False, "store": False}
    assert count_body(body, RESPONSES) == {"model": "m", "input": []}


def test_estimate_is_marked() -> None:
    """An estimate is marked by an additional field, which the SDK ignores."""
    read = InputTokenCountResponse.model_validate_json(count_answer(5, estimated=True))
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
def test_missing_counting_endpoint_is_recognized(status: int, body: dict[str, Any], expected: bool | None) -> None:
    """An error about a missing counting endpoint is distinguished from an error about the client's request."""
    assert has_counted(status, json.dumps(body).encode(), "m") is expected


def test_summary_request_keeps_model_fields() -> None:
    """The request for a summary keeps the model, the instructions and the tools. It is neither streamed nor stored."""
    turn = summary_request({"model": "m", "input": "Hello", "instructions": "Be brief.", "tools": [{}], "stream": True})
    assert turn == {
        "model": "m",
        "instructions": "Be brief.",
        "tools": [{}],
        "input": [HELLO, {"type": "compaction_trigger"}],
        "stream": False,
        "store": False,
    }
    assert summary_request({"model": "m", "previous_response_id": "r"})["previous_response_id"] == "r"
    assert summary_request({"model": "m", "input": 5})["input"] == 5


@pytest.mark.parametrize("body", [{"input": "x"}, {"model": None}, {"model": 5}, {"model": "m", "instructions": 5}])
def test_compaction_without_a_model_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"model|instructions"):
        summary_request(body)


def test_all_messages_except_the_models_remain() -> None:
    """All messages except the assistant's are kept in order, and calls and outputs are dropped."""
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


def test_compaction_has_the_sdks_types() -> None:
    """A compaction contains the messages, the summary item and the usage, and conforms to the SDK's types."""
    messages = json.dumps(remaining({"input": [HELLO]})).encode()
    made = compaction(answer(ITEM), messages)
    assert isinstance(made, bytes)
    read = CompactedResponse.construct(**json.loads(made))
    assert (read.object, read.usage.total_tokens) == ("response.compaction", 0)
    assert [item.type for item in read.output] == ["message", "compaction"]
    counted = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    made = compaction(answer(ITEM, usage=counted), b"[]")
    assert isinstance(made, bytes)
    assert json.loads(made)["usage"] == counted


@pytest.mark.parametrize("body", [answer(), answer({"type": "message", "content": []}), b"{}", b"no"])
def test_missing_summary_is_an_error(body: bytes) -> None:
    """If the backend's answer contains no summary, the compaction fails, so that the client does not lose its
    conversation.
    """
    assert compaction(body, b"[]") is NO_SUMMARY
