"""``tools`` and ``tool_choice`` of both dialects, in all their wrappings, as ``Tool`` and ``Choice``.

Either dialect's shape is read on either endpoint: flat (``{type, name, parameters}``) and nested
(``{type, function: {name, parameters}}``), because clients mix them (LangChain sends nested ones to Responses).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolsimlib.errors import BadRequest
from toolsimlib.plan import Choice, Tool
from toolsimlib.wire.strict import expect, kind_of, missing, optional, required, wrong_type

# The body's fields about client tools: read here, never sent on. The model gets the manifest instead.
CONSUMED = frozenset({"tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"})

# OpenAI's own rule has no dot, but names like ``files.read`` are common with other providers.
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_NAMESPACE_SEPARATOR = "__"

Hosted = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Declaration:
    """A declared tool and the path of the object that declares it ("tools[1].function")."""

    tool: Tool
    param: str


def model_name(name: str, namespace: str | None) -> str:
    """Return the name that the model reads and writes for a tool ``name`` of ``namespace``."""
    return name if namespace is None else f"{namespace}{_NAMESPACE_SEPARATOR}{name}"


def declares_tools(body: Mapping[str, Any]) -> bool:
    """Tell whether ``body`` declares anything but hosted tools; a malformed declaration counts, to get its 400."""
    for param, declared in _sources(body):
        if not isinstance(declared, list):
            return True
        if declared and (param == "functions" or not all(_is_hosted(each) for each in declared)):
            return True
    return False


def read_tools(body: Mapping[str, Any]) -> tuple[tuple[Tool, ...], tuple[Hosted, ...]]:
    """Read the tools that the client runs and, as sent, the hosted ones. Raises BadRequest with the exact param.

    Two declarations of one name must be equal, and count once. Only one in an ``additional_tools`` item, which is part
    of the history, replaces an earlier one.
    """
    tools: dict[str, Tool] = {}
    hosted: list[Hosted] = []
    for each in _declarations(body):
        if not isinstance(each, _Declaration):
            hosted.append(each)
            continue
        tool = each.tool
        known = tools.get(tool.name)
        if known is not None and known != tool and not each.param.startswith("input["):
            message = f"Duplicate tool name '{tool.name}': a name may be declared once, and two declarations differ."
            raise BadRequest(message, f"{each.param}.name", "invalid_value")
        tools[tool.name] = tool
    return tuple(tools.values()), tuple(hosted)


def schema_param(body: Mapping[str, Any], name: str) -> str:
    """Return the path of the schema that ``body`` declares last for the model name ``name``."""
    params = [each.param for each in _declarations(body) if isinstance(each, _Declaration) and each.tool.name == name]
    return f"{params[-1]}.parameters"


def echo_tools(declared: object) -> list[Any]:
    """Return the ``tools`` of a Response object: functions flat and with all of their keys, all else as sent."""
    return [_echo_tool(each) for each in declared] if isinstance(declared, list) else []


def _echo_tool(declared: Any) -> Any:
    if not isinstance(declared, dict) or declared.get("type", "function") != "function":
        return declared
    nested = declared.get("function")
    fields = nested if isinstance(nested, dict) else {key: each for key, each in declared.items() if key != "type"}
    return {"type": "function", "name": None, "description": None, "parameters": None, "strict": None, **fields}


def _sources(body: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield each place that declares tools, with its path: top level, legacy ``functions``, ``additional_tools``."""
    for param in ("tools", "functions"):
        if body.get(param) is not None:
            yield param, body[param]
    items = body.get("input")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("type") == "additional_tools" and item.get("tools") is not None:
            yield f"input[{index}].tools", item["tools"]


def _declarations(body: Mapping[str, Any]) -> Iterator[_Declaration | Hosted]:
    for param, declared in _sources(body):
        for index, each in enumerate(expect(declared, list, param)):
            path = f"{param}[{index}]"
            fields = expect(each, dict, path)
            yield from [_function(fields, path, None)] if param == "functions" else _read_tool(fields, path, None)


def _is_hosted(declared: object) -> bool:
    kind = declared.get("type") if isinstance(declared, dict) else None
    return isinstance(kind, str) and kind not in ("function", "custom", "namespace")


def _read_tool(fields: dict[str, Any], param: str, namespace: str | None) -> Iterator[_Declaration | Hosted]:
    kind = fields.get("type")
    if kind is None and ("function" in fields or "name" in fields):
        kind = "function"  # Left out by hand-written clients; there is only one thing it can be.
    match kind:
        case None:
            raise missing(f"{param}.type")
        case "function":
            nested = optional(fields, "function", dict, f"{param}.function")
            if nested is None:
                yield _function(fields, param, namespace)
            else:
                yield _function(nested, f"{param}.function", namespace)
        case "custom":
            nested = optional(fields, "custom", dict, f"{param}.custom")
            if nested is None:
                yield _custom(fields, param, namespace)
            else:
                yield _custom(nested, f"{param}.custom", namespace)
        case "namespace" if namespace is None:
            inner = _name(fields, f"{param}.name")
            for index, each in enumerate(required(fields, "tools", list, f"{param}.tools")):
                path = f"{param}.tools[{index}]"
                yield from _read_tool(expect(each, dict, path), path, inner)
        case str():
            yield fields
        case _:
            raise wrong_type(kind, "a string", f"{param}.type")


def _function(fields: Mapping[str, Any], param: str, namespace: str | None) -> _Declaration:
    name = _name(fields, f"{param}.name")
    parameters = optional(fields, "parameters", dict, f"{param}.parameters")
    kind = (parameters or {}).get("type")
    if isinstance(kind, str) and kind != "object":
        message = f"Invalid schema for function '{name}': expected a schema of type 'object', but got '{kind}' instead."
        raise BadRequest(message, f"{param}.parameters", "invalid_function_parameters")
    tool = Tool(
        name=model_name(name, namespace),
        wire_name=name,
        description=optional(fields, "description", str, f"{param}.description"),
        parameters=parameters,
        strict=optional(fields, "strict", bool, f"{param}.strict") or False,
        namespace=namespace,
    )
    return _Declaration(tool, param)


def _custom(fields: Mapping[str, Any], param: str, namespace: str | None) -> _Declaration:
    name = _name(fields, f"{param}.name")
    form = optional(fields, "format", dict, f"{param}.format") or {}
    tool = Tool(
        name=model_name(name, namespace),
        wire_name=name,
        kind="custom",
        description=optional(fields, "description", str, f"{param}.description"),
        namespace=namespace,
        grammar=_grammar(form, f"{param}.format") if form.get("type") == "grammar" else None,
    )
    return _Declaration(tool, param)


def _grammar(form: dict[str, Any], param: str) -> str:
    """Return the grammar with its syntax named in a first line; the definition is nested in chat, flat in Responses."""
    nested = optional(form, "grammar", dict, f"{param}.grammar")
    if nested is not None:
        form, param = nested, f"{param}.grammar"
    definition = required(form, "definition", str, f"{param}.definition")
    syntax = optional(form, "syntax", str, f"{param}.syntax") or "lark"
    return f"{syntax}:\n{definition}"


def _name(fields: Mapping[str, Any], param: str) -> str:
    name = required(fields, "name", str, param)
    if _NAME.fullmatch(name):
        return name
    # The name is the client's own text: quoted to a length that can be read.
    message = f"Invalid '{param}': expected a string that matches '^{_NAME.pattern}$', but got '{name[:64]}' instead."
    raise BadRequest(message, param, "invalid_value")


def read_choice(
    value: object, tools: Sequence[Tool], *, hosted: bool, param: Literal["tool_choice", "function_call"]
) -> tuple[Choice, list[str]]:
    """Read ``tool_choice``, or the legacy ``function_call``, against the declared ``tools``.

    ``hosted`` tells whether hosted tools are declared besides, which may satisfy "required". Returns the choice and
    what of it was ignored, for the log. Raises BadRequest with the exact param.
    """
    match value:
        case None | "auto":
            return Choice(), []
        case "none":
            return Choice("none"), []
        case "required" if param == "tool_choice":
            if tools:
                return Choice("required"), []
            if hosted:
                return Choice(), ["tool_choice:required"]
            raise BadRequest("'tool_choice' is 'required', but no tool is declared in 'tools'.", param, "invalid_value")
        case str():
            expected = "'none', 'auto' and 'required'" if param == "tool_choice" else "'none' and 'auto'"
            message = f"Invalid value for '{param}': expected an object or one of {expected}, but got '{value[:64]}'."
            raise BadRequest(message, param, "invalid_value")
        case dict() if param == "function_call":
            return _forced([required(value, "name", str, f"{param}.name")], _Index(tools), param), []
        case dict():
            return _read_choice_object(value, _Index(tools))
        case _:
            raise wrong_type(value, "a string or an object", param)


class _Index:
    """The declared tools by what a choice may call them: the model's name, or the client's own."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._names: dict[str, set[str]] = {}
        for tool in tools:
            self._names.setdefault(tool.name, set()).add(tool.name)
            self._names.setdefault(tool.wire_name, set()).add(tool.name)

    def find(self, name: str) -> set[str]:
        """Return the model names that ``name`` stands for; none if it is not declared."""
        return self._names.get(name, set())


def _read_choice_object(value: dict[str, Any], index: _Index) -> tuple[Choice, list[str]]:
    match value.get("type"):
        case "function" | "custom":
            return _forced([_chosen_name(value, "tool_choice")], index, "tool_choice"), []
        case "allowed_tools":
            nested = optional(value, "allowed_tools", dict, "tool_choice.allowed_tools")
            if nested is not None:
                return _allowed(nested, index, "tool_choice.allowed_tools")
            return _allowed(value, index, "tool_choice")
        case str(kind):
            return Choice(), [f"tool_choice:{kind[:40]}"]
        case None:
            raise missing("tool_choice.type")
        case kind:
            raise wrong_type(kind, "a string", "tool_choice.type")


def _chosen_name(value: dict[str, Any], param: str) -> str:
    """Return the name in ``{type, name}`` or ``{type, function: {name}}`` (``custom`` likewise)."""
    kind = value["type"]
    nested = optional(value, kind, dict, f"{param}.{kind}")
    if nested is not None:
        return required(nested, "name", str, f"{param}.{kind}.name")
    name = required(value, "name", str, f"{param}.name")
    return model_name(name, optional(value, "namespace", str, f"{param}.namespace"))


def _forced(names: Sequence[str], index: _Index, param: str) -> Choice:
    found = frozenset(each for name in names for each in index.find(name))
    if not found:
        listed = ", ".join(f"'{name[:64]}'" for name in names[:10])
        raise BadRequest(f"'{param}' names {listed}, which is not declared in 'tools'.", param, "invalid_value")
    return Choice("required", found)


def _allowed(value: dict[str, Any], index: _Index, param: str) -> tuple[Choice, list[str]]:
    """Read a hard limit. A name that is not declared is ignored as long as another one is."""
    mode = value.get("mode", "auto")
    if mode not in ("auto", "required"):
        got = f"'{mode[:64]}'" if isinstance(mode, str) else kind_of(mode)
        message = f"Invalid value for '{param}.mode': expected 'auto' or 'required', but got {got}."
        raise BadRequest(message, f"{param}.mode", "invalid_value")
    names: list[str] = []
    notes: list[str] = []
    for position, each in enumerate(required(value, "tools", list, f"{param}.tools")):
        path = f"{param}.tools[{position}]"
        entry = expect(each, dict, path)
        kind = required(entry, "type", str, f"{path}.type")
        if kind in ("function", "custom"):
            names.append(_chosen_name(entry, path))
        else:
            notes.append(f"tool_choice:{kind[:40]}")
    known = [name for name in names if index.find(name)]
    if len(known) < len(names):
        notes.append("tool_choice:undeclared")
    if not known and names:
        _forced(names, index, "tool_choice")
    if not known:  # Only hosted tools are allowed: none of the client's own may be called.
        return Choice("auto", frozenset()), notes
    chosen = _forced(known, index, "tool_choice")
    return Choice("required" if mode == "required" else "auto", chosen.names), notes
