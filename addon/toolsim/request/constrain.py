"""Builds answer formats that a backend enforces, so that the model can write only valid calls.

If calls are requested only in the prompt, a small model often ignores the request or the format. An enforced format
prevents this. There are three types:

- ``json_schema``: the entire answer is one JSON object, ``{"name": …, "arguments": {…}}``, without a tag. This format
  is for answers that must contain a call (``tool_choice`` required, or a named function). It is enforced by llama.cpp,
  vLLM, SGLang, Ollama, LM Studio and most hosted APIs. If any tool and several calls are allowed, the answer is a list
  of such objects, but only for engines that are known to accept a list. Hosted APIs require an object.
- ``structural_tag``: text is free until the sentinel's opening tag. After the tag, only a tool's name and arguments
  that match its schema are allowed. This format is for every answer with tools, and makes every call valid. Engines
  that sample with xgrammar (vLLM and SGLang) enforce it over chat completions.
- ``gbnf``: the same restrictions as a grammar in llama.cpp's own notation, in a separate field (``gbnf.py``).

The first two are answer formats in the flat shape of ``text.format``, which ``compose`` converts to the backend's API.
The judge checks the answer in any case, because a server might ignore the format.

No format bounds the length of a string that the tool's schema leaves open. A small model can then write until its token
limit truncates the string, which the client can see (finish reason ``length``, status ``incomplete``). If toolsim set a
bound, every call would be complete, but the content of a file might be truncated silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from toolsim.core.plan import Tool, ToolChoice
from toolsim.core.policy import Policy
from toolsim.request.forms import compact_schema
from toolsim.request.gbnf import TooLarge, call_grammar
from toolsim.wire.json_codec import value_line

# Engines that can enforce a schema whose root is not an object.
_TAKE_LISTS = ("llama.cpp", "ollama", "sglang", "vllm")
_SCHEMAS_BY_NAME = frozenset({"properties", "$defs", "definitions"})
_LISTS_OF_SCHEMAS = frozenset({"anyOf", "oneOf", "prefixItems"})
_OPENING = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref", "if"}
)


def constraint(tools: Sequence[Tool], choice: ToolChoice, *, policy: Policy, one_call: bool) -> dict[str, Any] | None:
    """Return the answer format that the backend has to enforce, or None if there is none.

    ``tools`` contains the offered tools, at least one.
    """
    match policy.constrain:
        case "json_schema" if choice.mode == "required":
            is_named = choice.names is not None and len(choice.names) == 1
            several = not one_call and not is_named and policy.engine in _TAKE_LISTS
            schema = calls_schema(tools, policy.tool_block_max) if several else call_schema(tools)
            return {"type": "json_schema", "name": "tool_call", "strict": True, "schema": schema}
        case "structural_tag":
            return {"type": "structural_tag", "format": _tagged(tools, choice, policy.sentinel, one_call=one_call)}
    return None


def grammar_fields(
    tools: Sequence[Tool], choice: ToolChoice, *, policy: Policy, one_call: bool, untagged: bool
) -> dict[str, Any]:
    """Return the fields of a backend's body that contain a grammar, or no fields if ``policy.constrain`` is not gbnf.

    The result is also empty if the grammar would be too large or a schema is nested too deeply. In that case, only the
    prompt requests calls. ``untagged`` specifies whether calls without the tag count.
    """
    if policy.constrain != "gbnf":
        return {}
    schemas = [(tool, _arguments(tool)) for tool in tools]
    limit = 1 if one_call else policy.tool_block_max
    required = choice.mode == "required"
    try:
        return {"grammar": call_grammar(schemas, policy.sentinel, required=required, untagged=untagged, limit=limit)}
    except (TooLarge, RecursionError):
        return {}


def call_schema(tools: Iterable[Tool]) -> dict[str, Any]:
    """Return the schema of one call to any of ``tools``: ``name``, then ``arguments`` as an object.

    If a tool's schema contains references, the schema is moved to ``$defs`` under the tool's name, and the references
    are rewritten.
    """
    calls: list[dict[str, Any]] = []
    moved: dict[str, Any] = {}
    for tool in tools:
        schema = _arguments(tool)
        if _refers(schema):
            moved[tool.name] = _moved(schema, f"#/$defs/{_escaped(tool.name)}")
            schema = {"$ref": f"#/$defs/{_escaped(tool.name)}"}
        calls.append(
            {
                "type": "object",
                # The order matters, because an engine generates properties in schema order.
                "properties": {"name": {"const": tool.name}, "arguments": schema},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    whole = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**whole, "$defs": moved} if moved else whole


def calls_schema(tools: Iterable[Tool], most: int) -> dict[str, Any]:
    """Return the schema of a list of one or more calls to any of ``tools``.

    ``most`` is the maximum number of calls, or 0 for no maximum.
    """
    call = call_schema(tools)
    moved = {"$defs": call.pop("$defs")} if "$defs" in call else {}
    return {"type": "array", "items": call, "minItems": 1, **({"maxItems": most} if most else {}), **moved}


def _tagged(tools: Iterable[Tool], choice: ToolChoice, sentinel: str, *, one_call: bool) -> dict[str, Any]:
    opening = f"<{sentinel}>"
    return {
        "type": "triggered_tags",
        "triggers": [opening],
        "tags": [
            {
                "type": "tag",
                "begin": f'{opening}{{"name":{value_line(tool.name)},"arguments":',
                "content": {"type": "json_schema", "json_schema": _arguments(tool)},
                "end": f"}}</{sentinel}>",
            }
            for tool in tools
        ],
        "at_least_one": choice.mode == "required",
        "stop_after_first": one_call,
    }


def _arguments(tool: Tool) -> dict[str, Any]:
    schema: dict[str, Any] = _closed(compact_schema(tool.shown_parameters))
    return schema if "type" in schema or "$ref" in schema else {"type": "object", **schema}


def _closed(schema: Any) -> Any:
    """Return a schema in which objects allow only their named properties, unless the schema specifies otherwise.

    Weak models invent properties, and JSON Schema allows them by default.
    """
    if not isinstance(schema, dict):
        return schema
    closed = {
        keyword: {name: _closed(inner) for name, inner in value.items()}
        if keyword in _SCHEMAS_BY_NAME and isinstance(value, dict)
        else [_closed(inner) for inner in value]
        if keyword in _LISTS_OF_SCHEMAS and isinstance(value, list)
        else _closed(value)
        if keyword == "items"
        else value
        for keyword, value in schema.items()
    }
    # With any of these keywords, other parts of the schema can define further properties, so the object is not closed.
    if isinstance(schema.get("properties"), dict) and not _OPENING & schema.keys():
        closed["additionalProperties"] = False
    return closed


def _refers(schema: Any) -> bool:
    match schema:
        case dict():
            return isinstance(schema.get("$ref"), str) or any(_refers(value) for value in schema.values())
        case list():
            return any(_refers(value) for value in schema)
    return False


def _moved(schema: Any, root: str) -> Any:
    match schema:
        case dict():
            moved = {key: _moved(value, root) for key, value in schema.items()}
            if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#"):
                moved["$ref"] = root + reference[1:]
            return moved
        case list():
            return [_moved(value, root) for value in schema]
    return schema


def _escaped(name: str) -> str:
    """Return a name as one step of a JSON pointer. In a tool's name, only ``~`` and ``/`` need escaping."""
    return name.replace("~", "~0").replace("/", "~1")
