"""Tools of the Messages API that the client runs, although it declares only their type and no schema.

    {"type": "bash_20250124", "name": "bash"}                                 one tool, with a name
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
    {"type": "memory_20250818", "name": "memory"}
    {"type": "computer_20250124", "name": "computer", "display_width_px": …}
    {"type": "computer_toolset_20260801"}                                     several tools in one namespace
    {"type": "browser_toolset_20260801", "configs": {"zoom": {"enabled": false}}}

Anthropic's models know the parameters of these tools, but toolsim has to show the parameters to other models, as it
does for similar tools of the Responses API (``wire/local_tools.py``). A call is an ordinary ``tool_use``. A call to a
tool in a toolset also has a ``toolset_name``. The date in a type is the version of the schema. Each schema in this
module matches either all versions or the newest version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolsim.wire.json_fields import mapping, string

_TYPE = re.compile(r"(bash|text_editor|memory|computer|computer_toolset|browser_toolset)_\d{8}")

_POINT = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_SPOT = {
    "type": "object",
    "properties": {"type": {"const": "coordinate"}, "x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["type", "x", "y"],
}
_REF = {
    "type": "object",
    "properties": {"type": {"const": "ref"}, "ref": {"type": "string"}},
    "required": ["type", "ref"],
}
_TYPES: Mapping[str, Mapping[str, Any]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "num": {"type": "number"},
    "bool": {"type": "boolean"},
    "any": {"type": ["string", "number", "boolean"]},
    "strs": {"type": "array", "items": {"type": "string"}},
    "range": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
    "point": _POINT,
    "region": {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4},
    "side": {"type": "string", "enum": ["up", "down", "left", "right"]},
    "filter": {"type": "string", "enum": ["all", "interactive"]},
    "spot": _SPOT,
    "ref": _REF,
    "target": {"anyOf": [_SPOT, _REF]},
}

_EDITS = ("view", "create", "str_replace", "insert")
_EDIT_FIELDS = "file_text?:str old_str?:str new_str?:str insert_line?:int insert_text?:str view_range?:range"
_CLICK = "coordinate?:point text?:str"
_COMPUTER: Mapping[str, tuple[str, str]] = {
    "key": ("Press a key or a combination of keys.", "text:str repeat?:int"),
    "hold_key": ("Hold a key for some seconds.", "text:str duration:int"),
    "type": ("Type a text.", "text:str"),
    "cursor_position": ("Get the position of the cursor.", ""),
    "mouse_move": ("Move the cursor to a pixel.", "coordinate:point"),
    "left_mouse_down": ("Press the left mouse button.", ""),
    "left_mouse_up": ("Release the left mouse button.", ""),
    "left_click": ("Click at a pixel or at the cursor, with the keys of `text` held.", _CLICK),
    "left_click_drag": ("Drag from one pixel to another.", "start_coordinate:point coordinate:point text?:str"),
    "right_click": ("Click with the right button.", _CLICK),
    "middle_click": ("Click with the middle button.", _CLICK),
    "double_click": ("Double-click.", _CLICK),
    "triple_click": ("Triple-click.", _CLICK),
    "scroll": ("Scroll.", "scroll_direction:side scroll_amount:int coordinate?:point text?:str"),
    "wait": ("Wait for some seconds.", "duration:int"),
    "screenshot": ("Take a screenshot.", ""),
    "zoom": ("Take a screenshot of a rectangle: x0, y0, x1, y1.", "region:region"),
}
_ON = "target:target modifiers?:str tab_id?:str"
_BROWSER: Mapping[str, tuple[str, str]] = {
    "navigate": ("Go to a URL, or back, forward or reload.", "url:str tab_id?:str"),
    "list_tabs": ("List the open tabs.", ""),
    "new_tab": ("Open an empty tab.", ""),
    "switch_tab": ("Make a tab the active one.", "tab_id:str"),
    "close_tab": ("Close a tab.", "tab_id:str"),
    "read_page": ("Get the page's accessibility tree.", "filter?:filter depth?:int ref?:str tab_id?:str"),
    "get_page_text": ("Get the page's visible text.", "tab_id?:str"),
    "read_console": ("Get the console's output.", "tab_id?:str"),
    "read_network": ("Get the network requests.", "tab_id?:str"),
    "find": ("Find elements by a description.", "query:str tab_id?:str"),
    "form_input": ("Set the value of a form's element.", "target:ref value:any tab_id?:str"),
    "file_upload": ("Set the files of a file input.", "target:ref paths?:strs document_ids?:strs tab_id?:str"),
    "scroll_to": ("Scroll an element into view.", "target:ref tab_id?:str"),
    "screenshot": ("Take a screenshot of the viewport.", "tab_id?:str"),
    "zoom": ("Take a screenshot of a rectangle: x0, y0, x1, y1.", "region:region tab_id?:str"),
    "left_click": ("Click at a coordinate or on an element.", _ON),
    "right_click": ("Click with the right button.", _ON),
    "middle_click": ("Click with the middle button.", _ON),
    "double_click": ("Double-click.", _ON),
    "triple_click": ("Triple-click.", _ON),
    "hover": ("Move the pointer to a coordinate or an element.", "target:target tab_id?:str"),
    "left_click_drag": ("Drag from one coordinate to another.", "from:spot target:spot tab_id?:str"),
    "left_mouse_down": ("Press the left button at a coordinate.", "target:spot tab_id?:str"),
    "left_mouse_up": ("Release the left button at a coordinate.", "target:spot tab_id?:str"),
    "mouse_move": ("Move the pointer to a coordinate.", "target:spot tab_id?:str"),
    "scroll": ("Scroll at a coordinate.", "target:spot scroll_direction:side scroll_amount?:int tab_id?:str"),
    "type": ("Type a text at the focus.", "text:str tab_id?:str"),
    "key": ("Press a key or a combination of keys.", "text:str repeat?:int tab_id?:str"),
    "hold_key": ("Hold a key for some seconds.", "text:str duration:num tab_id?:str"),
    "wait": ("Wait for some seconds.", "duration:num tab_id?:str"),
    "javascript_exec": ("Run JavaScript in the page, and get its last value.", "text:str tab_id?:str"),
}
_TOOLSETS = {"computer_toolset": ("computer", _COMPUTER), "browser_toolset": ("browser", _BROWSER)}


def client_tool(declared: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the declaration of a client-run tool in chat's shape, or None for any other declaration.

    The result is a function or, for a toolset, a namespace of functions.
    """
    found = _TYPE.fullmatch(string(declared.get("type")))
    if found is None:
        return None
    kind, name = found[1], string(declared.get("name"))
    if kind in _TOOLSETS:
        toolset, members = _TOOLSETS[kind]
        configs = mapping(declared.get("configs"))
        on = [member for member in members if mapping(configs.get(member)).get("enabled") is not False]
        tools = [_function(member, members[member][0], _schema(members[member][1])) for member in on]
        return {"type": "namespace", "name": toolset, "tools": tools}
    match kind:
        case "bash":
            text = "Run a command in a shell of the user's that keeps its state; `restart` starts another one."
            return _function(name or kind, text, _schema("command?:str restart?:bool"))
        case "text_editor":
            # The tool versions named ``str_replace_editor`` also support undo.
            commands = (*_EDITS, "undo_edit") if name == "str_replace_editor" else _EDITS
            text = "View, create and edit the user's files. `insert` puts a text after a line, 0 for the beginning."
            return _function(name or kind, text, _schema(f"path:str {_EDIT_FIELDS}", "command", commands))
        case "memory":
            text = "Read and change files below /memories, which stay from one conversation to the next."
            fields = f"path?:str {_EDIT_FIELDS} old_path?:str new_path?:str"
            return _function(name or kind, text, _schema(fields, "command", (*_EDITS, "delete", "rename")))
    size = f"{declared.get('display_width_px')} × {declared.get('display_height_px')}"
    text = f"Use the user's computer, whose display has {size} pixels. `text` is what to type, or the keys."
    zooms = declared.get("enable_zoom") is True
    actions = tuple(action for action in _COMPUTER if action != "zoom" or zooms)
    fields = "coordinate?:point start_coordinate?:point text?:str scroll_direction?:side scroll_amount?:int"
    fields += " duration?:num" + (" region?:region" if zooms else "")
    return _function(name or kind, text, _schema(fields, "action", actions))


def _function(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _schema(fields: str, choice: str = "", values: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the schema of an object with the properties in ``fields``, such as "path:str view_range?:range". A "?"
    marks an optional property.

    If ``choice`` is not "", the object also has a required property of this name, which takes one of the ``values``.
    """
    properties: dict[str, Any] = {choice: {"type": "string", "enum": list(values)}} if choice else {}
    required = [choice] if choice else []
    for field in fields.split():
        name, _, kind = field.partition(":")
        properties[name.removesuffix("?")] = _TYPES[kind]
        required += [] if name.endswith("?") else [name]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}
