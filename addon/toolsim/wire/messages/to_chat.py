"""Converts a Messages request to the shape of a chat request, so that one reader handles both.

The two APIs express the same content in different places. The differences, and how each is handled:

1. ``system`` and messages with the role ``system`` are system messages, each in its original position. Claude Code's
   billing line (``x-anthropic-billing-header``) differs from turn to turn and is meaningless to a model. The line is
   dropped, so that the prompt begins like the prompt of the previous turn.
2. A message of this API contains blocks in any order. A chat message has its text before its calls, and each output is
   a separate message. A message is therefore split wherever text follows a call, or an output follows text, so that the
   order is preserved.
3. ``tool_use`` is a call, and ``tool_result`` is its output. A failed output (``is_error``) is marked in its text,
   because chat outputs have no field for failures.
4. ``thinking`` is reasoning that the client echoes. Content that only Anthropic can read (``redacted_thinking``,
   signatures) is dropped, as are ``cache_control`` and ``citations``, which are meaningless to another server.
5. A tool with ``defer_loading`` is declared at the position in the conversation where a ``tool_reference`` in an output
   loads it, as if by a ``tool_addition`` (rule 8). Calls to a tool that is not loaded yet are also checked against its
   schema.
6. A tool that Anthropic's server runs (``web_search_20250305``, ``mcp_toolset``) remains a hosted tool. The calls to
   searches and MCP servers, and their results, become calls and outputs in the history (``hosted.py``). A tool that the
   client runs although it declares only the type (``bash_20250124``) becomes a function (``client_tools.py``). A
   client's own tool has an ``input_schema``, or the type ``custom``, or no type.
7. An image, or a document that is not text, is kept as sent; ``wire/files.py`` converts it if necessary. A block of any
   other type is shown as JSON without the parts that only Anthropic can read, so that the model sees the content that
   the client sent.
8. ``tool_addition`` and ``tool_removal`` blocks change the tools for the rest of the conversation. An
   ``additional_tools`` message represents each change, like the item of that type in the Responses API, so that the
   tools declared before the conversation remain at its beginning. A block refers to a tool with ``defer_loading``, or
   to a tool that was added before. If no tools are declared before the conversation, the tools that are added first
   count as declared there.
9. ``metadata`` identifies the user and is not forwarded. Fields that only control Anthropic's models are dropped and
   reported.
10. Parts of messages in OpenAI's shapes are also accepted, since clients mix them (see also ``foreign.py``).

Each 400 error names the path in the client's own request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolsim.core.errors import BadRequest
from toolsim.wire.content import ROLES, document_text
from toolsim.wire.files import legible
from toolsim.wire.json_codec import dump
from toolsim.wire.json_fields import array, expect, mapping, mappings, optional, required, string, wrong_type
from toolsim.wire.messages.client_tools import client_tool
from toolsim.wire.messages.hosted import TOOLSET, as_tool_result, is_search, model_name_of
from toolsim.wire.tools import model_name

SAME = ("model", "max_tokens", "temperature", "top_p", "stream")
"""Fields with the same name and meaning in the Messages API and chat completions."""

_READ = frozenset({*SAME, "system", "messages", "tools", "tool_choice", "stop_sequences", "metadata", "output_config"})

_CHANGES = ("tool_addition", "tool_removal")
HOSTED = ("web_search", "web_fetch", "tool_search", "code_execution")
"""Type prefixes of the tools that Anthropic's server runs."""
_BILLING = "x-anthropic-billing-header:"
_MODES = {"auto": "auto", "any": "required", "none": "none"}


class ToolChanges:
    """The tools of a conversation. ``tool_addition`` and ``tool_removal`` blocks can change them (rule 8 in the module
    docstring). Each tool is in the shape of chat completions.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        """Read the tools that a request declares. Raises BadRequest if a tool is invalid."""
        self._declared: dict[str, Mapping[str, Any]] = {}
        self.first: list[dict[str, Any]] = []
        """Tools declared before the conversation."""
        self.is_changed = False
        for index, sent in enumerate(optional(body, "tools", list) or ()):
            tool = declared_tool(sent, f"tools[{index}]")
            self.first.append(tool)
            self._declared[_name_of(tool)] = sent
        self.now = list(self.first)
        """Tools that are available at the end of the conversation."""

    def apply(self, block: Mapping[str, Any], place: str, *, is_spoken: bool) -> dict[str, Any] | None:
        """Change the tools according to a block, and return the message that represents the change.

        Return None if no message is needed, because the conversation has not started (``is_spoken`` is false) or had no
        tools, or because the block adds an unknown tool.
        """
        sent = required(block, "tool", dict, place)
        if sent.get("type") == "tool_definition":
            definition = required(sent, "definition", dict, f"{place}.tool")
        else:
            definition = {**self._declared.get(string(sent.get("name")), {})}
        definition = {key: value for key, value in definition.items() if key != "defer_loading"}
        is_added = block.get("type") == "tool_addition"
        if is_added and not definition:
            return None
        tool = declared_tool(definition, f"{place}.tool.definition") if definition else None
        name = _name_of(tool) if tool is not None else string(sent.get("name"))
        self._declared[name] = definition
        self.now = [other for other in self.now if _name_of(other) != name]
        if is_added and tool is not None:
            self.now.append(tool)
        if not (is_spoken and self.first):
            self.first = list(self.now)
            return None
        self.is_changed = True
        tools = [tool] if is_added and tool is not None else []
        return {"type": "additional_tools", "role": "developer", "tools": tools, "removed": [] if tools else [name]}

    def load(self, block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield messages that declare the deferred tools loaded by a tool output (rule 5 in the module docstring)."""
        for part in mappings(block.get("content")):
            name = string(part.get("tool_name"))
            sent = self._declared.get(name, {})
            if part.get("type") == "tool_reference" and sent.get("defer_loading") is True:
                addition = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": name}}
                # The reference is in a tool output, so the conversation has already started.
                if (change := self.apply(addition, "", is_spoken=True)) is not None:
                    yield change


def _name_of(tool: Mapping[str, Any]) -> str:
    return string(mapping(tool.get("function")).get("name")) or string(tool.get("name"))


def chat_request(body: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[dict[str, Any]] | None]:
    """Return a Messages request as a chat request, and the names of dropped fields.

    Also returns the tools that were declared before the conversation, or None if no block has changed the tools. Raises
    BadRequest if the request is invalid, or continues a stored thread.
    """
    asked = {key: body[key] for key in SAME if body.get(key) is not None}
    messages = required(body, "messages", list)
    changes = ToolChanges(body)
    asked["messages"] = [*system_messages(body), *chat_messages(messages, changes)]
    # A Messages answer contains token counts, but chat completions sends them only on request.
    if body.get("stream") is True:
        asked["stream_options"] = {"include_usage": True}
    if stops := optional(body, "stop_sequences", list):
        asked["stop"] = stops
    if tools := [*changes.now, *_unnamed_toolsets(body)]:
        asked["tools"] = tools
    if mapping(body.get("thread")).get("type") == "continue":
        message = "'thread' with the type 'continue' is not supported: send the entire conversation in 'messages'."
        raise BadRequest(message, "thread", "thread_not_found")
    asked |= choice_fields(_choice_by_type(body))
    if schema := mapping(mapping(body.get("output_config")).get("format")).get("schema"):
        asked["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        }
    lost = sorted(key[:40] for key, value in body.items() if key not in _READ and value is not None)
    if mapping(body.get("output_config")).get("effort") is not None:
        lost.append("output_config.effort")
    return asked, lost, changes.first if changes.is_changed else None


def chat_messages(messages: list[Any], changes: ToolChanges) -> Iterator[dict[str, Any]]:
    """Yield the messages of a history as chat messages (rules 2 to 4 and 8 in the module docstring).

    Raises BadRequest if a message is invalid.
    """
    is_spoken = False
    for index, sent in enumerate(messages):
        place = f"messages[{index}]"
        message = expect(sent, dict, place)
        role = required(message, "role", str, place)
        if role not in ROLES:
            expected = ", ".join(f"'{known}'" for known in ROLES)
            text = f"Invalid value for '{place}.role': expected one of {expected}, but got '{role[:64]}' instead."
            raise BadRequest(text, f"{place}.role", "invalid_value")
        content = message.get("content")
        if isinstance(content, str):
            yield {"role": role, "content": content}
        else:
            path = f"{place}.content"
            blocks = _blocks(content, path)
            for number, block in enumerate(blocks):
                if string(block.get("type")) not in _CHANGES:
                    continue
                if (change := changes.apply(block, f"{path}[{number}]", is_spoken=is_spoken)) is not None:
                    yield change
            yield from split(role, blocks, path, changes)
        is_spoken = is_spoken or role in ("user", "assistant")


def system_messages(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the instructions as one system message (rule 1 in the module docstring)."""
    system = body.get("system")
    if system is None:
        return
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else _blocks(system, "system")
    texts = [required(block, "text", str, f"system[{index}]") for index, block in enumerate(blocks)]
    if shown := [text for text in texts if not text.startswith(_BILLING)]:
        yield {"role": "system", "content": "\n\n".join(shown)}


def _blocks(content: object, place: str) -> list[dict[str, Any]]:
    if not isinstance(content, list):
        raise wrong_type(content, "a string or an array of blocks", place)
    return [expect(block, dict, f"{place}[{index}]") for index, block in enumerate(content)]


def split(
    role: str, blocks: list[dict[str, Any]], place: str, changes: ToolChanges | None = None
) -> Iterator[dict[str, Any]]:
    """Split a message into chat messages according to the order of its blocks, and yield them (rule 2 in the module
    docstring).

    ``changes`` are the conversation's tools; a tool output in the message can load deferred tools.
    """
    thoughts, words, calls = list[Any](), list[Any](), list[Any]()

    def flushed() -> Iterator[dict[str, Any]]:
        if thoughts or words or calls:
            more = {"tool_calls": list(calls), "reasoning_content": "\n".join(thoughts)}
            yield {"role": role, "content": list(words) or None, **{key: value for key, value in more.items() if value}}
        for part in (thoughts, words, calls):
            part.clear()

    for index, block in enumerate(blocks):
        where = f"{place}[{index}]"
        match block.get("type"):
            case "redacted_thinking" | "tool_addition" | "tool_removal":
                pass
            case "tool_result" | "mcp_tool_result" | "web_search_tool_result" | "tool_search_tool_result":
                yield from flushed()
                result = block if block["type"] == "tool_result" else as_tool_result(block)
                yield _output(result, where)
                if changes is not None:
                    yield from changes.load(result)
            case "thinking":
                if words or calls:
                    yield from flushed()
                thoughts.append(string(block.get("thinking")))
            case "tool_use" | "mcp_tool_use":
                calls.append(_call(block, where))
            case "server_tool_use" if is_search(block):
                calls.append(_call(block, where))
            case _:
                if calls:
                    yield from flushed()
                words += _parts(block, where)
    yield from flushed()
    if not blocks:
        yield {"role": role, "content": ""}


def _call(block: Mapping[str, Any], place: str) -> dict[str, Any]:
    arguments = block.get("input")
    function = {
        "name": model_name(model_name_of(block, place), optional(block, "toolset_name", str, place)),
        "arguments": arguments if isinstance(arguments, str) else dump({} if arguments is None else arguments),
    }
    return {"id": required(block, "id", str, place), "type": "function", "function": function}


def _output(block: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return a ``tool_result`` as a tool message (rule 3 in the module docstring)."""
    content = block.get("content")
    if content is None or isinstance(content, str):
        parts: list[dict[str, Any]] = [{"type": "text", "text": content or ""}]
    else:
        path = f"{place}.content"
        parts = [
            part for index, block in enumerate(_blocks(content, path)) for part in _parts(block, f"{path}[{index}]")
        ]
    if block.get("is_error") is True:
        parts = [{"type": "text", "text": "The tool failed."}, *(part for part in parts if part.get("text") != "")]
    is_text = all(part["type"] == "text" for part in parts)
    return {
        "role": "tool",
        "tool_call_id": required(block, "tool_use_id", str, place),
        "content": "\n".join(part["text"] for part in parts) if is_text else parts,
    }


def _parts(block: Mapping[str, Any], place: str) -> Iterator[dict[str, Any]]:
    """Convert a block of any type to parts of a chat message, and yield them (rule 7 in the module docstring)."""
    match block.get("type"):
        case "text":
            yield {"type": "text", "text": required(block, "text", str, place)}
        case "document" if mapping(block.get("source")).get("type") == "content":
            content = block["source"].get("content")
            title = [string(block.get("title"))]
            texts = [*title, content] if isinstance(content, str) else title
            yield from ({"type": "text", "text": text} for text in texts if text)
            for index, part in enumerate(mappings(content)):
                yield from _parts(part, f"{place}.source.content[{index}]")
        case "document" if (text := document_text(block)) is not None:
            yield {"type": "text", "text": text}
        # OpenAI's types are also accepted (rule 10).
        case "image" | "document" | "image_url" | "input_image" | "file" | "input_file":
            yield dict(block)
        case "input_text" | "input_audio" | "refusal":
            yield dict(block)
        case "tool_reference":
            yield {"type": "text", "text": f"The tool {string(block.get('tool_name'))} can be called now."}
        case "compaction":
            message = "A 'compaction' block is not supported: only Anthropic's server can read it."
            raise BadRequest(message, place, "unsupported_value")
        case str():
            yield {"type": "text", "text": legible(block)}
        case _:
            required(block, "type", str, place)


def _unnamed_toolsets(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a toolset for each MCP server that no toolset names. The older version of the API has no toolsets."""
    named = {string(tool.get("mcp_server_name")) for tool in mappings(body.get("tools"))}
    for server in mappings(body.get("mcp_servers")):
        if (name := string(server.get("name"))) not in named:
            yield {"type": TOOLSET, "mcp_server_name": name}


def _choice_by_type(body: Mapping[str, Any]) -> object:
    """Return the ``tool_choice``. If it names a hosted tool, its type ``tool`` is replaced with the type of the hosted
    tool.
    """
    choice = body.get("tool_choice")
    if mapping(choice).get("type") != "tool":
        return choice
    for tool in map(mapping, array(body.get("tools"))):
        kind = string(tool.get("type"))
        is_hosted = kind not in ("", "custom", "function") and "input_schema" not in tool and client_tool(tool) is None
        if is_hosted and tool.get("name") == mapping(choice).get("name"):
            return {**mapping(choice), "type": kind}
    return choice


def declared_tool(declared: object, place: str) -> dict[str, Any]:
    """Return a declared tool in chat's function shape, or a hosted tool as sent (rules 5 and 6 in the module
    docstring).
    """
    fields = expect(declared, dict, place)
    kind = optional(fields, "type", str, place)
    if kind is not None and kind != "custom" and "input_schema" not in fields:
        return client_tool(fields) or fields
    name = required(fields, "name", str, place)
    function: dict[str, Any] = {"name": name}
    declaration = {"type": "function", "function": function}
    if (description := optional(fields, "description", str, place)) is not None:
        function["description"] = description
    if fields.get("defer_loading") is True:
        function["defer_loading"] = True
    if (schema := optional(fields, "input_schema", dict, place)) is not None:
        function["parameters"] = schema
    if optional(fields, "strict", bool, place):
        function["strict"] = True
    if examples := fields.get("input_examples"):
        function["input_examples"] = examples
    return declaration


def choice_fields(sent: object) -> dict[str, Any]:
    """Return the fields of a chat request that express a ``tool_choice`` of the Messages API.

    Raises BadRequest if the tool choice is invalid.
    """
    if not sent:
        return {}
    choice = expect(sent, dict, "tool_choice")
    asked: dict[str, Any] = {}
    if choice.get("disable_parallel_tool_use") is True:
        asked["parallel_tool_calls"] = False
    kind = required(choice, "type", str, "tool_choice")
    if kind == "tool":
        asked["tool_choice"] = {"type": "function", "name": required(choice, "name", str, "tool_choice")}
    elif kind in _MODES:
        asked["tool_choice"] = _MODES[kind]
    elif kind.startswith(HOSTED):
        asked["tool_choice"] = {"type": kind}
    else:
        message = (
            "Invalid value for 'tool_choice.type': expected 'auto', 'any', 'tool' or 'none', "
            f"but got '{kind[:64]}' instead."
        )
        raise BadRequest(message, "tool_choice.type", "invalid_value")
    return asked
