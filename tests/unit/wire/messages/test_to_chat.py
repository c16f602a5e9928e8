"""Conversion of Messages requests to chat requests, which contain the same texts in the same order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.each import each
from toolsim.core.conversation import Call, CallOutput, Declaration, Image, Message, Text, Thought
from toolsim.core.errors import BadRequest
from toolsim.wire.apis import CHAT
from toolsim.wire.messages.request import compose, read_request, to_items
from toolsim.wire.messages.to_chat import chat_request, declared_tool
from toolsim.wire.tools import read_tools

PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
TOOL = {
    "name": "get_weather",
    "description": "The weather.\nIn a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def asked(messages: list[Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 64, "messages": messages, **fields}


def items(*messages: Any, **fields: Any) -> tuple[Any, ...]:
    return read_request(asked(list(messages), **fields)).items


def use(number: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number:03}", "name": "get_weather", "input": {"city": f"C{number}"}}


def result(number: int, content: Any = "18", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number:03}", "content": content, **fields}


def call(number: int) -> Call:
    return Call(f"toolu_{number:03}", "get_weather", json.dumps({"city": f"C{number}"}, separators=(",", ":")))


def test_order_of_blocks_is_kept() -> None:
    """Within a message, text and calls keep their order. Tool outputs precede the user's text."""
    read = items(
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "First"},
                use(1),
                {"type": "text", "text": "then"},
                use(2),
                use(3),
            ],
        },
        {
            "role": "user",
            "content": [result(2), result(1, [{"type": "text", "text": "19"}, PNG]), {"type": "text", "text": "So?"}],
        },
    )
    image = Image("data:image/png;base64,aGk=")
    assert read == (
        Message("user", (Text("Hi"),)),
        Thought("hm"),
        Message("assistant", (Text("First"),)),
        call(1),
        Message("assistant", (Text("then"),)),
        call(2),
        call(3),
        CallOutput("toolu_002", (Text("18"),)),
        CallOutput("toolu_001", (Text("19"), image)),
        Message("user", (Text("So?"),)),
    )


def test_call_numbers_follow_the_history() -> None:
    """The highest call number in the history is found, so that the numbers of new calls continue after it."""
    request = read_request(
        asked([{"role": "assistant", "content": [use(7)]}, {"role": "user", "content": [result(7)]}])
    )
    assert request.highest_call == 7


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "tool_reference", "tool_name": "grep"}], "The tool grep can be called now."),
        ([{"type": "unheard_of", "x": 1, "cache_control": {"type": "ephemeral"}}], '{"type":"unheard_of","x":1}'),
        ([{"type": "document", "title": "T", "source": {"type": "text", "data": "D"}}], "T\nD"),
    ],
)
def test_tool_result_content_is_converted(content: Any, text: str) -> None:
    """Every format of a tool result's content is converted to text. Parts other than text are replaced with a
    description.
    """
    (output,) = items({"role": "user", "content": [result(1, content)]})
    assert output == CallOutput("toolu_001", (Text(text),))


def test_failed_tool_output_is_marked() -> None:
    """The output of a failed tool begins with a line that states the failure, because chat completions have no field
    for it.
    """
    (output,) = items({"role": "user", "content": [result(1, "no such city", is_error=True)]})
    assert output.parts == (Text("The tool failed.\nno such city"),)


def test_system_prompt_keeps_its_position() -> None:
    """The system prompt comes first, without the billing line that Claude Code adds. A system message within the
    conversation keeps its position.
    """
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1;"}
    system = [billing, {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    read = items({"role": "user", "content": "a"}, {"role": "system", "content": "b"}, system=system)
    assert read == (
        Message("system", (Text("Be kind."),)),
        Message("user", (Text("a"),)),
        Message("system", (Text("b"),)),
    )


def test_tools_and_choices() -> None:
    """Tools are converted to functions, and each form of tool choice to the corresponding form in chat completions."""
    request = read_request(asked([{"role": "user", "content": "x"}], tools=[TOOL], tool_choice={"type": "any"}))
    (tool,) = request.tools
    assert (tool.name, tool.description, tool.parameters) == ("get_weather", TOOL["description"], TOOL["input_schema"])
    assert request.tool_choice.mode == "required"
    assert request.api == "messages"
    for choice, fields in (
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
        ({"type": "tool", "name": "get_weather"}, {"tool_choice": {"type": "function", "name": "get_weather"}}),
    ):
        body, *_ = chat_request(asked([{"role": "user", "content": "x"}], tools=[TOOL], tool_choice=choice))
        assert {key: body[key] for key in ("tool_choice", "parallel_tool_calls") if key in body} == fields


@each(
    ("declared", "is_own"),
    [
        ({"type": "custom"}, True),
        ({"type": "custom", "name": "memory_20250818"}, True),
        ({"name": "bash_20250124"}, True),
        ({"type": "custom_20991231"}, True),
        ({"type": "web_search_20250305", "name": "web_search"}, False),
        ({"type": "code_execution_20250825", "name": "code_execution"}, False),
        ({"type": "tool_search_tool_regex", "name": "tool_search_tool_regex"}, False),
        ({"type": "mcp_toolset", "mcp_server_name": "x"}, False),
    ],
)
def test_client_tools_are_offered(declared: dict[str, Any], is_own: bool) -> None:
    """A tool that the client defines is offered regardless of its name. Anthropic's server tools are kept for the
    server that runs them.
    """
    tool = {**TOOL, **declared} if is_own else declared
    request = read_request(asked([{"role": "user", "content": "x"}], tools=[tool]))
    assert [found.name for found in request.tools] == ([tool["name"]] if is_own else [])
    assert request.hosted == (() if is_own else (tool,))


def test_openai_forms_are_accepted() -> None:
    """Tools, roles and images are also accepted in OpenAI's forms. ``foreign.py`` converts the other fields."""
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": TOOL["input_schema"]}}
    parts = [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}, {"type": "input_text", "text": "Where?"}]
    messages = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": parts}]
    request = read_request(asked(messages, tools=[tool]))
    assert [tool.parameters for tool in request.tools] == [TOOL["input_schema"]]
    assert request.items == (
        Message("developer", (Text("Be kind."),)),
        Message("user", (Image("http://x/y.png"), Text("Where?"))),
    )


def test_deferred_tool_is_declared_where_it_is_loaded() -> None:
    """A deferred tool is declared at the point in the conversation where the client loads it, but toolsim knows its
    schema from the beginning.
    """
    deferred = {**TOOL, "defer_loading": True}
    (tool,) = read_request(asked([{"role": "user", "content": "x"}], tools=[deferred])).tools
    assert (tool.deferred, tool.parameters) == (True, TOOL["input_schema"])
    loading = result(1, [{"type": "tool_reference", "tool_name": "get_weather"}])
    request = read_request(asked([{"role": "user", "content": [loading]}], tools=[deferred]))
    (loaded,) = request.tools
    assert (loaded.deferred, request.first_tools) == (False, (tool,))
    assert [type(item) for item in request.items] == [CallOutput, Declaration]
    assert request.items[1] == Declaration((loaded,))


def test_anthropic_only_fields_are_noted() -> None:
    """Fields that only Anthropic supports are dropped and listed in the report. The user's ID is never forwarded."""
    extras = {"thinking": {"type": "adaptive"}, "top_k": 5, "context_management": {}, "metadata": {"user_id": "u"}}
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    request = read_request(asked([{"role": "user", "content": "x"}], tools=[search], stop_sequences=["END"], **extras))
    assert request.untranslatable == ("context_management", "thinking", "top_k")
    assert request.hosted == (search,)
    assert request.body["stop"] == ["END"]
    assert "metadata" not in request.body


def test_cache_marks_do_not_affect_the_prompt() -> None:
    """``cache_control`` marks do not affect the prompt. Claude Code moves them in every turn, so the prompt would
    change otherwise.
    """

    def shown(**more: Any) -> Any:
        history = [
            {"role": "user", "content": [{"type": "text", "text": "x", **more}]},
            {"role": "assistant", "content": [{**use(1), **more}]},
            {"role": "user", "content": [{**result(1, [{"type": "text", "text": "18", **more}]), **more}]},
        ]
        return chat_request(asked(history, system=[{"type": "text", "text": "Be kind.", **more}], tools=[TOOL | more]))

    assert shown(cache_control={"type": "ephemeral"}) == shown()


@each(
    ("fields", "message"),
    [
        ({"messages": None}, "Missing required parameter: 'messages'."),
        ({"messages": [{"role": "tool", "content": "x"}]}, "Invalid value for 'messages[0].role'"),
        ({"messages": [{"role": "user", "content": 3}]}, "Invalid type for 'messages[0].content'"),
        (
            {"messages": [{"role": "user", "content": [{}]}]},
            "Missing required parameter: 'messages[0].content[0].type'.",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "'messages[0].content[0].name'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "'messages[0].content[0].tool_use_id'",
        ),
        ({"tools": [{"description": "x"}]}, "Missing required parameter: 'tools[0].name'."),
        # The fields of these requests belong to other APIs.
        ({"messages": None, "input": "Hello"}, "Missing required parameter: 'messages'."),
        ({"tools": [{"type": "function"}]}, "Missing required parameter: 'tools[0].name'."),
        ({"tool_choice": "any"}, "Invalid type for 'tool_choice'"),
        ({"tool_choice": 3}, "Invalid type for 'tool_choice'"),
        ({"tool_choice": {"type": "maybe"}}, "Invalid value for 'tool_choice.type'"),
        ({"tool_choice": {"type": "any"}}, "no tool is declared"),
        ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "'thread' with the type 'continue'"),
        ({"messages": [{"role": "assistant", "content": [{"type": "compaction"}]}]}, "A 'compaction' block"),
    ],
)
def test_bad_requests_name_their_path(fields: dict[str, Any], message: str) -> None:
    """The error for a malformed field gives the field's path in the client's request."""
    with pytest.raises(BadRequest) as refused:
        read_request({**asked([{"role": "user", "content": "x"}]), **fields})
    assert message in refused.value.error.message


def test_messages_backend_receives_supported_fields() -> None:
    """A request for a Messages backend contains every field that the API supports. All other fields are dropped and
    listed in the report.
    """
    parts = [{"type": "text", "text": "Hi."}, {"type": "file", "file": {"file_id": "f"}}]
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": parts}]
    body = {"model": "m", "messages": messages, "seed": 3, "user": "u", "stop": "END", "max_completion_tokens": 7}
    request = CHAT.read(body)
    items, notes = to_items(request)
    assert sorted(notes) == ["content part", "seed", "user"]
    plain = [item for item in items if isinstance(item, Message)]
    assert compose(request, plain, "as sent", False) == {
        "model": "m",
        "max_tokens": 7,
        "stop_sequences": ["END"],
        "system": "Be kind.",
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hi."}, {"type": "text", "text": "[document f, not shown]"}],
            }
        ],
    }


def test_examples_are_kept() -> None:
    """Examples of a tool's input (``input_examples``) are kept if they are objects."""
    declared = declared_tool({"name": "f", "input_schema": {}, "input_examples": [{"a": 1}, "x"]}, "tools[0]")
    (tool,), _ = read_tools({"tools": [declared]})
    assert tool.examples == ({"a": 1},)
