import pytest
from support.each import each
from toolsim.core.conversation import CallOutput, HostedItem, Message, Raw, Text
from toolsim.core.errors import BadRequest
from toolsim.core.plan import ToolChoice
from toolsim.wire.chat.request import read_request as read_chat
from toolsim.wire.responses.request import compose, echo, read_request, side_request, to_items, uses_tools

F = {"type": "function", "name": "f"}
TEXT = {"type": "input_text", "text": "x"}
IMAGE = {"type": "input_image", "image_url": "u", "detail": "low"}


def say(role, *texts, name=None):
    return Message(role, tuple(Text(text) for text in texts), name)


def read(*items, **fields):
    return read_request({"model": "m", "input": list(items) or "hi", **fields})


@each(
    ("body", "uses"),
    [
        ({}, False),
        ({"input": "hi", "tools": [{"type": "web_search"}]}, False),
        ({"input": [{"role": "user", "content": "function_call"}]}, False),
        ({"input": [{"type": ["function_call"]}, 3]}, False),
        ({"tools": [F]}, True),
        ({"tools": 3}, True),
        ({"input": [{"type": "additional_tools", "tools": [F]}]}, True),
        ({"input": [{"type": "function_call"}]}, True),
        ({"input": [{"type": "function_call_output"}]}, True),
        ({"input": [{"type": "custom_tool_call"}]}, True),
        ({"input": [{"type": "custom_tool_call_output"}]}, True),
        ({"input": "hi", "tools": [{"type": "shell"}]}, True),
        ({"input": [{"type": "shell_call", "call_id": "c"}]}, True),
        ({"input": [{"type": "shell_call", "call_id": "c", "environment": {"type": "container_reference"}}]}, False),
        ({"input": [{"type": "tool_search_call", "execution": "server"}]}, False),
    ],
)
def test_uses_tools(body, uses):
    """A request uses tools if it declares client tools or if its history contains calls to client tools."""
    assert uses_tools(body) is uses


@each(
    ("body", "param"),
    [
        ({"input": 3}, "input"),
        ({"input": {}}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{}]}, "input[0].role"),
        ({"input": [{"type": 3}]}, "input[0].type"),
        ({"input": [{"role": 3}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [3]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call"}]}, "input[0].name"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": 3}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call", "name": "f", "id": 3}]}, "input[0].id"),
        ({"input": [{"type": "function_call", "name": "f", "call_id": 3}]}, "input[0].call_id"),
        ({"input": [{"type": "custom_tool_call", "name": "f", "input": {}}]}, "input[0].input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": 3}]}, "input[0].output"),
        ({"input": [], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"input": [], "stream": 1}, "stream"),
        ({"input": [], "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": [], "tools": [F], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    ],
)
def test_bad_requests(body, param):
    """A malformed field causes an error with status 400 and the exact path in ``param``."""
    with pytest.raises(BadRequest) as caught:
        read_request(body)
    assert caught.value.error.param == param


def test_fields_are_read():
    """Tools, tool choice, streaming and parallel calls are read, and a null value stands for the default."""
    request = read(tools=[F, {"type": "web_search"}], tool_choice="required", parallel_tool_calls=False, stream=True)
    assert [tool.name for tool in request.tools] == ["f"]
    assert request.hosted == ({"type": "web_search"},)
    assert request.tool_choice == ToolChoice("required")
    assert (request.parallel, request.form.stream, request.form.include_usage) == (False, True, True)
    assert read(parallel_tool_calls=None, stream=None).parallel is True


def written(request, *messages, keep_format=True, keep_hosted=False):
    answer_format = "as sent" if keep_format else None
    return compose(request, messages, answer_format, keep_hosted)


def test_compose_keeps_all_other_fields():
    """The request to the backend contains all fields that the client sent, except the tool fields. The input is
    replaced.
    """
    kept = {"model": "m", "instructions": None, "x_vendor": {"a": 1}, "store": False, "include": [], "text": {}}
    request = read(**kept, tools=[F], tool_choice="auto", parallel_tool_calls=True, max_tool_calls=3)
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    assert written(request, say("user", "hi")) == {**kept, "input": [message]}


def test_compose_without_input():
    """If a request refers to a stored prompt, ``input`` is optional, so toolsim does not add this field."""
    assert written(read_request({"prompt": {"id": "p"}})) == {"prompt": {"id": "p"}}
    assert "input" in written(read_request({"prompt": {"id": "p"}}), say("developer", "M"))


def test_compose_keeps_hosted_tools():
    """The composed request contains hosted tools and their limit only if ``keep_hosted`` is set. The client's own tools
    are always removed.
    """
    request = read(tools=[F, {"type": "web_search"}], max_tool_calls=3)
    body = written(request, keep_hosted=True)
    assert (body["tools"], body["max_tool_calls"]) == ([{"type": "web_search"}], 3)
    assert "tools" not in written(read(tools=[F]), keep_hosted=True)


def test_compose_strips_the_format():
    """The client's answer format can be omitted from the request to the backend. The verbosity is kept."""
    request = read(text={"format": {"type": "json_object"}, "verbosity": "low"})
    assert written(request, keep_format=False)["text"] == {"verbosity": "low"}
    assert written(request)["text"] == {"format": {"type": "json_object"}, "verbosity": "low"}


def chat(**fields):
    return read_chat({"model": "m", "messages": [], **fields})


@each(
    ("sent", "gives"),
    [
        ({}, {}),
        ({"temperature": 0.5, "top_p": 1, "user": "u"}, {"temperature": 0.5, "top_p": 1, "user": "u"}),
        ({"metadata": {"a": "b"}, "service_tier": "flex"}, {"metadata": {"a": "b"}, "service_tier": "flex"}),
        ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": True}),
        ({"max_tokens": 5}, {"max_output_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"max_output_tokens": 6}),
        ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
        ({"verbosity": "low"}, {"text": {"verbosity": "low"}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}},
        ),
        ({"response_format": {"type": "text"}}, {}),
        ({"store": True}, {"store": True}),
        ({"temperature": None, "store": None, "seed": 3, "tool_choice": "auto"}, {}),
    ],
)
def test_chat_fields_are_translated(sent, gives):
    """Fields of a chat request are translated to the Responses API, and unknown fields are omitted."""
    assert written(chat(**sent)) == {"model": "m", "input": [], "store": False, **gives}


def test_chat_format_can_be_left_out():
    """The answer format that a chat client requested can be omitted from the Responses request, because the manifest
    already states it.
    """
    assert "text" not in written(chat(response_format={"type": "json_object"}), keep_format=False)


def test_chat_system_text_becomes_instructions():
    """Leading system messages become instructions, unless they are the only messages."""
    body = written(chat(), say("system", "a"), say("system", "b", name="x"), say("user", "u"), say("system", "c"))
    assert body["instructions"] == "a\n\nb"
    assert [item["role"] for item in body["input"]] == ["user", "system"]
    lone = written(chat(), say("system", "a"))
    assert "instructions" not in lone
    assert len(lone["input"]) == 1


def test_adopt_same_api():
    """If the backend has the client's API, all items are kept, including unknown parts."""
    request = read({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, x_vendor=1)
    assert to_items(request) == (list(request.items), [])


def test_adopt_chat():
    """When a chat request is converted to the Responses API, its parts are converted. Each part or field without an
    equivalent is listed as dropped.
    """
    content = [
        {"type": "text", "text": "a"},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "strange"},
    ]
    request = read_chat(
        {
            "model": "m",
            "messages": [
                {"role": "user", "content": content},
                {"role": "tool", "tool_call_id": "c", "content": content},
            ],
            "seed": 1,
            "stop": None,
            "max_tokens": 5,
            "tools": [],
        }
    )
    file = Raw("responses", {"type": "input_file", "file_id": "f"})
    parts = (Text("a"), file, Text("[strange, not shown]"))
    items, notes = to_items(request)
    assert items == [Message("user", parts), CallOutput("c", parts)]
    assert notes == ["seed", "content part", "content part"]


def test_several_choices_are_refused():
    """A chat request for several choices is refused, because the Responses API returns only one."""
    with pytest.raises(BadRequest) as caught:
        to_items(chat(n=2))
    assert caught.value.error.param == "n"
    to_items(chat(n=1))


def test_background_needs_a_stream():
    """A background request with tools must be streamed, because toolsim could not rewrite an answer that the client
    fetches later.
    """
    with pytest.raises(BadRequest) as caught:
        to_items(read_request({"input": "hi", "tools": [F], "background": True}))
    assert (caught.value.error.param, caught.value.error.code) == ("background", "unsupported_parameter")
    for fine in ({"background": True, "stream": True}, {"background": False}, {"background": None}):
        to_items(read_request({"input": "hi", "tools": [F], **fine}))


# These fields are required in a response by the Open Responses specification. Fields that depend on the answer are not
# included.
FROM_REQUEST = {
    "background", "instructions", "max_output_tokens", "max_tool_calls", "model", "parallel_tool_calls",
    "previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store",
    "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "frequency_penalty",
    "presence_penalty", "user", "metadata",
}  # fmt: skip


def test_echo_defaults():
    """The response contains all required fields. Fields that the client did not send have the API's defaults."""
    fields = echo({"model": "m", "input": "hi", "temperature": None, "tool_choice": None})
    assert fields.keys() == FROM_REQUEST
    assert (fields["temperature"], fields["top_p"], fields["service_tier"]) == (1.0, 1.0, "default")
    assert (fields["tool_choice"], fields["tools"], fields["store"]) == ("auto", [], True)
    assert fields["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert fields["reasoning"] == {"effort": None, "summary": None}


def test_echo_restores_removed_fields():
    """The response contains the fields that toolsim removed from the backend's request, exactly as the client sent
    them.
    """
    sent = {
        "model": "m",
        "instructions": "Be good.",
        "metadata": {"a": "b"},
        "temperature": 0,
        "store": False,
        "background": True,
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "max_tool_calls": 2,
        "previous_response_id": "resp_1",
        "service_tier": "flex",
    }
    fields = echo({**sent, "tools": [F], "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}})
    assert {key: fields[key] for key in sent} == sent
    assert fields["tools"] == [
        {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}
    ]
    assert fields["text"] == {"format": {"type": "json_object"}, "verbosity": "medium"}
    assert fields["reasoning"] == {"effort": "low", "summary": None}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
    ],
)
def test_tools_without_input_are_refused(body, param):
    """A request with tools but without input is refused, unless the backend stores the conversation."""
    with pytest.raises(BadRequest) as caught:
        read_request({"model": "m", "tools": [F], **body})
    assert caught.value.error.param == param
    for held in ("previous_response_id", "conversation", "prompt"):
        assert read_request({"model": "m", "tools": [F], held: "x"}).items == ()


@pytest.mark.parametrize("kind", ["shell", "apply_patch"])
def test_tool_can_be_chosen_by_type(kind):
    """A tool that is declared by type can also be chosen by type. The choice of an undeclared type is dropped and
    listed in the report.
    """
    tools = [{"type": "shell"}, {"type": "apply_patch"}]
    assert read({"role": "user", "content": "hi"}, tools=tools, tool_choice={"type": kind}).tool_choice == ToolChoice(
        "required", frozenset({kind})
    )
    other = read({"role": "user", "content": "hi"}, tools=tools, tool_choice={"type": "local_shell"})
    assert (other.tool_choice, other.dropped) == (ToolChoice(), ("tool_choice:local_shell",))
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": kind}]}
    chosen = read({"role": "user", "content": "hi"}, tools=tools, tool_choice=allowed).tool_choice
    assert chosen == ToolChoice("auto", frozenset({kind}))


def test_side_request() -> None:
    """A side request asks the same model a question, without the conversation and the tools, and requires a brief,
    deterministic answer. The answer is not stored.
    """
    body = {
        "model": "m",
        "input": "hi",
        "instructions": "Talk like a pirate.",
        "previous_response_id": "resp_1",
        "tools": [F],
        "stream": True,
        "text": {"format": {"type": "json_object"}},
        "max_output_tokens": 900,
        "reasoning": {"effort": "low"},
    }
    asked = {
        "model": "m",
        "input": "Is it?",
        "instructions": "Be brief.",
        "temperature": 0,
        "max_output_tokens": 16,
        "store": False,
        "reasoning": {"effort": "low"},
    }
    assert side_request(body, "Be brief.", "Is it?") == asked
    assert not uses_tools(asked)
    assert read_request(asked).stored_history is None


@pytest.mark.parametrize(
    ("body", "history"),
    [({}, None), ({"previous_response_id": "r"}, "r"), ({"previous_response_id": 5}, ""), ({"conversation": "c"}, "")],
)
def test_stored_history_is_recognized(body: dict[str, object], history: str | None) -> None:
    """``stored_history`` is the ID of the answer that a request continues. It is "" for a conversation or an invalid
    ID, and None for a complete request.
    """
    assert read_request({"model": "m", "input": "x", **body}).stored_history == history


def test_configuration_updates_apply_until_the_next():
    """A configuration update in the input applies until the next update of the same setting."""
    wanted = {"type": "json_object"}
    request = read(
        {"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"format": wanted}},
        {"role": "user", "content": "hi"},
        {"type": "program", "id": "p", "code": "f()"},
        {"type": "configuration_update", "reasoning": {"effort": "high"}},
        reasoning={"effort": "none", "summary": "auto"},
    )
    assert request.answer_format == wanted
    assert request.body["reasoning"] == {"effort": "high", "summary": "auto"}
    assert request.dropped == ()
    assert [type(item) for item in request.items] == [Message, HostedItem]


def test_arguments_sent_as_an_object():
    """If a client sends arguments as an object, they are encoded as JSON text. All types other than a string or an
    object are refused.
    """
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": 1}}
    (read,) = read_request({"model": "m", "input": [call]}).items
    assert read.arguments == '{"a":1}'
    with pytest.raises(BadRequest):
        read_request({"model": "m", "input": [{**call, "arguments": [1]}]})
