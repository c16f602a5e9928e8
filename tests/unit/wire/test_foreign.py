"""Request bodies that have the format of one API but are sent to the path of another API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from toolsim.core.errors import BadRequest
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.request.rewrite import rewrite_request
from toolsim.wire.apis import APIS, CHAT
from toolsim.wire.foreign import as_chat

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


PATHS: dict[ApiName, str] = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def sent_to(backend: ApiName, body: dict[str, Any], *, path: ApiName = "chat", **options: Any) -> dict[str, Any]:
    policy = Policy(backend=backend, **options)
    data, report = json.dumps(body).encode(), Report()
    rewritten = rewrite_request(path, PATHS[path], data, policy, output_mode=None, report=report)
    assert rewritten is not None
    assert rewritten.plan.client == path
    sent: dict[str, Any] = json.loads(rewritten.body)
    return sent


@pytest.mark.parametrize("backend", ["chat", "responses", "messages"])
def test_messages_blocks_at_the_chat_path(backend: ApiName) -> None:
    """A chat request that contains Messages API blocks results in the same prompt as the same conversation in the chat
    format.
    """
    assert sent_to(backend, CLAUDE) == sent_to(backend, NATIVE)


def test_messages_blocks_for_a_native_backend() -> None:
    """For a backend with native tools, Messages API blocks in a chat request are converted to the format of the chat
    API.
    """
    sent = sent_to("chat", CLAUDE, mode="native")
    assert sent["messages"][2:4] == [
        {**NATIVE["messages"][2], "content": [{"type": "text", "text": "I read it."}]},
        NATIVE["messages"][3],
    ]
    assert sent["tools"] == NATIVE["tools"]
    assert sent["tool_choice"] == "auto"


@pytest.mark.parametrize("backend", ["chat", "responses", "messages"])
def test_responses_body_at_the_chat_path(backend: ApiName) -> None:
    """A Responses body sent to the chat path results in a prompt with the complete conversation, but without
    ciphertext.
    """
    sent = json.dumps(sent_to(backend, AGENT))
    for words in ("You are an agent.", "Read a.txt.", "I read it.", "Seven.", "Done.", "*** Begin", "And now?"):
        assert words in sent
    assert "gAAAAAx" not in sent
    assert "read_file" in sent
    assert "ApplyPatch" in sent


def test_responses_body_for_a_native_backend() -> None:
    """For a backend with native tools, a Responses body sent to the chat path is converted, including its settings."""
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
    # The converted body is parsed as a chat request.
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
def test_native_body_is_the_same_object(body: dict[str, Any]) -> None:
    """If a body already has the format of the chat API, the original object is returned, so that the request can pass
    through unchanged.
    """
    assert as_chat(body) is body


def test_call_in_two_forms_is_kept_once() -> None:
    """If a message contains the same call both in a content block and in ``tool_calls``, the call is kept only once."""
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
def test_errors_name_their_path(body: dict[str, Any], param: str) -> None:
    """An error about a converted body gives the field's path in the body that the client sent."""
    with pytest.raises(BadRequest) as refused:
        CHAT.read(as_chat(body))
    assert refused.value.error.param == param


CALL_ARGUMENTS = {"path": "a.txt"}
OUTPUT_FORMAT = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
# The same request in the format of each API.
SAME: dict[ApiName, dict[str, Any]] = {
    "chat": {
        **NATIVE,
        "max_tokens": 500,
        "temperature": 0.5,
        "tool_choice": {"type": "function", "function": {"name": "read_file"}},
    },
    "responses": {
        "model": "claude-4.5-sonnet",
        "stream": True,
        "max_output_tokens": 500,
        "temperature": 0.5,
        "tools": [{"type": "function", **READ}],
        "tool_choice": {"type": "function", "name": "read_file"},
        "parallel_tool_calls": False,
        "input": [
            {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "You are an agent."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read a.txt."}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I read."}]},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I read it.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "read_file", "arguments": json.dumps(CALL_ARGUMENTS)},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_text", "text": "Seven."}],
            },
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
        ],
    },
    "messages": {
        "model": "claude-4.5-sonnet",
        "stream": True,
        "max_tokens": 500,
        "temperature": 0.5,
        "system": "You are an agent.",
        "tools": [{"name": "read_file", "description": "Read a file.", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "read_file", "disable_parallel_tool_use": True},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Read a.txt."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I read.", "signature": ""},
                    {"type": "text", "text": "I read it."},
                    {"type": "tool_use", "id": "c1", "name": "read_file", "input": CALL_ARGUMENTS},
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
    },
}
CROSSINGS = [(path, shape) for path in SAME for shape in SAME if path != shape]


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body in which insignificant details, such as whitespace in arguments, are normalized."""
    text = json.dumps(body, sort_keys=True).replace('{\\"path\\":\\"a.txt\\"}', '{\\"path\\": \\"a.txt\\"}')
    read: dict[str, Any] = json.loads(text)
    return read


@pytest.mark.parametrize(("path", "shape"), CROSSINGS)
@pytest.mark.parametrize("backend", SAME)
def test_any_form_at_any_path(path: ApiName, shape: ApiName, backend: ApiName) -> None:
    """A body in the format of any API can be sent to the endpoint of any API. The prompt and the settings do not depend
    on the format.
    """
    foreign, own = (sent_to(backend, SAME[each], path=path) for each in (shape, path))
    assert {**plain(foreign), "store": None} == {**plain(own), "store": None}


@pytest.mark.parametrize(("path", "shape"), CROSSINGS)
def test_native_backend_receives_the_paths_form(path: ApiName, shape: ApiName) -> None:
    """A backend with native tools receives a body in the format of the API to which the path belongs. Converting a
    converted body again has no effect.
    """
    sent = sent_to(path, SAME[shape], path=path, mode="native")
    if path == "chat":
        sent["tool_choice"] = SAME[path]["tool_choice"]
        for message in sent["messages"]:
            if isinstance(message.get("content"), list):
                (part,) = message["content"]
                message["content"] = part["text"]
    assert plain(sent) == plain(SAME[path])
    assert APIS[path].expand_opaque_items(sent) is sent


@pytest.mark.parametrize("path", SAME)
def test_unconverted_body_is_the_same_object(path: ApiName) -> None:
    """If a body already has the format of the path's API, the original object is returned."""
    assert APIS[path].expand_opaque_items(SAME[path]) is SAME[path]


MIXED: list[tuple[ApiName, dict[str, Any]]] = [
    ("chat", {"messages": SAME["responses"]["input"]}),
    ("chat", {"tools": SAME["messages"]["tools"]}),
    ("chat", {"tools": SAME["responses"]["tools"]}),
    ("responses", {"input": NATIVE["messages"]}),
    ("responses", {"input": CLAUDE["messages"]}),
    ("responses", {"tools": NATIVE["tools"]}),
    ("responses", {"tools": CLAUDE["tools"]}),
    ("responses", {"tool_choice": SAME["messages"]["tool_choice"]}),
    ("responses", {"tool_choice": SAME["chat"]["tool_choice"]}),
    ("messages", {"messages": NATIVE["messages"], "system": None}),
    ("messages", {"messages": SAME["responses"]["input"], "system": None}),
    ("messages", {"tools": NATIVE["tools"]}),
    ("messages", {"tools": SAME["responses"]["tools"]}),
    ("messages", {"tool_choice": SAME["chat"]["tool_choice"], "parallel_tool_calls": False}),
    ("messages", {"tool_choice": SAME["responses"]["tool_choice"], "parallel_tool_calls": False}),
]


@pytest.mark.parametrize(("path", "changed"), MIXED)
@pytest.mark.parametrize("backend", SAME)
def test_parts_in_another_form_are_converted(path: ApiName, changed: dict[str, Any], backend: ApiName) -> None:
    """A body is converted even if only its history, its tools or its tool choice has the format of another API."""
    mixed, own = (sent_to(backend, body, path=path) for body in (SAME[path] | changed, SAME[path]))
    assert plain(mixed) == plain(own)


def test_settings_are_renamed_for_the_path() -> None:
    """Settings are renamed for the API to which the path belongs. Settings without an equivalent are dropped."""
    question = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    chat = {"max_completion_tokens": 9, "response_format": {"type": "json_schema", "json_schema": OUTPUT_FORMAT}}
    chat |= {"reasoning_effort": "low", "verbosity": "low", "stop": "x", "parallel_tool_calls": False}
    responses = APIS["responses"].expand_opaque_items(question | chat)
    assert responses == {
        "model": "m",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        "max_output_tokens": 9,
        "text": {"format": OUTPUT_FORMAT, "verbosity": "low"},
        "reasoning": {"effort": "low"},
        "parallel_tool_calls": False,
    }
    assert APIS["messages"].expand_opaque_items(responses | {"tools": SAME["responses"]["tools"]}) == {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "max_tokens": 9,
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "tools": SAME["messages"]["tools"],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }
    assert APIS["messages"].expand_opaque_items(question | chat)["stop_sequences"] == ["x"]


def test_tools_at_the_messages_path() -> None:
    """In a request to the Messages path, a custom tool becomes a function with one string parameter, and a namespace
    becomes a prefix of the tools' names.
    """
    tools = [PATCH, {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}, {"type": "mcp"}]
    body = APIS["messages"].expand_opaque_items({"model": "m", "input": "Hi", "tools": tools})
    assert [tool.get("name") for tool in body["tools"]] == ["ApplyPatch", "n__f", None]
    assert body["tools"][0]["input_schema"]["required"] == ["input"]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "ApplyPatch"}]}
    body = APIS["messages"].expand_opaque_items({"model": "m", "input": "Hi", "tools": tools, "tool_choice": choice})
    assert ([tool["name"] for tool in body["tools"]], body["tool_choice"]) == (["ApplyPatch"], {"type": "any"})


def test_legacy_functions_at_the_responses_path() -> None:
    """In a request to the Responses path, the legacy calls and outputs of a function are matched by the function's
    name.
    """
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "Seven."},
    ]
    asked = {"model": "m", "functions": [{"name": "f"}], "function_call": {"name": "f"}}
    for body in ({**asked, "messages": history}, {**asked, "input": history}):
        read = APIS["responses"].expand_opaque_items(body)
        call, output = read["input"][1:]
        assert call["call_id"] == output["call_id"]
    assert APIS["responses"].expand_opaque_items({**asked, "messages": history})["tool_choice"]["name"] == "f"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat", {"messages": [{"role": "user"}, {"type": "function_call"}]}, "messages[1].name"),
        ("responses", {"input": [{"role": "user", "content": ""}, {"role": "tool"}]}, "input[1].tool_call_id"),
        ("responses", {"tools": [{"name": 3, "input_schema": {}}]}, "tools[0].name"),
        ("messages", {"input": [{"role": 3}]}, "input[0].role"),
        ("messages", {"messages": [{"role": "tool"}]}, "messages[0].tool_call_id"),
    ],
)
def test_errors_at_each_path_name_their_path(path: ApiName, body: dict[str, Any], param: str) -> None:
    """At each API's endpoint, an error about a field gives the field's path in the body that the client sent."""
    with pytest.raises(BadRequest) as refused:
        APIS[path].read(APIS[path].expand_opaque_items(body))
    assert refused.value.error.param == param
