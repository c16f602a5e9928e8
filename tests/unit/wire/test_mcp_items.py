"""MCP items, validated with the SDK's types, and the MCP fields of a request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from toolsim.core.conversation import Call, CallOutput, Text
from toolsim.core.errors import BadRequest
from toolsim.core.events import ClientEvent, Ended
from toolsim.core.plan import AnswerForm
from toolsim.wire.mcp_items import (
    McpCall,
    after_calls,
    approval_request,
    as_functions,
    choice_of_functions,
    decisions,
    declared,
    error_text,
    list_events,
    listed,
    new_call_id,
)
from toolsim.wire.responses.request import read_request
from toolsim.wire.responses.writer import ResponsesWriter

CALL = McpCall("mcp_1", "files", "read", '{"path":"a"}', "mcpr_1")
TOOL = {"name": "read", "description": "Read.", "input_schema": {"type": "object"}, "annotations": None}
ERROR = {"type": "mcp_protocol_error", "code": -32000, "message": "It has gone."}


def test_sdk_reads_every_event() -> None:
    """The SDK parses the events for tool lists, calls, failures and approval requests."""
    events: list[ClientEvent] = [
        *list_events("files", [TOOL], None),
        *list_events("docs", [], "It has gone."),
        *CALL.begin(),
        *CALL.end("text", None),
        *McpCall(new_call_id(), "files", "drop", "").begin(),
        *McpCall("mcp_1", "files", "drop", "").end(None, ERROR),
        approval_request("mcpr_2", "files", "drop", "{}"),
        Ended(),
    ]
    echo = read_request({"input": "x"}).form.echo
    writer = ResponsesWriter(AnswerForm(stream=True, model="m", echo=echo))
    frames = b"".join(frame for event in events for frame in writer.write(event)).decode()
    kind = TypeAdapter[Any](ResponseStreamEvent)
    seen = [kind.validate_json(line[6:]) for line in frames.split("\n") if line.startswith("data: {")]
    assert [event.type.removeprefix("response.") for event in seen if "mcp" in event.type] == [
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "mcp_list_tools.in_progress",
        "mcp_list_tools.failed",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "mcp_call.in_progress",
        "mcp_call_arguments.done",
    ]
    answer = Response.model_validate(writer.body)
    good, lost, call, *_ = answer.output
    assert good.type == lost.type == "mcp_list_tools"
    assert (good.tools[0].name, lost.error) == ("read", "It has gone.")
    assert call.type == "mcp_call"
    assert (call.output, call.status, call.approval_request_id) == ("text", "completed", "mcpr_1")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, "Error: the call failed."),
        ("gone", "Error: gone"),
        (ERROR, "Error: It has gone."),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "Error: a\nb"),
        ({"content": 3}, "Error: the call failed."),
    ],
)
def test_errors_become_text(error: Any, words: str) -> None:
    """An MCP error that is stored in an item is converted to text, regardless of its format."""
    assert error_text(error) == words


def shown(label: str, name: str) -> str:
    return f"{label}__{name}"


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "files", "tools": [TOOL]},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "files", "name": "read", "arguments": "{}", "output": "text"},
    {"type": "mcp_call", "id": "mcp_2", "server_label": "files", "name": "drop", "arguments": "{}", "error": ERROR},
    {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "files", "name": "drop", "arguments": '{"a":1}'},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    {"type": "mcp_call", "id": "x", "server_label": "theirs", "name": "read", "arguments": "{}", "output": ""},
]
MCP = {"type": "mcp", "server_label": "files"}
THEIRS = {"type": "mcp", "server_label": "theirs"}
FUNCTION = {"type": "function", "name": "files__read"}


def test_mcp_request_becomes_a_function_request() -> None:
    """Tools and items of MCP servers that toolsim knows become functions, calls and outputs. Tools and items of other
    servers are kept.
    """
    body = {"input": HISTORY, "tools": [MCP, THEIRS, {"type": "function", "name": "f"}]}
    decided = {"mcpr_1": (Call("mcp_9", "files__drop", '{"a":1}'), CallOutput("mcp_9", (Text("done"),)))}
    plain = as_functions(body, [FUNCTION], shown, lambda label: label == "files", decided)
    assert plain["tools"] == [THEIRS, {"type": "function", "name": "f"}, FUNCTION]
    kinds = [(item.get("type"), item.get("call_id"), item.get("output")) for item in plain["input"]]
    assert kinds == [
        (None, None, None),
        ("function_call", "mcp_1", None),
        ("function_call_output", "mcp_1", "text"),
        ("function_call", "mcp_2", None),
        ("function_call_output", "mcp_2", "Error: It has gone."),
        ("function_call", "mcp_9", None),
        ("function_call_output", "mcp_9", "done"),
        ("mcp_call", None, ""),
    ]
    assert plain["input"][1]["name"] == "files__read"
    assert [item.call_id for item in read_request(plain).items if isinstance(item, Call)] == ["mcp_1", "mcp_2", "mcp_9"]
    assert body["input"] == HISTORY
    words = as_functions({"input": "hi"}, [FUNCTION], shown, lambda label: True, {})
    assert words == {"input": "hi", "tools": [FUNCTION]}


def test_pending_decisions_are_returned() -> None:
    """An approval decision is returned together with its approval request, unless a call has already followed the
    decision.
    """
    [decision] = decisions({"input": HISTORY})
    assert (decision.id, decision.approve, decision.asked) == ("mcpr_1", True, HISTORY[4])
    made = {**HISTORY[2], "approval_request_id": "mcpr_1"}
    assert decisions({"input": [*HISTORY, made]}) == []
    [no] = decisions({"input": [{**HISTORY[5], "approve": "yes", "reason": "never"}]})
    assert (no.approve, no.reason, no.asked, no.param) == (False, "never", {}, "input[0].approval_request_id")
    with pytest.raises(BadRequest):
        decisions({"input": [{"type": "mcp_approval_response", "approve": True}]})
    [first] = decisions({"input": [*HISTORY, {**HISTORY[5], "approve": False}]})
    assert first.approve
    odd = {**HISTORY[2], "approval_request_id": ["mcpr_1"]}
    with pytest.raises(BadRequest):
        decisions({"input": [odd, {**HISTORY[5], "approval_request_id": {}}]})
    for nothing in ({}, {"input": "hi"}, {"input": [3, None]}):
        assert decisions(nothing) == []
        assert listed(nothing) == set()
    assert listed({"input": HISTORY}) == {"files"}
    assert list(declared({"tools": [FUNCTION, MCP, 3]})) == [("tools[1]", MCP)]
    assert list(declared({"tools": "mcp"})) == []


ALL = {"read": "files__read", "drop": "files__drop"}
FUNCTIONS = [{"type": "function", "name": name} for name in ALL.values()]


@pytest.mark.parametrize(
    ("choice", "becomes"),
    [
        ("auto", "auto"),
        ({"type": "function", "name": "f"}, {"type": "function", "name": "f"}),
        ({"type": "mcp", "server_label": "files", "name": "drop"}, FUNCTIONS[1]),
        (
            {"type": "mcp", "server_label": "files"},
            {"type": "allowed_tools", "mode": "required", "tools": FUNCTIONS},
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}, MCP]},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}, *FUNCTIONS]},
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{**MCP, "name": "read"}]},
            {"type": "allowed_tools", "mode": "required", "tools": FUNCTIONS[:1]},
        ),
    ],
)
def test_choice_of_mcp_tools(choice: Any, becomes: Any) -> None:
    """A choice of MCP tools becomes a choice of the functions that represent these tools."""
    assert choice_of_functions(choice, lambda label: ALL if label == "files" else {}) == becomes
    with pytest.raises(BadRequest):
        choice_of_functions({**MCP, "name": "unknown"}, lambda label: ALL)


def test_forced_choice_becomes_auto_after_a_call() -> None:
    """After a call, a forced tool choice becomes "auto", so that the model can write its answer."""
    forced = {"type": "function", "name": "f"}
    limit = {"type": "allowed_tools", "mode": "required", "tools": [forced]}
    assert [after_calls(choice) for choice in ("auto", "none", "required", forced)] == ["auto", "none", "auto", "auto"]
    assert after_calls(limit) == {**limit, "mode": "auto"}
    assert json.dumps(limit)
