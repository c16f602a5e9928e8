import pytest
from support.each import each
from toolsim.core.conversation import Call, CallOutput, Image, Message, Raw, Text, Thought
from toolsim.core.errors import BadRequest
from toolsim.core.plan import ToolChoice
from toolsim.wire.chat.request import call_ids, compose, read_request, side_request, to_items, uses_tools
from toolsim.wire.responses.request import read_request as read_responses

F = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def say(role, *texts, name=None):
    return Message(role, tuple(Text(text) for text in texts), name)


def read(*messages, **fields):
    return read_request({"model": "m", "messages": list(messages) or [{"role": "user", "content": "hi"}], **fields})


@each(
    ("body", "uses"),
    [
        ({}, False),
        ({"messages": 3}, False),
        ({"messages": [3, {"role": "assistant", "tool_calls": [], "function_call": None}]}, False),
        ({"messages": [{"role": ["tool"]}]}, False),
        ({"tools": [F]}, True),
        ({"functions": [{"name": "f"}]}, True),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, True),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, True),
        ({"messages": [{"role": "tool"}]}, True),
        ({"messages": [{"role": "function"}]}, True),
    ],
)
def test_uses_tools(body, uses):
    """A request uses tools if it declares client tools or if its history contains calls."""
    assert uses_tools(body) is uses


@each(
    ("message", "items"),
    [
        ({"role": "system", "content": "s"}, [say("system", "s")]),
        ({"role": "developer", "content": "d"}, [say("developer", "d")]),
        ({"role": "user", "content": "u", "name": "Ann"}, [say("user", "u", name="Ann")]),
        ({"role": "user", "content": "u", "name": 3}, [say("user", "u")]),
        (
            {
                "role": "user",
                "content": ["a", {"type": "image_url", "image_url": {"url": "u"}}],
            },
            [Message("user", (Text("a"), Image("u")))],
        ),
        ({"role": "assistant", "content": "a"}, [say("assistant", "a")]),
        ({"role": "assistant", "content": None}, [Message("assistant", ())]),
        ({"role": "assistant", "content": None, "refusal": "no"}, [say("assistant", "no")]),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, [Call("call_1", "f", "{}")]),
        ({"role": "assistant", "content": "", "tool_calls": [CALL]}, [Call("call_1", "f", "{}")]),
        (
            {"role": "assistant", "content": "a", "tool_calls": [CALL]},
            [say("assistant", "a"), Call("call_1", "f", "{}")],
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "p", "input": "x"}}]},
            [Call("c", "p", "x", kind="custom")],
        ),
        ({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}, [Call("c", "f", "")]),
        ({"role": "tool", "tool_call_id": "c", "content": "x", "name": "f"}, [CallOutput("c", (Text("x"),), "f")]),
        (
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]},
            [CallOutput("c", (Text("x"),))],
        ),
        ({"role": "function", "name": "f", "content": "x"}, [CallOutput("f", (Text("x"),), "f")]),
    ],
)
def test_messages_become_items(message, items):
    """Each kind of message is converted to items. The text of an assistant message precedes its calls."""
    assert list(read(message).items) == items


def test_legacy_calls_get_ids():
    """Each legacy call receives an ID. A legacy output is matched to the latest call with the same name."""
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    output = {"role": "function", "name": "f", "content": "x"}
    assert read(call, output, call, output).items == (
        Call("function_1", "f", "{}"),
        CallOutput("function_1", (Text("x"),), "f"),
        Call("function_2", "f", "{}"),
        CallOutput("function_2", (Text("x"),), "f"),
    )


@each(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": "critic"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].name"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [3]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls[0].function"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {}}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": 3}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}]},
            "messages[0].tool_calls[0].custom",
        ),
        ({"messages": [{"role": "assistant", "function_call": "f"}]}, "messages[0].function_call"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call.name"),
        ({"n": 0}, "n"),
        ({"n": "2"}, "n"),
        ({"n": True}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 3}, "stream_options"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [F], "tool_choice": {"type": "function", "function": {"name": 3}}}, "tool_choice.function.name"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
    ],
)
def test_bad_requests(fields, param):
    """A malformed field causes an error with status 400 and the exact path in ``param``."""
    with pytest.raises(BadRequest) as caught:
        read_request({"model": "m", "messages": [], **fields})
    assert caught.value.error.param == param


def test_fields_are_read():
    """All fields that affect the answer are read, and a null value stands for the default."""
    request = read(tools=[F], tool_choice="none", n=2, stream=True, stream_options={"include_usage": True})
    assert (request.tool_choice, request.n, request.form.stream, request.form.include_usage) == (
        ToolChoice("none"),
        2,
        True,
        True,
    )
    request = read(n=None, stream=None, stream_options=None, parallel_tool_calls=None)
    assert (request.n, request.form.stream, request.form.include_usage, request.parallel) == (1, False, False, True)


def test_legacy_functions():
    """Calls are returned in the legacy form if the request has ``functions``, unless it also has ``tools``."""
    legacy = read(functions=[{"name": "f"}], function_call={"name": "f"})
    assert (legacy.form.legacy_functions, legacy.tool_choice) == (True, ToolChoice("required", frozenset({"f"})))
    assert not read(functions=[{"name": "f"}], tools=[F]).form.legacy_functions


def test_call_ids():
    """IDs are found in calls and in outputs. Malformed messages are skipped."""
    messages = [{"tool_calls": [CALL, {"id": 3}, "x"]}, {"tool_call_id": "call_2"}, {"tool_calls": 3}, "x"]
    assert call_ids(messages) == ["call_1", "call_2"]


def written(request, *messages, keep_format=True, keep_hosted=False):
    answer_format = "as sent" if keep_format else None
    return compose(request, messages, answer_format, keep_hosted)


def test_compose_keeps_all_other_fields():
    """The request to the backend contains all fields that the client sent, except the tool fields. The messages are
    replaced.
    """
    kept = {"model": "m", "seed": 1, "x_vendor": None, "stream_options": {"include_usage": True}, "n": 1}
    request = read(**kept, tools=[F], tool_choice="auto", parallel_tool_calls=True, functions=[], function_call="auto")
    assert written(request, say("user", "hi", name="Ann")) == {
        **kept,
        "messages": [{"role": "user", "content": "hi", "name": "Ann"}],
    }


def test_compose_keeps_hosted_tools():
    """The composed request contains hosted tools only if ``keep_hosted`` is set. The client's own tools are always
    removed.
    """
    request = read(tools=[F, {"type": "web_search"}])
    assert written(request, keep_hosted=True)["tools"] == [{"type": "web_search"}]
    assert "tools" not in written(request)


def test_compose_strips_the_format():
    """The request to the backend contains the client's answer format by default, but the format can be omitted."""
    request = read(response_format={"type": "json_object"})
    assert "response_format" not in written(request, keep_format=False)
    assert written(request)["response_format"] == {"type": "json_object"}


def responses(**fields):
    return read_responses({"model": "m", **fields})


@each(
    ("sent", "gives"),
    [
        ({}, {}),
        ({"temperature": 0.5, "top_p": 1, "user": "u"}, {"temperature": 0.5, "top_p": 1, "user": "u"}),
        ({"metadata": {"a": "b"}, "service_tier": "flex"}, {"metadata": {"a": "b"}, "service_tier": "flex"}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"stream": False}, {"stream": False}),
        ({"max_output_tokens": 5}, {"max_tokens": 5}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": None}}, {}),
        ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        ),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"store": True}, {"store": True}),
        ({"store": False, "temperature": None, "tool_choice": "auto"}, {}),
    ],
)
def test_responses_fields_are_translated(sent, gives):
    """Fields of a Responses request are translated to chat completions, and unknown fields are omitted."""
    assert written(responses(**sent)) == {"model": "m", "messages": [], **gives}


def test_responses_format_can_be_left_out():
    """The answer format that a Responses client requested can be omitted from the chat request, because the manifest
    already states it.
    """
    request = responses(text={"format": {"type": "json_object"}})
    assert "response_format" not in written(request, keep_format=False)


def test_adopt_same_api():
    """If the backend has the client's API, all items are kept, including developer messages and unknown parts."""
    request = read({"role": "developer", "content": [{"type": "strange"}]}, x_vendor=1)
    assert to_items(request) == (list(request.items), [])


def test_adopt_responses():
    """When a Responses request is converted to chat completions, the instructions come first, and developer messages
    become system messages. Each dropped field or part is listed.
    """
    content = [
        {"type": "input_text", "text": "a"},
        {"type": "input_file", "file_id": "f"},
        {"type": "input_file", "file_url": "u"},
    ]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": content}
    request = responses(
        instructions="Be good.",
        input=[{"role": "developer", "content": "d"}, {"role": "user", "content": content}, call, output],
        include=["x"],
        truncation=None,
        max_output_tokens=3,
        background=False,
    )
    file = Raw("chat", {"type": "file", "file": {"file_id": "f"}})
    parts = (Text("a"), file, Text("[document u, not shown]"))
    items, notes = to_items(request)
    assert items == [
        say("system", "Be good."),
        say("system", "d"),
        Message("user", parts),
        Call("c", "f", "{}"),
        CallOutput("c", parts),
    ]
    assert notes == ["include", "content part", "content part"]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_not_found"),
        ({"previous_response_id": 3}, "previous_response_not_found"),
        ({"conversation": "conv_1"}, "unsupported_parameter"),
        ({"background": True}, "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "unsupported_parameter"),
    ],
)
def test_stored_references_are_refused(sent, code):
    """A request that refers to data stored by a Responses backend is refused. Otherwise the reference would be lost
    silently.
    """
    with pytest.raises(BadRequest) as caught:
        to_items(responses(**sent))
    [param] = sent
    assert (caught.value.error.param, caught.value.error.code) == (param, code)


def test_cache_prewarming_is_refused():
    """A request to prewarm the cache is refused, because a chat backend would answer it like any other request. Other
    cache options are dropped.
    """
    with pytest.raises(BadRequest) as caught:
        to_items(responses(prompt_cache_options={"prewarm": True}))
    assert caught.value.error.param == "prompt_cache_options.prewarm"
    assert to_items(responses(prompt_cache_options={"ttl": "30m"}))[1] == ["prompt_cache_options"]


def test_malformed_instructions():
    """Instructions that are not a string are refused with status 400."""
    with pytest.raises(BadRequest) as caught:
        to_items(responses(instructions=["x"]))
    assert caught.value.error.param == "instructions"


def test_tools_without_messages_are_refused():
    """A request with tools but without messages is refused with an error that names the field."""
    with pytest.raises(BadRequest) as caught:
        read_request({"model": "m", "messages": [], "tools": [F]})
    assert caught.value.error.param == "messages"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_precedes_calls(field):
    """In an assistant message, the reasoning precedes the calls. A reasoning field that is not text is ignored."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call]}
    items = read_request({"messages": [{**assistant, field: "hm"}, {**assistant, field: {"x": 1}}]}).items
    assert items == (Thought("hm"), Call("c", "f", "{}"), Call("c", "f", "{}"))


def test_side_request() -> None:
    """A side request asks the same model a question, without the conversation and the tools, and requires a brief,
    deterministic answer.
    """
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [F],
        "tool_choice": "auto",
        "stream": True,
        "temperature": 1,
        "stop": ["x"],
        "max_tokens": 900,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    asked = {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it?"}],
        "temperature": 0,
        "max_tokens": 16,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert side_request(body, "Be brief.", "Is it?") == asked
    newer = side_request({"model": "m", "max_completion_tokens": 900}, "Be brief.", "Is it?")
    assert (newer["max_completion_tokens"], "max_tokens" in newer) == (16, False)
    assert not uses_tools(asked)
    assert read_request(asked).form.stream is False


def test_arguments_sent_as_an_object():
    """If a client sends arguments as an object, they are encoded as JSON text, in both current and legacy calls."""
    function = {"name": "f", "arguments": {"a": 1.0, "b": "ä"}}
    turns = [
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "assistant", "function_call": function},
    ]
    first, second = read_request({"model": "m", "messages": turns}).items
    assert first.arguments == second.arguments == '{"a":1.0,"b":"ä"}'
