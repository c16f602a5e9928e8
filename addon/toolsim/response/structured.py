"""Judges structured calls from the backend, and items that represent calls to tools that the client itself runs.

1. Structured calls are judged by the table in ``judge``. Before this, markup that the server has left in the arguments
   is removed. If a call is not passed on, the client receives a description of the call as text, because the answer
   might otherwise be empty.
2. Some tools that the client itself runs have their own types in the API: a shell, a patch, a search, a computer. A
   backend calls such a tool with an item of a special type, which is passed on unchanged. If the tool is not offered,
   the client must not receive the item, so the item is judged like any other structured call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolsim.core.events import HostedEvent, HostedProgress, HostedStarted, StructuredCall, StructuredDelta
from toolsim.core.plan import Tool
from toolsim.core.report import loggable_name
from toolsim.response.judge import Judge
from toolsim.response.parsed_call import Json, ParsedCall, Values, json_object, read_object, read_value
from toolsim.response.toolbox import Lookup, Toolbox
from toolsim.response.verdict import (
    ARGUMENTS_TOO_LARGE,
    MALFORMED_JSON,
    MASKED_TOOL,
    SCHEMA_MISMATCH,
    STRUCTURED_CALL,
    UNKNOWN_TOOL,
    Rejected,
    Verdict,
)
from toolsim.wire.json_fields import string
from toolsim.wire.local_tools import CALLS, is_local
from toolsim.wire.tools import model_name

_COMPUTER = ("computer", "computer_use", "computer_use_preview")
"""The types that clients use to declare a computer. Only a backend can provide a computer, so toolsim itself never
offers one.
"""

_REASONS = {
    MALFORMED_JSON: "it is not a call with a JSON object as its arguments",
    ARGUMENTS_TOO_LARGE: "its arguments are too large",
    SCHEMA_MISMATCH: "its arguments do not match the tool's schema",
    UNKNOWN_TOOL: "no such tool was declared",
    MASKED_TOOL: "this tool may not be called here",
}


LEFTOVER_MARKUP = "LEFTOVER_MARKUP"

_MARKERS = ('<|"|>', "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_IN_SOURCE = re.compile(r'</?arg_(?:key|value)>|<\|\\?"\|>')
_AFTER_KEY = re.compile(r"\s*+</?arg_(?:key|value)>.*", re.DOTALL)


def without_leftovers(arguments: str, tool: Tool) -> str | None:
    """Return the arguments without the markup that a server has left in them, or None if they contain no markup.

    When a model doubles or omits a marker, some servers parse another marker as data, which results in calls such as::

        {"path</arg_key>": "a.txt"}                 GLM: a marker in a key
        {"path": "a.txt</arg_value>"}               GLM: a marker at the end of a value
        {"command": "<|\\"|>ls<|\\"|>"}             Gemma: quotation marks around a value

    A marker is removed from a key only if the tool has a parameter with the remaining name, but none with the full
    name. Markers are removed from the beginning and the end of strings. This is safe, because they are special tokens
    that do not occur in ordinary text.
    """
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


class StructuredCalls:
    """Judges the backend's structured calls by the table in ``judge``."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def verdicts(self, call: StructuredCall, *, is_announced: bool = False) -> list[Verdict]:
        """Return the verdict on a structured call from the backend (rule 1), or [] if the call is empty.

        ``is_announced``: whether the client has already received the beginning of the call.
        """
        if not call.name and not call.arguments.strip():
            self._judge.report.drop_call(loggable_name(call.name), STRUCTURED_CALL)
            return []
        verdict = self._verdict(call, corrects=not is_announced)
        if not isinstance(verdict, Rejected):
            return [verdict]
        name = model_name(call.name, call.namespace)
        self._judge.report.drop_call(loggable_name(name), STRUCTURED_CALL)
        return [replace(verdict, raw=as_prose(name, call.arguments, verdict.reason), name=name)]

    def _verdict(self, call: StructuredCall, *, corrects: bool) -> Verdict:
        name = model_name(call.name, call.namespace)
        if not call.name:
            return self._judge.reject("", MALFORMED_JSON, name, "a call with a name")
        if self._judge.plan.tool_choice.mode == "none":
            return self._judge.reject("", MASKED_TOOL, name)
        lookup = self._judge.toolbox.called(call.name, call.namespace)
        given = Json(call.arguments, call.arguments)
        written = ParsedCall("", name, given=given)
        if lookup.tool is None and (inner := self._judge.named(written)) is not written and call.whole:
            return self._judge.decide(inner, "", self._judge.toolbox.written(inner.name), corrects=corrects)
        if lookup.tool is None and lookup.may_pass:
            self._judge.warn(UNKNOWN_TOOL, call.name)
            lookup = Lookup(Tool(call.name, call.name, kind=call.kind, namespace=call.namespace))
        tool = lookup.tool
        if tool is not None and not call.whole and (call.kind == "custom" or read_value(call.arguments) is None):
            # A call that was cut off cannot be repaired, because its continuation is unknown.
            expected = "a complete call, got one that was cut off"
            return self._judge.fail(tool.strict, "", MALFORMED_JSON, tool.name, expected)
        if tool is not None and tool.kind == call.kind == "custom":
            written = ParsedCall("", name, given=Values(((None, given),)))  # The input is the call's only value.
        elif tool is not None and corrects and (cleaned := self._cleaned(call.arguments, tool)) is not None:
            written = ParsedCall("", name, given=Json(cleaned, cleaned), lossy_repairs=(LEFTOVER_MARKUP,))
        return self._judge.decide(written, "", lookup, corrects=corrects)

    def _cleaned(self, arguments: str, tool: Tool) -> str | None:
        """Return arguments without the markup that a server has left in them, or None if they contain no markup."""
        may_change = tool.kind == "function" and not tool.strict and self._judge.plan.policy.repair == "safe"
        return without_leftovers(arguments, tool) if may_change else None

    def arriving(self, delta: StructuredDelta) -> Tool | None:
        """Return the tool named in a structured call whose arguments have not arrived yet, or None if the call cannot
        be announced to the client.
        """
        lookup = self._judge.toolbox.called(delta.name, delta.namespace)
        # A misspelled name is accepted only if the arguments match, but they have not arrived yet.
        if lookup.codes or lookup.tool is None or lookup.tool.name in self._judge.plan.hosted:
            return None
        return lookup.tool


def as_prose(name: str, arguments: str, reason: str) -> str:
    """Return the text that a client receives instead of a structured call that is not passed on."""
    called = loggable_name(name) if name else "a tool without a name"
    return f"Call to {called}, not passed on because {_REASONS[reason]}: {arguments}"


class ClientItems:
    """Decides which of the backend's items the client receives."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._withheld: set[str] = set()  # The keys of announced items that the client does not receive.

    def take(self, event: HostedEvent) -> HostedEvent | StructuredCall | None:
        """Return the event if the client receives it. Otherwise, return the call that the event's item represents, or
        None if the item is not complete yet.
        """
        if isinstance(event, HostedProgress):
            return None if event.key in self._withheld else event
        if isinstance(event, HostedStarted):
            if self._call(event.item) is None:
                return event
            self._withheld.add(event.key)
            return None
        return self._call(event.item) or event

    def _call(self, item: Mapping[str, Any]) -> StructuredCall | None:
        """Convert an item that the client must not receive to a call. Return None for any other item."""
        kind = string(item.get("type"))
        if kind == "computer_call" and self._toolbox.excludes(_COMPUTER):
            return StructuredCall(_COMPUTER[0], json.dumps(item.get("action")))
        local = CALLS.get(kind)
        if local is None or not is_local(item):
            return None
        lookup = self._toolbox.called(local.kind, None)
        if lookup.may_pass or (lookup.tool is not None and lookup.tool.kind == local.kind):
            return None
        return StructuredCall(local.kind, json.dumps(local.arguments(item), ensure_ascii=False))
