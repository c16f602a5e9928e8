"""Converts the ``tool_choice`` of all APIs, and the legacy ``function_call``, to a ``ToolChoice``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from toolsim.core.conversation import ClientRequest
from toolsim.core.errors import BadRequest
from toolsim.core.plan import Tool, ToolChoice
from toolsim.wire.json_fields import (
    expect,
    kind_of,
    mapping,
    mappings,
    missing,
    optional,
    required,
    string,
    wrong_type,
)
from toolsim.wire.local_tools import LOCAL_TOOLS
from toolsim.wire.tools import model_name

type _Index = dict[str, set[str]]
"""Maps each name that a tool choice can contain to the declared tools with this name. A tool choice can contain a
client's name for a tool or the model's; the tools are identified by the model's names.
"""


def read_choice(
    value: object, tools: Sequence[Tool], *, hosted: bool, param: Literal["tool_choice", "function_call"]
) -> tuple[ToolChoice, list[str]]:
    """Read a ``tool_choice``, or a legacy ``function_call``, for the declared ``tools``.

    ``hosted`` specifies whether the request declares hosted tools, which can also satisfy "required". Returns the
    choice and, for the log, its ignored parts. Raises BadRequest, which names the parameter, if the choice is invalid.
    """
    match value:
        case None | "auto":
            return ToolChoice(), []
        case "none":
            return ToolChoice("none"), []
        case "required" if param == "tool_choice":
            if tools:
                return ToolChoice("required"), []
            if hosted:
                return ToolChoice(), ["tool_choice:required"]
            raise BadRequest("'tool_choice' is 'required', but no tool is declared in 'tools'.", param, "invalid_value")
        case str():
            expected = "'none', 'auto' and 'required'" if param == "tool_choice" else "'none' and 'auto'"
            message = f"Invalid value for '{param}': expected an object or one of {expected}, but got '{value[:64]}'."
            raise BadRequest(message, param, "invalid_value")
        case dict() if param == "function_call":
            return _forced([required(value, "name", str, param)], _by_name(tools), param), []
        case dict():
            return _read_choice_object(value, _by_name(tools))
        case _:
            raise wrong_type(value, "a string or an object", param)


def hosted_fields(request: ClientRequest) -> dict[str, Any]:
    """Return the fields of a backend request that declare the tools that the backend runs.

    If the client declares no tools of its own, its tool choice is kept unchanged.
    """
    body, fields = request.body, {"tools": list(request.hosted)}
    if not request.tools:
        return fields | {key: body[key] for key in ("tool_choice", "parallel_tool_calls") if key in body}
    choice = hosted_choice(body.get("tool_choice"), {tool.name for tool in request.tools})
    return fields if choice is None else fields | {"tool_choice": choice}


def hosted_choice(value: object, names: Collection[str]) -> Any:
    """Return the part of a ``tool_choice`` that applies to tools run by the backend, or None if there is no such part.

    ``names`` are the names of the client's own tools.
    """
    match value:
        case "none":
            return value
        case dict() if value.get("type") == "allowed_tools":
            kept = [tool for tool in mappings(value.get("tools")) if _backend_type(tool, names)]
            return {**value, "mode": "auto", "tools": kept}
        case dict() if _backend_type(value, names):
            return value
    return None


def wanted_of_backend(value: object, names: Collection[str]) -> str:
    """Return the type of the hosted tool that a ``tool_choice`` requires, or "" if it does not require one.

    ``names`` are the names of the client's own tools. A choice that allows only hosted tools (``allowed_tools``)
    requires the first of them.
    """
    if not isinstance(value, dict):
        return ""
    if value.get("type") == "allowed_tools":
        tools = mappings(mapping(value.get("allowed_tools")).get("tools") or value.get("tools"))
        kinds = [_backend_type(tool, names) for tool in tools]
        return kinds[0] if kinds and all(kinds) else ""
    return _backend_type(value, names)


def _backend_type(tool: Mapping[str, Any], names: Collection[str]) -> str:
    kind = string(tool.get("type"))
    is_clients = kind in ("function", "custom") or (kind in LOCAL_TOOLS and kind in names)
    return "" if is_clients else kind


def _by_name(tools: Iterable[Tool]) -> _Index:
    index: _Index = {}
    for tool in tools:
        index.setdefault(tool.name, set()).add(tool.name)
        index.setdefault(tool.wire_name, set()).add(tool.name)
    return index


def _read_choice_object(value: dict[str, Any], index: _Index) -> tuple[ToolChoice, list[str]]:
    match value.get("type"):
        case "function" | "custom":
            return _forced([_chosen_name(value, "tool_choice")], index, "tool_choice"), []
        case "allowed_tools":
            nested = optional(value, "allowed_tools", dict, "tool_choice")
            if nested is not None:
                return _allowed(nested, index, "tool_choice.allowed_tools")
            return _allowed(value, index, "tool_choice")
        case str(kind) if kind in LOCAL_TOOLS and kind in index:
            return _forced([kind], index, "tool_choice"), []
        case str(kind):
            return ToolChoice(), [f"tool_choice:{kind[:40]}"]
        case None:
            raise missing("tool_choice.type")
        case kind:
            raise wrong_type(kind, "a string", "tool_choice.type")


def _chosen_name(value: dict[str, Any], param: str) -> str:
    """Return the tool's name from a flat choice (``{type, name}``) or a nested one (``{type, function: {name}}``)."""
    kind = value["type"]
    nested = optional(value, kind, dict, param)
    if nested is not None:
        return required(nested, "name", str, f"{param}.{kind}")
    name = required(value, "name", str, param)
    return model_name(name, optional(value, "namespace", str, param))


def _forced(names: Sequence[str], index: _Index, param: str) -> ToolChoice:
    found = frozenset(tool_name for name in names for tool_name in index.get(name, ()))
    if not found:
        listed = ", ".join(f"'{name[:64]}'" for name in names[:10])
        raise BadRequest(f"'{param}' names {listed}, which is not declared in 'tools'.", param, "invalid_value")
    return ToolChoice("required", found)


def _allowed(value: dict[str, Any], index: _Index, param: str) -> tuple[ToolChoice, list[str]]:
    """Read a list of allowed tools. An undeclared name is ignored if the list also contains a declared name."""
    mode = value.get("mode", "auto")
    if mode not in ("auto", "required"):
        got = f"'{mode[:64]}'" if isinstance(mode, str) else kind_of(mode)
        message = f"Invalid value for '{param}.mode': expected 'auto' or 'required', but got {got}."
        raise BadRequest(message, f"{param}.mode", "invalid_value")
    names: list[str] = []
    notes: list[str] = []
    for position, tool in enumerate(required(value, "tools", list, param)):
        path = f"{param}.tools[{position}]"
        entry = expect(tool, dict, path)
        kind = required(entry, "type", str, path)
        if kind in ("function", "custom"):
            names.append(_chosen_name(entry, path))
        elif kind in LOCAL_TOOLS and kind in index:
            names.append(kind)
        else:
            notes.append(f"tool_choice:{kind[:40]}")
    declared = [name for name in names if name in index]
    if len(declared) < len(names):
        notes.append("tool_choice:undeclared")
    if not declared and names:
        _forced(names, index, "tool_choice")
    if not declared:  # Only hosted tools are allowed, so the model must not call any of the client's tools.
        return ToolChoice("auto", frozenset()), notes
    chosen = _forced(declared, index, "tool_choice")
    return ToolChoice("required" if mode == "required" else "auto", chosen.names), notes
