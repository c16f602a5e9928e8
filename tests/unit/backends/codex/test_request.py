"""Responses bodies as Codex takes them."""

from typing import Any

import pytest
from toolsimlib.backends.codex.request import read_request
from toolsimlib.errors import BadRequest


def text_item(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_a_request_becomes_items_with_roles() -> None:
    """Instructions first; system becomes developer; what is no message is left out."""
    request = read_request(
        {
            "model": "m",
            "instructions": "I",
            "temperature": 0.5,
            "input": [
                {"role": "system", "content": "S"},
                {"type": "reasoning", "summary": []},
                {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "R"}]},
                {"role": "user", "content": [{"type": "input_image", "image_url": "data:x", "detail": "low"}]},
                {"role": "user", "content": ""},
            ],
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"verbosity": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        }
    )
    assert list(request.items) == [
        text_item("developer", "I"),
        text_item("developer", "S"),
        text_item("assistant", "R"),
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_image", "image_url": "data:x", "detail": "low"}],
        },
    ]
    assert request.thread == {"model": "m"}
    assert request.turn == {"effort": "low", "summary": "auto", "outputSchema": {"type": "object"}}
    assert request.config == {"model_verbosity": "high"}


def test_a_json_object_is_asked_for_in_words() -> None:
    """Codex has no parameter for it."""
    request = read_request({"input": "x", "text": {"format": {"type": "json_object"}}})
    assert "JSON object" in request.items[-1]["content"][0]["text"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "conversation": {"id": "conv_1"}}, "conversation"),
        ({"input": "x", "background": True}, "background"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
    ],
)
def test_what_codex_cannot_be_asked_is_a_400(body: dict[str, Any], param: str) -> None:
    """With the exact param."""
    with pytest.raises(BadRequest) as caught:
        read_request(body)
    assert caught.value.error.param == param
