"""Tests for the conversion of client requests to Codex's request format."""

from typing import Any

import pytest
from toolsim.backends.codex.request import CodexRequest, codex_request
from toolsim.core.errors import BadRequest
from toolsim.request.manifest import whole_answer_rule
from toolsim.wire.apis import RESPONSES


def read(body: dict[str, Any]) -> CodexRequest:
    return codex_request(RESPONSES.read(body))


def text_item(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_request_becomes_items_with_roles() -> None:
    """When a request is converted for Codex, the instructions become the first item, the role ``system`` becomes
    ``developer``, and unsupported or empty items are omitted.
    """
    request = read(
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
        text_item("developer", whole_answer_rule({"type": "json_schema", "schema": {"type": "object"}})),
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


def test_json_object_request_becomes_a_message() -> None:
    """A request for an answer in JSON becomes a message to the model, because Codex has no parameter that enables JSON
    output.
    """
    request = read({"input": "x", "text": {"format": {"type": "json_object"}}})
    assert "JSON object" in request.items[0]["content"][0]["text"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": ""}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x"}]}]}, "input"),
    ],
)
def test_unsupported_input_is_a_400(body: dict[str, Any], param: str) -> None:
    """Unsupported input causes an error whose ``param`` is ``input`` without an index. toolsim rewrites the items, so
    an index would not match the client's list.
    """
    with pytest.raises(BadRequest) as caught:
        read(body)
    assert caught.value.error.param == param


def test_file_is_replaced_by_its_name() -> None:
    """A file is replaced with one line of text that contains its name, because Codex accepts only text and images."""
    part = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}
    request = read({"input": [{"role": "user", "content": [part]}]})
    assert list(request.items) == [text_item("user", "[document a.pdf, 3 B, not shown]")]
