"""Removes a model's markup that its server has left in the arguments of a call that it emits.

A server that reads its model's own form and takes a doubled or missing marker for data emits calls such as:

    {"path</arg_key>": "a.txt"}                 GLM: a marker in a key
    {"path": "a.txt</arg_value>"}               GLM: a marker at the end of a value
    {"command": "<|\\"|>ls<|\\"|>"}             Gemma: quotation marks around a value

1. A key loses a marker only if the tool declares what is left of it, and not the key itself.
2. A string loses markers at its beginning and end, never inside.
3. The markers are special tokens of the models, which nobody else writes. Other markup in arguments is data.
"""

from __future__ import annotations

import json
import re

from toolsim.core.plan import Tool
from toolsim.response.written import Json, json_object, read_object

LEFTOVER_MARKUP = "LEFTOVER_MARKUP"

_MARKERS = ('<|"|>', "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_IN_SOURCE = re.compile(r'</?arg_(?:key|value)>|<\|\\?"\|>')
_AFTER_KEY = re.compile(r"\s*+</?arg_(?:key|value)>.*", re.DOTALL)


def without_leftovers(arguments: str, tool: Tool) -> str | None:
    """Return the arguments without leftover markup, None if there is none to remove."""
    if _IN_SOURCE.search(arguments) is None:
        return None
    read = read_object(arguments, len(arguments) - len(arguments.lstrip()))
    if read is None or arguments[read[1] :].strip():
        return None
    members = {_key(key, tool): _value(member) for key, member in read[0].items()}
    if len(members) < len(read[0]) or all(members.get(key) is member for key, member in read[0].items()):
        return None
    return json_object(members).source


def _key(key: str, tool: Tool) -> str:
    plain = _AFTER_KEY.sub("", key.strip().removeprefix("<arg_key>"))
    return plain if key not in tool.declared and plain in tool.declared else key


def _value(member: Json) -> Json:
    if not isinstance(member.value, str):
        return member
    text = member.value
    for marker in _MARKERS:
        text = text.removeprefix(marker).removesuffix(marker)
    return member if text == member.value else Json(json.dumps(text, ensure_ascii=False), text)
