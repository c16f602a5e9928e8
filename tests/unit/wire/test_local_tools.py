"""Tools that are declared only by type. Their calls and history items are validated with the SDK's types."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pydantic
import pytest
from openai.types.responses import ResponseInputItemParam, ResponseOutputItem
from support.each import each
from toolsim.wire.local_tools import CALLS, LOCAL_TOOLS, OUTPUTS, is_local, local_item, local_tool

# Arguments that a model could write, for each kind of tool.
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "shell": [{"commands": ["ls"]}, {"commands": ["a", "b"], "timeout_ms": 5, "max_output_length": 9}],
    "local_shell": [{"command": ["ls", "-l"]}, {"command": ["x"], "working_directory": "/", "timeout_ms": 5}],
    "apply_patch": [
        {"operation": "create_file", "path": "a", "diff": "+x"},
        {"operation": "update_file", "path": "a", "diff": "@@\n-x\n+y"},
        {"operation": "update_file", "path": "a"},
        {"operation": "delete_file", "path": "a"},
        {"operation": "delete_file", "path": "a", "diff": "ignored"},
    ],
    "tool_search": [{"query": "weather"}],
}
CASES = [(kind, arguments) for kind, each in ARGUMENTS.items() for arguments in each]


@each(("kind", "arguments"), CASES)
def test_call_is_an_item_of_its_type(kind: Any, arguments: dict[str, Any]) -> None:
    """A call becomes an item that the SDK accepts. When the item is read from a history, it yields the same
    arguments.
    """
    jsonschema.Draft202012Validator(LOCAL_TOOLS[kind].parameters).validate(arguments)
    fields = {"id": "x_1", "call_id": "x_1", "type": f"{kind}_call", "status": "completed"}
    item = {**fields, **local_item(kind, json.dumps(arguments))}
    read = pydantic.TypeAdapter(ResponseOutputItem).validate_python(item)
    assert read.type == f"{kind}_call"
    pydantic.TypeAdapter(ResponseInputItemParam).validate_python(item)
    assert is_local(item)
    again = dict(CALLS[item["type"]].arguments(item))
    assert again.pop("diff", "") == ("" if arguments.get("operation") == "delete_file" else arguments.get("diff", ""))
    assert again == {key: value for key, value in arguments.items() if key != "diff"}


@pytest.mark.parametrize("kind", LOCAL_TOOLS)
def test_schemas_are_valid(kind: str) -> None:
    """Each schema of a local tool is valid, and rejects arguments that cannot be represented in the item for a call to
    this tool.
    """
    validator = jsonschema.Draft202012Validator(dict(LOCAL_TOOLS[kind].parameters))
    validator.check_schema(validator.schema)
    for wrong in ({}, {"commands": "ls"}, {"command": []}, {"operation": "move", "path": "a"}, {"query": 1}):
        assert not validator.is_valid(wrong)


@each(
    ("declared", "local"),
    [
        ({"type": "shell"}, True),
        ({"type": "shell", "environment": {"type": "local", "skills": []}}, True),
        ({"type": "shell", "environment": {"type": "container_auto"}}, False),
        ({"type": "shell_call", "environment": {"type": "container_reference", "container_id": "c"}}, False),
        ({"type": "local_shell"}, True),
        ({"type": "apply_patch"}, True),
        ({"type": "tool_search", "execution": "client"}, True),
        ({"type": "tool_search"}, False),
        ({"type": "tool_search", "execution": "server"}, False),
        ({"type": "web_search"}, False),
        ({"type": "function", "name": "shell"}, False),
        ({"type": 1}, False),
        ({"type": "shell", "environment": "odd"}, True),
        ({}, False),
    ],
)
def test_client_tools_are_distinguished(declared: dict[str, Any], local: bool) -> None:
    """Whether the client or the backend runs a tool is determined by the tool's type, its environment and its
    ``execution`` field.
    """
    assert is_local(declared) is local


def test_search_tool_keeps_its_description() -> None:
    """A search tool has the description and the schema that the client sent, or defaults if the client sent none."""
    own = {"type": "object", "properties": {"goal": {"type": "string"}}}
    tool = local_tool({"type": "tool_search", "execution": "client", "description": "Find.", "parameters": own})
    assert (tool.name, tool.kind, tool.description, tool.parameters) == ("tool_search", "tool_search", "Find.", own)
    bare = local_tool({"type": "tool_search", "execution": "client", "description": None})
    assert bare.parameters == LOCAL_TOOLS["tool_search"].parameters
    assert bare.description


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (
            {
                "type": "shell_call_output",
                "output": [
                    {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 1}},
                    {"stdout": "", "stderr": "b", "outcome": {"type": "timeout"}},
                    "odd",
                ],
            },
            '[{"stdout": "a", "stderr": "", "exit_code": 1}, {"stdout": "", "stderr": "b", "timed_out": true}]',
        ),
        ({"type": "local_shell_call_output", "output": "plain"}, "plain"),
        (
            {"type": "apply_patch_call_output", "status": "failed", "output": "no"},
            '{"status": "failed", "output": "no"}',
        ),
        ({"type": "apply_patch_call_output", "status": "completed", "output": None}, '{"status": "completed"}'),
        (
            {
                "type": "tool_search_output",
                "tools": [{"type": "function", "name": "f"}, {"function": {"name": "g"}}, 1],
            },
            '{"tools": ["f", "g"]}',
        ),
        ({"type": "tool_search_output", "tools": "odd"}, '{"tools": []}'),
        ({"type": "shell_call_output"}, "[]"),
    ],
)
def test_outputs_are_readable(item: dict[str, Any], expected: str) -> None:
    """The model sees the output of a local tool in readable form, regardless of the output's format."""
    assert OUTPUTS[item["type"]].answer(item) == expected


@each("item", [{}, {"action": "odd"}, {"operation": []}, {"arguments": "{"}, {"arguments": '{"a": 1}'}])
@each("kind", LOCAL_TOOLS)
def test_malformed_history_item_is_read(kind: str, item: dict[str, Any]) -> None:
    """A malformed item in a history can still be read, because a client's history can contain arbitrary items."""
    json.dumps(dict(LOCAL_TOOLS[kind].arguments(item)))
