"""Requests in the shape of another API that arrive at the path of chat completions, in chat's own shape.

Cursor posts a body of the Responses API here in its agent mode, and for models with "claude-" in their names the
history and tools of the Messages API. It expects an answer of chat completions to both, like all clients of this path.

1. A body with ``input`` and without ``messages`` is one of the Responses API. Its items become messages, its tools have
   chat's shape already or get it, and its settings go by chat's names.
2. A message with blocks of calls, outputs or reasoning is split as one of the Messages API is.
3. A tool with an ``input_schema``, a ``tool_choice`` of that API, and ``system`` beside the messages are read as there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from toolsim.core.conversation import Call, CallOutput, Item, Message, Thought
from toolsim.wire.chat import request as chat
from toolsim.wire.content import chat_content
from toolsim.wire.json_fields import array, mapping, mappings
from toolsim.wire.messages import to_chat
from toolsim.wire.responses import request as responses


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request in chat's own shape; the very same object if it already has that shape. Raises BadRequest."""
    if body.get("input") is not None and body.get("messages") is None:
        return _from_responses(body)
    messages, tools, choice = array(body.get("messages")), array(body.get("tools")), body.get("tool_choice")
    changed: dict[str, Any] = {}
    if "system" in body or any(map(chat.has_blocks, mappings(messages))):
        changed["messages"] = [*to_chat.system_messages(body), *_messages(messages)]
    if any("input_schema" in mapping(tool) for tool in tools):
        changed["tools"] = [
            to_chat.declared_tool(_at_once(tool), f"tools[{index}]") if "input_schema" in mapping(tool) else tool
            for index, tool in enumerate(tools)
        ]
    if mapping(choice).get("type") in chat.CHOICES:
        changed |= {"tool_choice": None} | to_chat.choice_fields(choice)
    return {**{key: value for key, value in body.items() if key != "system"}, **changed} if changed else body


def _at_once(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool that is not deferred, since this API has no search that could load it."""
    return {key: value for key, value in tool.items() if key != "defer_loading"}


def _messages(messages: Sequence[Any]) -> Iterator[Any]:
    for index, message in enumerate(messages):
        if not chat.has_blocks(mapping(message)):
            yield message
            continue
        blocks = message["content"]
        if message.get("tool_calls"):
            # They are already there, in chat's own shape.
            blocks = [block for block in blocks if mapping(block).get("type") != "tool_use"]
        kept = {key: value for key, value in message.items() if key not in ("role", "content")}
        role = message.get("role")
        split = to_chat.split(role if isinstance(role, str) else "user", blocks, f"messages[{index}].content")
        for part in split:
            yield {**(kept if part.get("role") == role else {}), **part}


def _from_responses(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request of the Responses API as one of chat completions (rule 1)."""
    request = responses.read_request(body)
    items, _ = chat.to_items(request)
    asked = chat.compose(request, (), "as sent", keep_hosted=False)
    asked.pop("stream_options", None)
    asked["messages"] = [*_written(items)]
    kept = ("tool_choice", "parallel_tool_calls", "stream_options")
    asked |= {key: body[key] for key in kept if body.get(key) is not None}
    if tools := array(body.get("tools")):
        asked["tools"] = [_nested(tool) for tool in tools]
    return asked


def _nested(tool: object) -> object:
    """Return a declared tool with its fields in chat's places, any other as sent."""
    fields = mapping(tool)
    kind = fields.get("type")
    if kind not in ("function", "custom") or kind in fields:
        return tool
    inner = {key: value for key, value in fields.items() if key != "type"}
    form = mapping(inner.get("format"))
    if kind == "custom" and form.get("type") == "grammar" and "grammar" not in form:
        inner["format"] = {"type": "grammar", "grammar": {key: form[key] for key in form if key != "type"}}
    return {"type": kind, kind: inner}


def _written(items: Iterable[Item]) -> Iterator[dict[str, Any]]:
    """Yield the messages of a conversation; calls belong to the message before them if the model wrote it."""
    turn: dict[str, Any] | None = None
    thoughts: list[str] = []
    for item in items:
        if isinstance(item, Thought):
            thoughts.append(item.text)
            continue
        is_model = isinstance(item, Call) or (isinstance(item, Message) and item.role == "assistant")
        if turn is not None and not (isinstance(item, Call)):
            yield turn
            turn = None
        if is_model and turn is None:
            turn = {"role": "assistant", "content": None}
            if thoughts:
                turn["reasoning_content"] = "\n\n".join(thoughts)
                thoughts = []
        match item:
            case Call() if turn is not None:
                turn.setdefault("tool_calls", []).append(_call(item))
            case Message(role="assistant") if turn is not None:
                turn["content"] = chat_content(item.parts)
            case Message():
                yield {"role": item.role, "content": chat_content(item.parts)}
            case CallOutput():
                yield {"role": "tool", "tool_call_id": item.call_id, "content": chat_content(item.parts)}
    if turn is not None:
        yield turn


def _call(call: Call) -> dict[str, Any]:
    if call.kind == "custom":
        return {"id": call.call_id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
