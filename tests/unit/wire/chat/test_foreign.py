"""Requests of the other APIs at the path of chat completions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from toolsim.core.errors import BadRequest
from toolsim.core.plan import ApiName, Policy
from toolsim.core.report import Report
from toolsim.request.rewrite import rewrite_request
from toolsim.wire.chat.foreign import as_chat
from toolsim.wire.dialect import CHAT

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"name": "read_file", "description": "Read a file.", "parameters": SCHEMA}
PATCH = {
    "type": "custom",
    "name": "ApplyPatch",
    "description": "Patch.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
AGENT: dict[str, Any] = {
    "model": "gpt-5.2",
    "stream": True,
    "user": "u",
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "medium", "summary": "auto"},
    "text": {"verbosity": "low"},
    "stream_options": {"include_usage": True},
    "max_output_tokens": 500,
    "prompt_cache_retention": "24h",
    "tool_choice": "auto",
    "tools": [{"type": "function", **READ, "strict": False}, PATCH],
    "input": [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": [{"type": "input_text", "text": "Read a.txt."}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I read."}], "encrypted_content": "gAAAAAx"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I read it."}]},
        {"type": "function_call", "call_id": "c1", "name": "read_file", "arguments": '{"path":"a.txt"}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "ApplyPatch", "input": "*** Begin"},
        {"type": "function_call_output", "call_id": "c1", "output": "Seven."},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "Done."},
        {"role": "user", "content": "And now?"},
    ],
}
CLAUDE: dict[str, Any] = {
    "model": "claude-4.5-sonnet",
    "stream": True,
    "tools": [{"name": "read_file", "description": "Read a file.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "messages": [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": "Read a.txt."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I read.", "signature": "s"},
                {"type": "text", "text": "I read it."},
                {"type": "tool_use", "id": "c1", "name": "read_file", "input": {"path": "a.txt"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "Seven."}]},
                {"type": "text", "text": "And now?"},
            ],
        },
    ],
}
NATIVE: dict[str, Any] = {
    "model": "claude-4.5-sonnet",
    "stream": True,
    "tools": [{"type": "function", "function": READ}],
    "parallel_tool_calls": False,
    "messages": [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": "Read a.txt."},
        {
            "role": "assistant",
            "content": "I read it.",
            "reasoning_content": "I read.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"a.txt"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Seven."},
        {"role": "user", "content": "And now?"},
    ],
}


def sent_to(backend: ApiName, body: dict[str, Any], **options: Any) -> dict[str, Any]:
    policy = Policy(backend=backend, **options)
    data, report = json.dumps(body).encode(), Report()
    rewritten = rewrite_request("chat", "/v1/chat/completions", data, policy, output_mode=None, report=report)
    assert rewritten is not None
    assert rewritten.plan.client == "chat"
    sent: dict[str, Any] = json.loads(rewritten.body)
    return sent


@pytest.mark.parametrize("backend", ["chat", "responses", "messages"])
def test_blocks_of_the_messages_api(backend: ApiName) -> None:
    """Each backend gets the prompt that the same conversation in chat's own shape leads to."""
    assert sent_to(backend, CLAUDE) == sent_to(backend, NATIVE)


def test_blocks_of_the_messages_api_for_a_backend_that_takes_tools() -> None:
    """It gets chat's own shape."""
    sent = sent_to("chat", CLAUDE, mode="native")
    assert sent["messages"][2:4] == [
        {**NATIVE["messages"][2], "content": [{"type": "text", "text": "I read it."}]},
        NATIVE["messages"][3],
    ]
    assert sent["tools"] == NATIVE["tools"]
    assert sent["tool_choice"] == "auto"


@pytest.mark.parametrize("backend", ["chat", "responses", "messages"])
def test_a_body_of_the_responses_api(backend: ApiName) -> None:
    """The conversation reaches the model; settings go by the backend's names."""
    sent = json.dumps(sent_to(backend, AGENT))
    for words in ("You are an agent.", "Read a.txt.", "I read it.", "Seven.", "Done.", "*** Begin", "And now?"):
        assert words in sent
    assert "gAAAAAx" not in sent
    assert "read_file" in sent
    assert "ApplyPatch" in sent


def test_a_body_of_the_responses_api_for_a_backend_that_takes_tools() -> None:
    """It gets chat's own shape, with the settings by chat's names."""
    sent = sent_to("chat", AGENT, mode="native")
    assert sent["max_tokens"] == 500
    assert sent["reasoning_effort"] == "medium"
    assert sent["stream_options"] == {"include_usage": True}
    assert sent["tools"][0] == {"type": "function", "function": {**READ, "strict": False}}
    assert sent["tools"][1]["custom"]["format"]["grammar"]["syntax"] == "lark"
    roles = [message["role"] for message in sent["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]
    assert [call["id"] for call in sent["messages"][2]["tool_calls"]] == ["c1", "c2"]
    assert sent["messages"][2]["reasoning_content"] == "I read."
    # It is read again as it was written.
    request = CHAT.read(as_chat(AGENT))
    assert request.form.stream
    assert request.form.include_usage
    assert [tool.kind for tool in request.tools] == ["function", "custom"]


@pytest.mark.parametrize(
    "body",
    [
        NATIVE,
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        {"model": "m", "messages": []},
        {"model": "m", "messages": None, "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"model": "m", "tools": [{"type": "function", "name": "f"}, 3], "messages": [3, {"content": 3}]},
        {"model": "m"},
    ],
)
def test_its_own_shape(body: dict[str, Any]) -> None:
    """The very same object: such a request passes byte for byte if it has no tools."""
    assert as_chat(body) is body


def test_blocks_beside_calls_in_its_own_shape() -> None:
    """A call that is there twice is one call."""
    message = {**CLAUDE["messages"][2], "tool_calls": NATIVE["messages"][2]["tool_calls"]}
    (read,) = as_chat({"model": "m", "messages": [message]})["messages"]
    assert len(read["tool_calls"]) == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [{"role": 3}]}, "input[0].role"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
    ],
)
def test_errors_name_their_place(body: dict[str, Any], param: str) -> None:
    """In the client's own request."""
    with pytest.raises(BadRequest) as refused:
        CHAT.read(as_chat(body))
    assert refused.value.error.param == param
