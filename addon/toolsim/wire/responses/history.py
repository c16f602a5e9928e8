"""The history of a Responses request: the items of its ``input``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from toolsim.core.conversation import Call, CallOutput, Declaration, HostedItem, Item, Message, Raw, Text, Thought
from toolsim.core.errors import BadRequest
from toolsim.wire.content import CIPHERTEXT, ROLES, read_parts
from toolsim.wire.ids import highest_number
from toolsim.wire.json_codec import dump
from toolsim.wire.json_fields import array, expect, json_text, mappings, optional, required, string, wrong_type
from toolsim.wire.local_tools import CALLS, OUTPUTS, is_local
from toolsim.wire.tools import TOOL_ITEMS, model_name, read_tools


def input_items(body: Mapping[str, Any]) -> list[Any]:
    """Return a request's input as items. Text becomes one user message. Invalid input results in an empty list."""
    asked = body.get("input")
    if isinstance(asked, str):
        return [{"role": "user", "content": asked}] if asked else []
    return array(asked)


def call_ids(items: Iterable[object]) -> list[str]:
    """Return all IDs in a history, including the IDs in references."""
    found = [item.get(key) for item in items if isinstance(item, dict) for key in ("id", "call_id")]
    return [item_id for item_id in found if isinstance(item_id, str)]


@dataclass(frozen=True, slots=True)
class History:
    """The items of a history, and facts about them."""

    items: tuple[Item, ...] = ()
    highest: int = 0
    """Highest number among the IDs that toolsim might have created."""
    notes: tuple[str, ...] = ()
    """Kinds of dropped items, for the log."""
    declaring: tuple[int, ...] = ()
    """Indices of the items that declare tools within the conversation."""


def read_history(value: object, param: str = "input", *, has_tools: bool = False, start: int = 0) -> History:
    """Read a history, which is ``input`` or the value at another path, ``param``.

    ``has_tools`` specifies whether the request also declares tools outside the history. ``start`` is the index of the
    first item at this path. Raises BadRequest if the history or one of its items is invalid.
    """
    match value:
        case None | "":
            return History()
        case str():
            return History((Message("user", (Text(value),)),))
        case list():
            for index, item in enumerate(value, start):
                expect(item, dict, f"{param}[{index}]")
            return _InputReader(value, param, has_tools=has_tools, start=start).read()
        case _:
            raise wrong_type(value, "a string or an array", param)


class _InputReader:
    """Reads the items of a history. An item of an unknown type is reported, and its text is kept.

    ``param`` is the path of ``items``. ``has_tools`` is true if the request also declares tools outside the items.
    """

    def __init__(self, items: list[dict[str, Any]], param: str, *, has_tools: bool, start: int = 0) -> None:
        self._items = items
        self._start = start
        self._param = param
        self._has_tools = has_tools
        self.notes: list[str] = []
        # The call_id of the latest call to each tool, by the tool's name.
        self._last_call: dict[str, str] = {}
        # Maps each local tool call's ID to its call_id, and the kind of each local tool (``wire/local_tools.py``) to
        # the call_id of its latest call.
        self._local_calls: dict[str, str] = {}

    def read(self) -> History:
        read: list[Item | None] = []
        declaring: list[int] = []
        for index, item in enumerate(self._items, self._start):
            read.append(self._item(item, f"{self._param}[{index}]"))
            if string(item.get("type")) in TOOL_ITEMS and item.get("tools"):
                if self._has_tools and any(map(_is_spoken, read)):
                    read.append(Declaration(read_tools({"input": [item]})[0]))
                    declaring.append(index)
                self._has_tools = True
        items = tuple(item for item in read if item is not None)
        return History(items, highest_number(call_ids(self._items)), tuple(self.notes), tuple(declaring))

    @cached_property
    def _ids(self) -> set[str]:
        """The IDs of all items except references."""
        return {
            item["id"]
            for item in self._items
            if isinstance(item.get("id"), str) and item.get("type") != "item_reference"
        }

    def _item(self, item: dict[str, Any], param: str) -> Item | None:
        match item.get("type"):
            case None | "message":
                return self._message(item, param)
            case "function_call":
                return self._call(item, "arguments", param)
            case "custom_tool_call":
                return self._call(item, "input", param)
            case "function_call_output" | "custom_tool_call_output":
                return self._output(item, param)
            case "agent_message":  # Codex's agents send each other messages of this type.
                return self._agent_message(item, param)
            # Some clients send a content part without a message around it.
            case "input_text" | "input_image" | "input_file":
                return Message("user", read_parts([item], "responses", param))
            case str(kind) if kind in CALLS and is_local(item):
                return self._local_call(item, param)
            case str(kind) if kind in OUTPUTS and (call_id := self._local_call_id(item)):
                return CallOutput(call_id, (Text(OUTPUTS[kind].answer(item)),), OUTPUTS[kind].kind)
            case "reasoning":
                return self._reasoning(item)
            case kind if kind in TOOL_ITEMS:  # Declarations of tools are read by ``read_tools``.
                return None
            case "configuration_update":  # ``request.py`` has already applied this item's settings.
                return None
            case "item_reference":
                # A reference to another item of this request adds nothing. Any other reference cannot be resolved here.
                reference = item.get("id")
                if not isinstance(reference, str) or reference not in self._ids:
                    self.notes.append("item_reference")
                return None
            case "compaction_trigger":
                message = "The 'compaction_trigger' item must be the last input item."
                raise BadRequest(message, param, "invalid_value")
            case str(kind):
                return self._unknown(item, kind, param)
            case kind:
                raise wrong_type(kind, "a string", f"{param}.type")

    def _message(self, item: dict[str, Any], param: str) -> Message:
        role = required(item, "role", str, param)
        parts = read_parts(item.get("content"), "responses", f"{param}.content")
        if role not in ROLES:
            self.notes.append(f"role:{role[:40]}")
        return Message(ROLES.get(role, "user"), parts)

    def _agent_message(self, item: dict[str, Any], param: str) -> Message | None:
        parts = read_parts(item.get("content"), "responses", f"{param}.content")
        legible = tuple(part for part in parts if not isinstance(part, Raw))
        if len(legible) < len(parts):
            self.notes.append(CIPHERTEXT)
        return Message("user", legible) if legible else None

    def _call(self, item: dict[str, Any], key: str, param: str) -> Call:
        name = model_name(required(item, "name", str, param), optional(item, "namespace", str, param))
        item_id = optional(item, "id", str, param)
        call_id = optional(item, "call_id", str, param) or item_id or name
        self._last_call[name] = call_id
        sent = item.get(key)
        # Some clients send the arguments as an object instead of JSON text.
        is_object = key == "arguments" and isinstance(sent, dict)
        text = json_text(sent) if is_object else optional(item, key, str, param) or ""
        return Call(call_id, name, text, item_id, "function" if key == "arguments" else "custom")

    def _local_call(self, item: dict[str, Any], param: str) -> Call:
        tool = CALLS[item["type"]]
        item_id = optional(item, "id", str, param)
        call_id = optional(item, "call_id", str, param) or item_id or tool.kind
        self._local_calls |= {key: call_id for key in (tool.kind, call_id, item_id) if key}
        return Call(call_id, tool.kind, dump(tool.arguments(item)), item_id, tool.kind)

    def _local_call_id(self, item: dict[str, Any]) -> str:
        """Return the call_id of the local tool call to which an output belongs, or "" if there is no such call."""
        named = string(item.get("call_id")) or string(item.get("id")) or OUTPUTS[item["type"]].kind
        return self._local_calls.get(named, "")

    def _output(self, item: dict[str, Any], param: str) -> CallOutput:
        name = optional(item, "name", str, param)
        if name is not None:
            name = model_name(name, optional(item, "namespace", str, param))
        call_id = optional(item, "call_id", str, param)
        # An output that has a name instead of a call_id belongs to the latest call with this name.
        if call_id is None:
            call_id = self._last_call.get(name or "", name or "")
        return CallOutput(call_id, read_parts(item.get("output"), "responses", f"{param}.output"), name)

    def _reasoning(self, item: dict[str, Any]) -> Thought | None:
        """Return the readable part of a reasoning item: its text or, if it has none, its summary. Returns None if it
        has neither.
        """
        for parts in (item.get("content"), item.get("summary")):
            text = "\n\n".join(piece for part in mappings(parts) if (piece := string(part.get("text"))))
            if text:
                return Thought(text)
        self.notes.append("reasoning")
        return None

    def _unknown(self, item: dict[str, Any], kind: str, param: str) -> Message | HostedItem | None:
        """Read an item of an unknown type. If it belongs to a hosted tool, it is kept as sent. Otherwise, only its text
        is kept. Returns None if it has no text.
        """
        if kind.startswith(("mcp_", "program")) or kind.endswith(("_call", "_call_output")):
            return HostedItem(item)
        self.notes.append(kind[:40])
        text = item.get("text")
        try:
            parts = (Text(text),) if isinstance(text, str) else read_parts(item.get("content"), "responses", param)
        except BadRequest:  # Content in an unknown format is not the client's error, because the item type is unknown.
            return None
        parts = tuple(part for part in parts if isinstance(part, Text) and part.text)
        return Message(ROLES.get(string(item.get("role")), "user"), parts) if parts else None


def _is_spoken(item: Item | None) -> bool:
    """Return whether an item is part of the conversation itself, rather than of the instructions before it."""
    return item is not None and not (isinstance(item, Message) and item.role in ("system", "developer"))
