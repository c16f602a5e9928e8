"""Tools of the Responses API that the client runs, although it declares only their type and no schema.

    {"type": "shell", "environment": {"type": "local"}}     shell_call              shell_call_output
    {"type": "local_shell"}                                 local_shell_call        local_shell_call_output
    {"type": "apply_patch"}                                 apply_patch_call        apply_patch_call_output
    {"type": "tool_search", "execution": "client", …}       tool_search_call        tool_search_output

A model can call such a tool like any function if it sees the parameters. Therefore, each type becomes a tool of that
name with a schema from this module (a search declares its own schema). Calls to the tool are items of a special type. A
tool of the same type is a hosted tool, which the backend runs, if its environment or execution is not local.

Each type is one row of ``LOCAL_TOOLS``. Calls must match the schema, because their items cannot represent other
arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolsim.core.events import ToolKind
from toolsim.core.plan import Tool
from toolsim.wire.json_codec import read_body
from toolsim.wire.json_fields import loaded, mapping, mappings, string

type Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LocalTool:
    """A type of tool that the client runs without declaring a schema, such as ``shell``."""

    kind: ToolKind
    description: str
    parameters: Json
    item: Callable[[Json], dict[str, Any]]
    """A function that converts a call's arguments to an item's fields."""
    arguments: Callable[[Json], Json]
    """A function that converts a call's item back to the call's arguments."""
    answer: Callable[[Json], str]
    """A function that returns the text that the model sees in place of an output item."""


def _integer(description: str) -> dict[str, Any]:
    return {"type": "integer", "description": description}


_SHELL = {
    "type": "object",
    "properties": {
        "commands": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "description": "Command lines, in order",
        },
        "timeout_ms": _integer("Limit for each command, in milliseconds"),
        "max_output_length": _integer("Limit for the output of each command, in characters"),
    },
    "required": ["commands"],
}
_LOCAL_SHELL = {
    "type": "object",
    "properties": {
        "command": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "description": 'A program and its arguments, such as ["bash", "-lc", "ls"]',
        },
        "working_directory": {"type": "string", "description": "Where it runs"},
        "timeout_ms": _integer("Limit in milliseconds"),
    },
    "required": ["command"],
}
_APPLY_PATCH = {
    "type": "object",
    "properties": {
        "operation": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        "path": {"type": "string", "description": "Path of the file"},
        "diff": {
            "type": "string",
            "description": "create_file: the file's lines, each with a + before it. update_file: for each place a line"
            ' "@@", then lines with a space before them (kept), with - (removed) or + (added). delete_file: nothing',
        },
    },
    "required": ["operation", "path"],
}
_TOOL_SEARCH = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


def _shell_item(arguments: Json) -> dict[str, Any]:
    action = {
        "commands": arguments["commands"],
        "max_output_length": arguments.get("max_output_length"),
        "timeout_ms": arguments.get("timeout_ms"),
    }
    return {"action": action, "environment": {"type": "local"}}


def _local_shell_item(arguments: Json) -> dict[str, Any]:
    optional = {key: arguments[key] for key in ("timeout_ms", "working_directory") if arguments.get(key) is not None}
    return {"action": {"type": "exec", "command": arguments["command"], "env": {}, **optional}}


def _patch_item(arguments: Json) -> dict[str, Any]:
    operation = {"type": arguments["operation"], "path": arguments["path"]}
    if arguments["operation"] != "delete_file":
        operation["diff"] = string(arguments.get("diff"))
    return {"operation": operation}


def _action_of(*keys: str) -> Callable[[Json], Json]:
    def arguments(item: Json) -> Json:
        action = mapping(item.get("action"))
        return {key: action[key] for key in keys if action.get(key) is not None}

    return arguments


def _patch_arguments(item: Json) -> Json:
    operation = mapping(item.get("operation"))
    kept = {key: operation[key] for key in ("path", "diff") if key in operation}
    return {"operation": operation.get("type"), **kept}


def _search_arguments(item: Json) -> Json:
    arguments = item.get("arguments")
    return mapping(loaded(arguments) if isinstance(arguments, str) else arguments)


def _shell_answer(item: Json) -> str:
    output = item.get("output")
    if isinstance(output, str):
        return output
    answers = []
    for command in mappings(output):
        outcome = mapping(command.get("outcome"))
        ended = {"timed_out": True} if outcome.get("type") == "timeout" else {"exit_code": outcome.get("exit_code")}
        answers.append({"stdout": command.get("stdout"), "stderr": command.get("stderr"), **ended})
    return json.dumps(answers, ensure_ascii=False)


def _patch_answer(item: Json) -> str:
    return json.dumps({key: item[key] for key in ("status", "output") if item.get(key) is not None}, ensure_ascii=False)


def _search_answer(item: Json) -> str:
    """Return the names of the found tools as JSON. ``request/prompt_suffix.py`` adds instructions for calling them."""
    names = [
        string(mapping(tool.get("function")).get("name") or tool.get("name")) for tool in mappings(item.get("tools"))
    ]
    return json.dumps({"tools": [name for name in names if name]}, ensure_ascii=False)


LOCAL_TOOLS: Mapping[str, LocalTool] = {
    tool.kind: tool
    for tool in (
        LocalTool(
            "shell",
            "Run shell commands on the user's machine, and get the output of each.",
            _SHELL,
            _shell_item,
            _action_of("commands", "timeout_ms", "max_output_length"),
            _shell_answer,
        ),
        LocalTool(
            "local_shell",
            "Run a command on the user's machine, and get its output.",
            _LOCAL_SHELL,
            _local_shell_item,
            _action_of("command", "working_directory", "timeout_ms"),
            _shell_answer,
        ),
        LocalTool(
            "apply_patch",
            "Create, update or delete a file on the user's machine.",
            _APPLY_PATCH,
            _patch_item,
            _patch_arguments,
            _patch_answer,
        ),
        LocalTool(
            "tool_search",
            "Search for further tools; those that are found can be called from then on.",
            _TOOL_SEARCH,
            lambda arguments: {"execution": "client", "arguments": arguments},
            _search_arguments,
            _search_answer,
        ),
    )
}
CALLS: Mapping[str, LocalTool] = {f"{kind}_call": tool for kind, tool in LOCAL_TOOLS.items()}
OUTPUTS: Mapping[str, LocalTool] = {f"{kind}_call_output": tool for kind, tool in LOCAL_TOOLS.items()} | {
    "tool_search_output": LOCAL_TOOLS["tool_search"]
}


def is_local(declared: Json) -> bool:
    """Return whether the client itself runs a tool, given the tool's declaration or the item of a call."""
    match string(declared.get("type")).removesuffix("_call"):
        case "shell":
            return mapping(declared.get("environment")).get("type") in (None, "local")
        case "tool_search":
            return declared.get("execution") == "client"
        case kind:
            return kind in LOCAL_TOOLS


def local_tool(declared: Json) -> Tool:
    """Return a declared tool in the form of a function that can be shown to a model."""
    kind = LOCAL_TOOLS[declared["type"]]
    return Tool(
        name=kind.kind,
        wire_name=kind.kind,
        kind=kind.kind,
        description=string(declared.get("description")) or kind.description,
        parameters=mapping(declared.get("parameters")) or kind.parameters,
    )


def is_item(arguments: str) -> bool:
    """Return whether the item of a local tool's call can represent ``arguments``, a JSON object. The item contains
    parsed values, so it cannot represent numbers that Python cannot read, or reads as infinite.
    """
    return read_body(arguments.encode("utf-8", "surrogatepass")) is not None


def local_item(kind: ToolKind, arguments: str) -> dict[str, Any]:
    """Return the fields of a call's item. ``arguments`` must match the tool's schema and satisfy ``is_item``."""
    return LOCAL_TOOLS[kind].item(json.loads(arguments))
