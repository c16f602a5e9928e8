"""Converts the ``tools`` of all APIs to ``Tool``s.

Every endpoint accepts flat tools (``{type, name, parameters}``) and nested tools (``{type, function: {name,
parameters}}``), because clients mix the shapes. LangChain, for example, sends nested tools to the Responses API.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from toolsim.core.conversation import ClientRequest
from toolsim.core.errors import BadRequest
from toolsim.core.plan import Tool
from toolsim.wire.json_codec import dump
from toolsim.wire.json_fields import array, expect, mapping, mappings, missing, optional, required, string, wrong_type
from toolsim.wire.local_tools import LOCAL_TOOLS, is_local, local_tool

# Fields of a request body that declare or select the client's tools. They are not forwarded, because the model receives
# the manifest instead.
CONSUMED = frozenset({"tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"})

# OpenAI does not allow dots in tool names, but names like ``files.read`` are common with other providers.
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_NAMESPACE_SEPARATOR = "__"

# Types of history items that declare tools: Codex's own items, and the results of a tool search.
TOOL_ITEMS = ("additional_tools", "tool_search_output")

# Fields of an ``mcp`` tool that only the MCP server is allowed to see.
_SECRETS = ("headers", "authorization")
_ORIGIN = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://)(?:[^/?#@]*@)?([^/?#@]*)")

Hosted = Mapping[str, Any]

# A request's tools are cached only if their JSON has at most this number of characters. The cache contains the tools of
# up to 32 requests.
_MAX_CACHED_SIZE = 262_144


type _Declaration = tuple[Tool, str]
"""A declared tool and the path of the object that declares it ("tools[1].function")."""


def model_name(name: str, namespace: str | None) -> str:
    """Return the name under which the model sees the tool ``name`` of ``namespace``."""
    return name if namespace is None else f"{namespace}{_NAMESPACE_SEPARATOR}{name}"


def declares_tools(body: Mapping[str, Any]) -> bool:
    """Return whether ``body`` declares tools other than hosted tools. A malformed declaration also counts as a tool, so
    that it causes a 400 error when it is read.
    """
    for param, declared in _sources(body):
        if not isinstance(declared, list):
            return True
        if declared and (param == "functions" or not all(_is_hosted(tool, body) for tool in declared)):
            return True
    return False


def read_tools(body: Mapping[str, Any]) -> tuple[tuple[Tool, ...], tuple[Hosted, ...]]:
    """Read the client's tools and, as sent, the hosted tools. Raises BadRequest, which names the parameter, if a tool
    is invalid.

    Two declarations with the same name must be equal, and result in one tool. However, a declaration in a history item
    (``TOOL_ITEMS``) replaces an earlier declaration. The results are cached and shared, so they must not be modified.
    """
    declaring = _declaring(body)
    text = dump(declaring)
    if len(text) > _MAX_CACHED_SIZE:
        return _collected(_declarations(declaring))
    return _read_cached(_Declared(text, declaring))


@dataclass(frozen=True, slots=True)
class _Declared:
    """The parts of a request body that declare tools. ``key``, their JSON, is the cache key."""

    key: str
    body: dict[str, Any] = field(compare=False)


@lru_cache(maxsize=32)
def _read_cached(declared: _Declared) -> tuple[tuple[Tool, ...], tuple[Hosted, ...]]:
    return _collected(_declarations(declared.body))


def _collected(declarations: Iterable[_Declaration | Hosted]) -> tuple[tuple[Tool, ...], tuple[Hosted, ...]]:
    tools: dict[str, Tool] = {}
    hosted: list[Hosted] = []
    for declaration in declarations:
        if not isinstance(declaration, tuple):
            hosted.append(declaration)
            continue
        tool, param = declaration
        earlier = tools.get(tool.name)
        if earlier is not None and earlier != tool and not param.startswith("input["):
            message = f"Duplicate tool name '{tool.name}': its declarations differ."
            raise BadRequest(message, f"{param}.name", "invalid_value")
        tools[tool.name] = tool
    return tuple(tools.values()), tuple(hosted)


def schema_param(request: ClientRequest, name: str) -> str:
    """Return the path of the schema in the last declaration of the tool that the model knows as ``name``."""
    declarations = _declarations(request.body)
    params = [found[1] for found in declarations if isinstance(found, tuple) and found[0].name == name]
    return f"{params[-1]}.parameters"


def echo_tools(declared: object) -> list[Any]:
    """Return the ``tools`` of a Response object. Functions are flat, with null for missing fields. Other tools are as
    sent, but without secrets.
    """
    return [_echo_tool(tool) for tool in array(declared)]


def _echo_tool(declared: Any) -> Any:
    if not isinstance(declared, dict) or declared.get("type", "function") != "function":
        return _without_secrets(declared) if isinstance(declared, dict) else declared
    nested = declared.get("function")
    fields = _joined(declared, nested) if isinstance(nested, dict) else declared
    return {"type": "function", "name": None, "description": None, "parameters": None, "strict": None, **fields}


def _without_secrets(declared: dict[str, Any]) -> dict[str, Any]:
    """Return the declaration of a hosted tool without the secrets for its MCP server. The URL is redacted, too."""
    redacted = {name: None if name in _SECRETS else value for name, value in declared.items()}
    if isinstance(url := declared.get("server_url"), str):
        found = _ORIGIN.match(url)
        redacted["server_url"] = f"{found[1]}{found[2]}/<redacted>" if found else "<redacted>"
    return redacted


def offered_natively(body: Mapping[str, Any], names: Collection[str], hosted: Collection[Hosted]) -> dict[str, Any]:
    """Return ``body`` for a backend with native tool support.

    The returned body declares only the ``hosted`` tools, and the client's tools whose model names are among ``names``.
    """

    def is_offered(tool: Mapping[str, Any], namespace: str | None = None) -> bool:
        return tool in hosted if _is_hosted(tool, body) else model_name(_own_name(tool), namespace) in names

    def left(declared: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if declared.get("type") != "namespace":
            return declared if is_offered(declared) else None
        inner = [tool for tool in declared["tools"] if is_offered(tool, declared["name"])]
        return {**declared, "tools": inner} if inner else None

    offered = dict(body)
    for param, declared in _sources(body):
        if param in body and isinstance(declared, list):
            offered[param] = [rest for tool in declared if (rest := left(tool)) is not None]
    return offered


def _own_name(declared: Mapping[str, Any]) -> str:
    nested = declared.get(declared.get("type") or "function")
    return string(mapping(nested).get("name")) or string(declared.get("name")) or string(declared.get("type"))


def _sources(body: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield each list of declared tools with its path: ``tools``, legacy ``functions``, and lists in history items."""
    for param in ("tools", "functions"):
        if body.get(param) is not None:
            yield param, body[param]
    for index, item in enumerate(array(body.get("input"))):
        if _is_source(item):
            yield f"input[{index}].tools", item["tools"]


def _is_source(item: object) -> bool:
    return isinstance(item, dict) and string(item.get("type")) in TOOL_ITEMS and item.get("tools") is not None


def _declaring(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of ``body`` that determine its tools. Items that do not declare tools are replaced with None or
    left out.
    """
    parts = {key: body[key] for key in ("tools", "functions") if body.get(key) is not None}
    items = array(body.get("input"))
    found = [index for index, item in enumerate(items) if _is_source(item)]
    if found:
        parts["input"] = [item if _is_source(item) else None for item in items[: found[-1] + 1]]
    return parts | ({"messages": None} if "messages" in body else {})


def _declarations(body: Mapping[str, Any]) -> Iterator[_Declaration | Hosted]:
    for param, declared in _sources(body):
        for index, tool in enumerate(expect(declared, list, param)):
            path = f"{param}[{index}]"
            fields = expect(tool, dict, path)
            if param == "functions":
                yield _function(fields, path, None)
            elif not _is_for_model(fields):
                yield fields
            elif _is_local(fields, body):
                yield local_tool(fields), path
            else:
                yield from _read_tool(fields, path, None)


def _is_hosted(declared: object, body: Mapping[str, Any]) -> bool:
    kind = mapping(declared).get("type")
    is_ours = kind in ("function", "custom", "namespace") or _is_local(declared, body)
    return isinstance(kind, str) and not (is_ours and _is_for_model(declared))


def _is_for_model(declared: object) -> bool:
    """Return whether the model itself is allowed to call a tool. Some tools can be called only by a program that the
    backend runs.
    """
    callers = mapping(declared).get("allowed_callers")
    return not isinstance(callers, list) or "direct" in callers


def _is_local(declared: object, body: Mapping[str, Any]) -> bool:
    """Return whether a tool is a built-in tool of the Responses API that the client runs. Chat requests have no such
    tools, because chat completions has no items for calls to them.
    """
    if "messages" in body or not isinstance(declared, dict):
        return False
    kind = declared.get("type")
    return isinstance(kind, str) and kind in LOCAL_TOOLS and is_local(declared)


def _read_tool(fields: dict[str, Any], param: str, namespace: str | None) -> Iterable[_Declaration | Hosted]:
    """Return the tools of a declaration: a single tool, or all tools of a namespace."""
    kind = fields.get("type")
    if kind is None and ("function" in fields or "name" in fields):
        kind = "function"  # Some hand-written clients omit the type of a function.
    match kind:
        case None:
            raise missing(f"{param}.type")
        case "function":
            nested = optional(fields, "function", dict, param)
            if nested is None:
                return (_function(fields, param, namespace),)
            return (_function(_joined(fields, nested), f"{param}.function", namespace),)
        case "custom":
            nested = optional(fields, "custom", dict, param)
            if nested is None:
                return (_custom(fields, param, namespace),)
            return (_custom(nested, f"{param}.custom", namespace),)
        case "namespace" if namespace is None:
            name = _name(fields, param)
            inner: list[_Declaration | Hosted] = []
            for index, tool in enumerate(required(fields, "tools", list, param)):
                path = f"{param}.tools[{index}]"
                if _is_for_model(expect(tool, dict, path)):
                    inner += _read_tool(tool, path, name)
            return inner
        case str():
            return (fields,)
        case _:
            raise wrong_type(kind, "a string", f"{param}.type")


def _joined(outer: Mapping[str, Any], nested: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return all fields of a nested function. Some clients put the name or other fields outside the nested object."""
    outside = {key: outer[key] for key in ("name", "description", "parameters", "strict") if outer.get(key) is not None}
    return {**outside, **{key: value for key, value in nested.items() if value is not None}} if outside else nested


def _function(fields: Mapping[str, Any], param: str, namespace: str | None) -> _Declaration:
    name = _name(fields, param)
    parameters = optional(fields, "parameters", dict, param)
    kind = "object" if parameters is None else parameters.get("type")
    if kind != "object" and isinstance(kind, str):
        message = f"Invalid schema for function '{name}': expected a schema of type 'object', but got '{kind}' instead."
        raise BadRequest(message, f"{param}.parameters", "invalid_function_parameters")
    description = optional(fields, "description", str, param)
    strict = optional(fields, "strict", bool, param) or False
    tool = Tool(model_name(name, namespace), name, "function", description, parameters, strict, namespace)
    if _is_deferred(fields, param):
        tool = replace(tool, deferred=True)
    if examples := tuple(mappings(fields.get("input_examples"))):
        tool = replace(tool, examples=examples)
    encrypted = tuple(key for key, schema in tool.declared.items() if mapping(schema).get("encrypted") is True)
    return replace(tool, encrypted=encrypted) if encrypted else tool, param


def _custom(fields: Mapping[str, Any], param: str, namespace: str | None) -> _Declaration:
    name = _name(fields, param)
    form = optional(fields, "format", dict, param) or {}
    tool = Tool(
        name=model_name(name, namespace),
        wire_name=name,
        kind="custom",
        description=optional(fields, "description", str, param),
        namespace=namespace,
        grammar=_grammar(form, f"{param}.format") if form.get("type") == "grammar" else None,
        deferred=_is_deferred(fields, param),
    )
    return tool, param


def _is_deferred(fields: Mapping[str, Any], param: str) -> bool:
    """Return whether a tool is loaded only after a search has found it. A tool that a history item declares is already
    loaded.
    """
    return fields.get("defer_loading") is True and not param.startswith("input[")


def _grammar(form: dict[str, Any], param: str) -> str:
    """Return a grammar, preceded by a line that names its syntax. In the chat completions API only, the definition is
    nested in a ``grammar`` object.
    """
    nested = optional(form, "grammar", dict, param)
    if nested is not None:
        form, param = nested, f"{param}.grammar"
    definition = required(form, "definition", str, param)
    syntax = optional(form, "syntax", str, param) or "lark"
    return f"{syntax}:\n{definition}"


def _name(fields: Mapping[str, Any], param: str) -> str:
    name = required(fields, "name", str, param)
    if _NAME.fullmatch(name):
        return name
    # Only the beginning of the name is quoted, because the client can send a name of any length.
    place = f"{param}.name"
    message = f"Invalid '{place}': expected a string that matches '^{_NAME.pattern}$', but got '{name[:64]}' instead."
    raise BadRequest(message, place, "invalid_value")
