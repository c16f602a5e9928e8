"""Conversion of input items in a Responses request to conversation items."""

import pytest
from support.each import each
from toolsim.core.conversation import Call, CallOutput, HostedItem, Image, Message, Raw, Text, Thought
from toolsim.wire.responses.history import call_ids
from toolsim.wire.responses.request import read_request

F = {"type": "function", "name": "f"}
TEXT = {"type": "input_text", "text": "x"}
IMAGE = {"type": "input_image", "image_url": "u", "detail": "low"}


def say(role, *texts):
    return Message(role, tuple(Text(text) for text in texts))


def read(*items):
    return read_request({"model": "m", "input": list(items)})


@each(
    ("item", "read_as"),
    [
        ({"role": "user", "content": "hi"}, say("user", "hi")),
        (
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "hi"}]},
            say("developer", "hi"),
        ),
        (
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "phase": "final_answer",
                "content": [
                    {"type": "output_text", "text": "hi"},
                    {"type": "refusal", "refusal": "no"},
                ],
            },
            say("assistant", "hi", "no"),
        ),
        (
            {
                "role": "user",
                "content": [IMAGE, {"type": "input_file", "file_id": "x"}],
            },
            Message("user", (Image("u", "low"), Raw("responses", {"type": "input_file", "file_id": "x"}))),
        ),
        (
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "c_1",
                "name": "f",
                "arguments": "{}",
                "status": "completed",
            },
            Call("c_1", "f", "{}", "fc_1"),
        ),
        ({"type": "function_call", "call_id": "c_1", "name": "f", "arguments": ""}, Call("c_1", "f", "")),
        ({"type": "function_call", "id": "fc_1", "name": "f"}, Call("fc_1", "f", "", "fc_1")),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "namespace": "ns", "arguments": "{}"},
            Call("c", "ns__f", "{}"),
        ),
        ({"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"}, Call("c", "p", "x", kind="custom")),
        ({"type": "function_call_output", "call_id": "c", "output": "x"}, CallOutput("c", (Text("x"),))),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": "x"}, CallOutput("c", (Text("x"),))),
        (
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [
                    {"type": "input_text", "text": "x"},
                    {"type": "input_image", "image_url": "u", "detail": "low"},
                ],
            },
            CallOutput("c", (Text("x"), Image("u", "low"))),
        ),
        ({"type": "function_call_output", "name": "f", "output": None}, CallOutput("f", (), "f")),
    ],
)
def test_input_items_are_converted(item, read_as):
    """Each known type of input item is converted, and nothing is reported as dropped."""
    request = read(item)
    assert request.items == (read_as,)
    assert request.dropped == ()


TOKEN = "gAAAAAB" + "x" * 120


def test_messages_between_agents():
    """In messages between agents, plain text is kept. Ciphertext is dropped and listed in the report."""
    head = {"type": "input_text", "text": "Payload:"}
    plain, sealed = ({"type": "encrypted_content", "encrypted_content": text} for text in ("Count.", TOKEN))
    message = {"type": "agent_message", "author": "/root", "recipient": "/root/a"}
    request = read(*({**message, "content": content} for content in ([head, plain], [head, sealed], [sealed])))
    assert request.items == (say("user", "Payload:", "Count."), say("user", "Payload:"))
    assert request.dropped == ("ciphertext", "ciphertext")


def test_string_input():
    """An input that is a string becomes one user message."""
    assert read_request({"input": "hi"}).items == (say("user", "hi"),)


def test_output_by_name():
    """If an output contains a tool's name instead of a call ID, it is matched to the latest call to this tool."""
    calls = [
        {"type": "function_call", "call_id": f"c{n}", "name": "f", "namespace": "ns", "arguments": "{}"} for n in (1, 2)
    ]
    output = {"type": "function_call_output", "name": "f", "namespace": "ns", "output": "x"}
    assert read(*calls, output).items[-1] == CallOutput("c2", (Text("x"),), "ns__f")


@each(
    ("item", "read_as", "note"),
    [
        ({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}, None, "reasoning"),
        ({"type": "reasoning", "summary": "x", "content": [1, {"text": 2}]}, None, "reasoning"),
        ({"type": "item_reference", "id": "msg_1"}, None, "item_reference"),
        ({"type": "item_reference", "id": {}}, None, "item_reference"),
        ({"type": "compaction", "encrypted_content": "x"}, None, "compaction"),
        ({"type": "memo", "text": "x"}, say("user", "x"), "memo"),
        ({"type": "memo", "role": "assistant", "content": "x"}, say("assistant", "x"), "memo"),
        (
            {"type": "memo", "role": ["x"], "content": [{"type": "text", "text": "x"}, {"type": "y"}]},
            say("user", "x"),
            "memo",
        ),
        ({"type": "memo", "content": {"deep": 1}}, None, "memo"),
        ({"type": "x" * 1000}, None, "x" * 40),
        ({"role": "critic", "content": "x"}, say("user", "x"), "role:critic"),
    ],
)
def test_unknown_items(item, read_as, note):
    """An unknown item is converted to text or dropped. In both cases it is listed in the report, and it never causes an
    error.
    """
    request = read(item)
    assert request.items == (() if read_as is None else (read_as,))
    assert request.dropped == (note,)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call", "id": "ws_1"},
        {"type": "mcp_call", "output": "x", "text": "x"},
        {"type": "mcp_list_tools", "tools": []},
        {"type": "mcp_approval_response", "approve": True, "approval_request_id": "mcpr_1"},
        {"type": "shell_call_output", "text": "x"},
    ],
)
def test_hosted_tool_items_are_kept_as_sent(item):
    """Items of hosted tools are kept exactly as the client sent them, because a backend with the same API might accept
    them.
    """
    assert read(item).items == (HostedItem(item),)
    assert read(item).dropped == ()


def test_resolved_reference():
    """A reference to an item in the same request does not add the item to the conversation a second time."""
    message = {"type": "message", "id": "msg_1", "role": "assistant", "content": "hi"}
    reference = {"type": "item_reference", "id": "msg_1"}
    request = read(reference, message, reference)
    assert (request.items, request.dropped) == ((say("assistant", "hi"),), ())


def test_call_ids():
    """IDs are found in calls, in outputs and in references to stored items."""
    items = [{"id": "fc_1", "call_id": "call_1"}, {"type": "item_reference", "id": "fc_2"}, {"id": 3}, "x"]
    assert call_ids(items) == ["fc_1", "call_1", "fc_2"]


def test_bare_parts_become_messages():
    """Content parts outside a message become user messages."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,x"}
    items = read({"type": "input_text", "text": "see"}, image).items
    assert items == (say("user", "see"), Message("user", (Image("data:image/png;base64,x"),)))


@pytest.mark.parametrize("kind", ["additional_tools", "tool_search_output"])
def test_items_that_declare_tools(kind):
    """Items that declare tools extend the request's list of tools, and do not appear in the conversation."""
    request = read({"role": "user", "content": "hi"}, {"type": kind, "tools": [F]})
    assert [tool.name for tool in request.tools] == ["f"]
    assert (request.items, request.dropped) == ((say("user", "hi"),), ())


EXIT = {"type": "exit", "exit_code": 0}


def test_calls_of_tools_declared_by_type():
    """For a tool that is declared by type, a call's arguments are JSON, and its output is matched by the item ID or the
    call ID.
    """
    request = read(
        {"type": "shell_call", "id": "sh_1", "call_id": "sh_001", "action": {"commands": ["ls"], "timeout_ms": None}},
        {"type": "shell_call_output", "call_id": "sh_001", "output": [{"stdout": "a", "stderr": "", "outcome": EXIT}]},
        {
            "type": "local_shell_call",
            "id": "lsh_7",
            "call_id": "c2",
            "action": {"type": "exec", "command": ["x"], "env": {}},
        },
        {"type": "local_shell_call_output", "id": "lsh_7", "output": "done"},
        {"type": "apply_patch_call", "call_id": "c3", "operation": {"type": "delete_file", "path": "a"}},
        {"type": "apply_patch_call_output", "call_id": "c3", "status": "completed"},
        {"type": "tool_search_call", "call_id": "c4", "execution": "client", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": "c4", "execution": "client", "tools": [F]},
    )
    assert request.items == (
        Call("sh_001", "shell", '{"commands":["ls"]}', "sh_1", "shell"),
        CallOutput("sh_001", (Text('[{"stdout": "a", "stderr": "", "exit_code": 0}]'),), "shell"),
        Call("c2", "local_shell", '{"command":["x"]}', "lsh_7", "local_shell"),
        CallOutput("c2", (Text("done"),), "local_shell"),
        Call("c3", "apply_patch", '{"operation":"delete_file","path":"a"}', None, "apply_patch"),
        CallOutput("c3", (Text('{"status": "completed"}'),), "apply_patch"),
        Call("c4", "tool_search", '{"query":"x"}', None, "tool_search"),
        CallOutput("c4", (Text('{"tools": ["f"]}'),), "tool_search"),
    )
    assert [tool.name for tool in request.tools] == ["f"]
    assert (request.dropped, request.highest_call) == ((), 7)


def test_hosted_calls_are_kept_as_opaque_items():
    """Calls that OpenAI's servers ran are kept as opaque items, which only a backend with the same API can use."""
    request = read(
        {"type": "shell_call", "call_id": "c", "environment": {"type": "container_reference"}, "action": {}},
        {"type": "shell_call_output", "call_id": "c", "output": []},
        {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []},
    )
    assert [item.kind for item in request.items] == ["shell_call", "shell_call_output"]


def test_reasoning_items():
    """Reasoning is read from the item's text or, if there is none, from its summary, in which each part becomes a
    paragraph.
    """
    summary = [{"type": "summary_text", "text": "short"}, {"type": "summary_text", "text": "words"}]
    request = read(
        {"type": "reasoning", "summary": summary},
        {"type": "reasoning", "summary": summary, "content": [{"type": "reasoning_text", "text": "long"}]},
    )
    assert request.items == (Thought("short\n\nwords"), Thought("long"))
    assert request.dropped == ()
