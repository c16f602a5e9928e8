"""Calls written out as ``<use_tool>`` text, for clients that read calls from the message."""

from __future__ import annotations

from xml.sax.saxutils import escape

from toolsimlib.plan import Tool
from toolsimlib.response.written import read_object


def use_tool_text(tool: Tool, arguments: str) -> str:
    """Return one call as canonical ``<use_tool>`` text: values escaped, parameters in the schema's order.

    Strings stand as they are, every other value as the JSON that the model wrote. ``arguments`` is the JSON text of an
    object, or a custom tool's input, which becomes the one parameter ``input``.
    """
    values = {"input": arguments} if tool.kind == "custom" else _values(arguments)
    properties = (tool.parameters or {}).get("properties")
    order = [name for name in properties if name in values] if isinstance(properties, dict) else []
    lines = ["<use_tool>", f"  <name>{escape(tool.name)}</name>"]
    lines += [f"  <{name}>{escape(values[name])}</{name}>" for name in dict.fromkeys([*order, *values])]
    return "\n".join([*lines, "</use_tool>"])


def _values(arguments: str) -> dict[str, str]:
    members, _ = read_object(arguments.lstrip(), 0) or ({}, 0)
    return {name: member.value if isinstance(member.value, str) else member.source for name, member in members.items()}
