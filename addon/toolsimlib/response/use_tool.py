"""Calls written out as ``<use_tool>`` text, for clients that read calls from the message."""

from __future__ import annotations

import json
from typing import Any
from xml.sax.saxutils import escape

from toolsimlib.plan import Tool


def use_tool_text(tool: Tool, arguments: str) -> str:
    """Return one call as canonical ``<use_tool>`` text: values escaped, parameters in the schema's order.

    Strings stand as they are, every other value as JSON. ``arguments`` is the JSON text of an object, or a custom
    tool's input, which becomes the one parameter ``input``.
    """
    values = {"input": arguments} if tool.kind == "custom" else _object(arguments)
    properties = (tool.parameters or {}).get("properties")
    order = [name for name in properties if name in values] if isinstance(properties, dict) else []
    lines = ["<use_tool>", f"<name>{escape(tool.name)}</name>"]
    for name in [*order, *(name for name in values if name not in order)]:
        value = values[name]
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"<{name}>{escape(text)}</{name}>")
    return "\n".join([*lines, "</use_tool>"])


def _object(arguments: str) -> dict[str, Any]:
    try:
        values = json.loads(arguments, parse_int=_integer)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _integer(digits: str) -> int | str:
    # Python refuses to read an integer of more digits than this; as text it loses nothing here.
    return int(digits) if len(digits) < 4300 else digits
