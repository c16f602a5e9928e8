"""Converts requests written in the shape of a different API to the shape of their path's API.

Clients mix the shapes. In its agent mode, Cursor posts a body of the Responses API to chat completions and, for models
with "claude-" in their names, the history and tools of the Messages API. Other programs were written for one API, and
only their URL was changed. All of these clients expect an answer in the API of the path. Therefore, every path accepts
every shape.

1. If a conversation is in a field that belongs to another API (``input`` instead of ``messages``, or vice versa), the
   complete conversation is converted. The request's settings are also renamed to those of the path's API. Each
   conversion uses the shape of chat completions as its intermediate form.
2. If a conversation is in the field of the path's own API, and this is one of OpenAI's APIs, only the parts in another
   shape are converted: messages with calls, outputs or reasoning, items, tools, and the tool choice. A Messages request
   with any part in the shape of OpenAI's APIs is converted completely, because its roles have to alternate.
3. All other parts remain as sent. Each reader accepts text, images and files in the shapes of all APIs
   (``content.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from toolsim.core.conversation import Call, CallOutput, Item, Message, Thought
from toolsim.wire.chat import request as chat
from toolsim.wire.content import chat_content, responses_content
from toolsim.wire.json_fields import array, loaded, mapping, mappings, string
from toolsim.wire.messages import request as messages_api
from toolsim.wire.messages import to_chat
from toolsim.wire.responses import request as responses
from toolsim.wire.responses.history import read_history
from toolsim.wire.tools import TOOL_ITEMS, model_name

# The parameters of a function that represents a custom tool.
_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request in the shape of chat completions, or the same object if it already has this shape.

    Raises BadRequest if a part that must be converted is invalid.
    """
    if body.get("input") is not None and body.get("messages") is None:
        return _from_responses(body)
    messages, tools, choice = array(body.get("messages")), array(body.get("tools")), body.get("tool_choice")
    changed: dict[str, Any] = {}
    is_foreign = any(
        chat.has_blocks(message) or string(message.get("type")) in chat.ITEMS for message in mappings(messages)
    )
    if "system" in body or is_foreign:
        changed["messages"] = [*to_chat.system_messages(body), *_messages(messages)]
    if any("input_schema" in mapping(tool) for tool in tools):
        changed["tools"] = [_in_chat(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    if string(mapping(choice).get("type")) in chat.CHOICES:
        changed |= {"tool_choice": None} | to_chat.choice_fields(choice)
    return {**{key: value for key, value in body.items() if key != "system"}, **changed} if changed else body


def _at_once(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool without ``defer_loading``, because chat completions has no search that could load the tool."""
    return {key: value for key, value in tool.items() if key != "defer_loading"}


def _messages(messages: Sequence[Any]) -> Iterator[Any]:
    # Adjacent items of the Responses API are converted together, because a call belongs to the text before it.
    run: list[Any] = []
    for index, message in enumerate(messages):
        if string(mapping(message).get("type")) in chat.ITEMS:
            run.append(message)
            continue
        yield from _from_items(run, index)
        run = []
        yield from _split(message, f"messages[{index}]")
    yield from _from_items(run, len(messages))


def _from_items(items: list[Any], end: int) -> Iterator[dict[str, Any]]:
    if items:
        yield from _written(read_history(items, "messages", start=end - len(items)).items)


def _split(message: Any, param: str) -> Iterator[Any]:
    """Convert a message to chat messages, and yield them. ``param`` is its path. A message without blocks is yielded
    unchanged.
    """
    if not chat.has_blocks(mapping(message)):
        yield message
        return
    blocks = message["content"]
    if message.get("tool_calls"):
        # The calls are already present as ``tool_calls``, in chat's own shape.
        blocks = [block for block in blocks if mapping(block).get("type") != "tool_use"]
    kept = {key: value for key, value in message.items() if key not in ("role", "content")}
    role = message.get("role")
    for part in to_chat.split(role if isinstance(role, str) else "user", blocks, f"{param}.content"):
        yield {**(kept if part.get("role") == role else {}), **part}


def _from_responses(body: dict[str, Any]) -> dict[str, Any]:
    """Convert a request of the Responses API to chat completions (rule 1)."""
    request = responses.read_request(body)
    items, _ = chat.to_items(request)
    asked = chat.compose(request, (), "as sent", keep_hosted=False)
    asked.pop("stream_options", None)
    asked["messages"] = [*_written(items)]
    kept = ("tool_choice", "parallel_tool_calls", "stream_options")
    asked |= {key: body[key] for key in kept if body.get(key) is not None}
    declared = [
        array(item.get("tools")) for item in mappings(body.get("input")) if string(item.get("type")) in TOOL_ITEMS
    ]
    if tools := [tool for tools in (array(body.get("tools")), *declared) for tool in tools]:
        asked["tools"] = [_nested(tool) for tool in tools]
    return asked


def _nested(tool: object) -> object:
    """Return a declared function or custom tool with its fields nested, as in chat completions. Any other tool is
    returned as sent.
    """
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
    """Yield the chat messages of a conversation. Calls are added to the preceding message if the model wrote that
    message.
    """
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


# -- the Responses API


def as_responses(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request in the shape of the Responses API.

    Raises BadRequest if a part that must be converted is invalid.
    """
    tools, choice = array(body.get("tools")), body.get("tool_choice")
    if body.get("messages") is not None and body.get("input") is None:
        own = as_chat(body)
        request = chat.read_request(own)
        asked = responses.compose(request, (), "as sent", keep_hosted=False)
        # The two APIs have different defaults for ``store``; the default of the path's API applies.
        if body.get("store") is None:
            asked.pop("store")
        asked |= {key: body[key] for key in responses.ANSWER_FIELDS & body.keys() if body[key] is not None}
        asked.pop("stream_options", None)
        asked["input"] = [*_items(request.items)]
        tools, choice = [*array(own.get("tools")), *_functions(own)], own.get("tool_choice", own.get("function_call"))
        if own.get("parallel_tool_calls") is not None:
            asked["parallel_tool_calls"] = own["parallel_tool_calls"]
    else:
        asked = {key: value for key, value in body.items() if key not in ("tools", "tool_choice")}
        if isinstance(body.get("input"), list):
            asked["input"] = [*_converted(body["input"])]
    fields = (
        to_chat.choice_fields(choice)
        if string(mapping(choice).get("type")) in chat.CHOICES
        else {"tool_choice": choice}
    )
    asked |= {key: _flat_choice(value) for key, value in fields.items() if value is not None}
    if tools:
        asked["tools"] = [_flat(_in_chat(tool, f"tools[{index}]")) for index, tool in enumerate(tools)]
    return asked


def _converted(items: Sequence[Any]) -> Iterator[Any]:
    reader = chat.MessagesReader()
    for index, item in enumerate(items):
        if responses.is_foreign(mapping(item)):
            param = f"input[{index}]"
            yield from _items(read for part in _split(item, param) for read in reader.message(part, param))
        else:
            yield item


def _items(items: Iterable[Item]) -> Iterator[dict[str, Any]]:
    """Yield the items of an input in the shape of the Responses API."""
    for item in items:
        match item:
            case Message(role, parts):
                yield {"type": "message", "role": role, "content": responses_content(role, parts)}
            case Thought(text):
                yield {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}
            case Call(call_id, name, arguments, kind="custom"):
                yield {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": arguments}
            case Call(call_id, name, arguments):
                yield {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
            case CallOutput(call_id, parts):
                output = responses_content("user", parts)
                yield {"type": "function_call_output", "call_id": call_id, "output": output}


def _functions(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the tools that a chat request declares in the legacy ``functions`` field."""
    for function in array(body.get("functions")) if body.get("tools") is None else ():
        yield {"type": "function", "function": function}


def _in_chat(tool: Any, param: str) -> Any:
    return to_chat.declared_tool(_at_once(tool), param) if "input_schema" in mapping(tool) else tool


def _flat(tool: Any) -> Any:
    """Return a chat completions tool with flat fields, as in the Responses API. Any other tool is returned as sent."""
    kind = mapping(tool).get("type")
    nested = mapping(tool).get(kind or "function")
    if kind not in (None, "function", "custom") or not isinstance(nested, dict):
        return tool
    inner = dict(nested)
    form = mapping(inner.get("format"))
    if isinstance(form.get("grammar"), dict):
        inner["format"] = {"type": "grammar", **form["grammar"]}
    return {"type": kind or "function", **inner}


def _flat_choice(choice: Any) -> Any:
    """Convert a chat completions ``tool_choice``, or a legacy ``function_call``, to the shape of the Responses API."""
    fields = mapping(choice)
    kind = string(fields.get("type")) or "function"
    if not fields or kind not in ("function", "custom", "allowed_tools"):
        return choice
    inner = {**mapping(fields.get(kind, fields)), "type": kind}
    return inner | ({"tools": list(map(_flat_choice, array(inner["tools"])))} if "tools" in inner else {})


# -- the Messages API


def as_messages(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request in the shape of the Messages API. Raises BadRequest if the request is invalid."""
    own = as_chat(body)
    request = chat.read_request(own)
    asked = messages_api.compose(request, (), "as sent", keep_hosted=False)
    if "max_output_tokens" not in body and "max_completion_tokens" not in body and "max_tokens" not in body:
        asked.pop("max_tokens")
    asked |= {key: body[key] for key in messages_api.OWN_FIELDS & body.keys() if body[key] is not None}
    items = list(request.items)
    first = next((n for n, item in enumerate(items) if not _is_instruction(item)), len(items))
    if system := [text for item in items[:first] if isinstance(item, Message) and (text := item.text)]:
        asked["system"] = "\n\n".join(system)
    asked["messages"] = [*_turns(items[first:])]
    choice = _flat_choice(own.get("tool_choice", own.get("function_call")))
    # Tools in the Messages API's own shape remain as sent, because chat completions lacks some of their fields.
    sent = own if body.get("messages") is None else body
    declared = [_flat(tool) for tool in (*array(sent.get("tools")), *_functions(own))]
    tools = [each for tool in declared for each in _declared(mapping(tool), "")]
    if mapping(choice).get("type") == "allowed_tools":
        # The Messages API cannot limit the choice to several tools, so tools that are not allowed are left out.
        names = {tool.get("name") for tool in mappings(choice["tools"])}
        tools, choice = [tool for tool in tools if tool.get("name") in names], string(choice.get("mode")) or "auto"
    if tools:
        asked["tools"] = tools
    chosen = _chosen(choice)
    if own.get("parallel_tool_calls") is False:
        chosen = {"type": "auto", **chosen, "disable_parallel_tool_use": True}
    return asked | ({"tool_choice": chosen} if chosen else {})


def _is_instruction(item: Item) -> bool:
    return isinstance(item, Message) and item.role in ("system", "developer")


def _turns(items: Iterable[Item]) -> Iterator[dict[str, Any]]:
    """Convert items to Messages API messages, and yield them. Adjacent items with the same role form one message."""
    role, blocks = "", list[dict[str, Any]]()
    for item in items:
        match item:
            case Message():
                own = "system" if _is_instruction(item) else item.role
                added = [messages_api.block_of(part) for part in item.parts]
            case Thought(text):
                own, added = "assistant", [{"type": "thinking", "thinking": text, "signature": ""}]
            case Call(call_id, name, arguments, kind=kind):
                given = {"input": arguments} if kind == "custom" else loaded(arguments or "{}")
                own = "assistant"
                added = [
                    {"type": "tool_use", "id": call_id, "name": name, "input": arguments if given is None else given}
                ]
            case CallOutput(call_id, parts):
                content = [messages_api.block_of(part) for part in parts]
                own, added = "user", [{"type": "tool_result", "tool_use_id": call_id, "content": content}]
            case _:
                continue
        if own != role and blocks:
            yield {"role": role, "content": blocks}
            blocks = []
        role = own
        blocks = [*blocks, *added]
    if blocks:
        yield {"role": role, "content": blocks}


def _declared(tool: Mapping[str, Any], namespace: str) -> Iterator[Mapping[str, Any]]:
    """Convert a Responses API tool to Messages API tools. A namespace yields one tool for each tool that it contains.

    A tool that the client does not run is yielded unchanged.
    """
    kind = tool.get("type", "function")
    if kind == "namespace":
        for inner in mappings(tool.get("tools")):
            yield from _declared(_flat(inner), string(tool.get("name")))
    elif kind not in ("function", "custom") or "input_schema" in tool:
        yield tool
    else:
        name = string(tool.get("name"))
        kept = {key: tool[key] for key in ("description", "strict", "defer_loading") if tool.get(key) is not None}
        schema = _INPUT if kind == "custom" else tool.get("parameters") or {"type": "object", "properties": {}}
        yield {"name": model_name(name, namespace) if namespace else name, **kept, "input_schema": schema}


def _chosen(choice: Any) -> dict[str, Any]:
    """Convert a Responses API ``tool_choice`` to the Messages API's shape, or return {} if there is no tool choice."""
    match choice:
        case "none" | "auto":
            return {"type": choice}
        case "required":
            return {"type": "any"}
        case {"type": "function" | "custom", "name": name}:
            return {"type": "tool", "name": name}
        case dict():
            return choice
    return {}
