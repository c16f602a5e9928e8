"""Reads Messages API requests from clients, and writes them for backends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolsim.core.conversation import Called, ClientRequest, Demand, HostedItem, Image, Item, Message, Part, Raw, Text
from toolsim.core.plan import AnswerForm
from toolsim.wire.chat import request as chat
from toolsim.wire.chat.request import FEW_TOKENS, ITEMS, check_one_choice, is_chat_message
from toolsim.wire.content import split_instructions
from toolsim.wire.json_codec import dump
from toolsim.wire.json_fields import array, loaded, mapping, mappings, string
from toolsim.wire.messages.to_chat import SAME, chat_request
from toolsim.wire.tools import read_tools

_WITH_TOOLS = ("tool_use", "tool_result", "tool_addition")
# Fields that contain the conversation and its tools. All other fields are model settings.
_CONVERSATION = frozenset({"messages", "system", "tools", "tool_choice"})
# Fields that control the format and length of a single answer. They are not copied to a request that toolsim sends to
# ask the model a question.
_ANSWER_FIELDS = frozenset({"max_tokens", "stream", "temperature", "top_p", "top_k", "stop_sequences", "thinking"})
# Fields of the other APIs that affect the answer and have a different name in the Messages API.
_SETTINGS_ELSEWHERE = frozenset(
    {"functions", "parallel_tool_calls", "max_completion_tokens", "max_output_tokens", "response_format", "stop"}
)
OWN_FIELDS = _ANSWER_FIELDS | {"metadata", "output_config", "context_management", "mcp_servers", "container"}
"""Settings that are kept when a request is converted to the Messages API."""
_DROPPED_WITH_TOOLS = frozenset({"context_management", "mcp_servers", "container"})

# Fields of chat completions that are translated, or that have no meaning in the Messages API.
_TRANSLATED = frozenset({*SAME, "messages", "max_completion_tokens", "stop", "stream_options", "n", "store"})

MAX_TOKENS = 4096
"""Token limit for a client that does not set one. The API requires a limit, and its oldest models do not support a
higher one.
"""


def uses_tools(body: Mapping[str, Any]) -> bool:
    """Return whether a request declares tools or has calls in its history."""
    history = any(string(block.get("type")) in _WITH_TOOLS for block in blocks(body))
    return bool(body.get("tools")) or history


def is_own_shape(body: Mapping[str, Any]) -> bool:
    """Return whether a request contains nothing specific to another API (see ``foreign.py``)."""
    if not _SETTINGS_ELSEWHERE.isdisjoint(body) or (body.get("input") is not None and body.get("messages") is None):
        return False
    if not is_own_choice(body.get("tool_choice")) or any(map(is_foreign_tool, mappings(body.get("tools")))):
        return False
    return not any(
        string(message.get("type")) in ITEMS or is_chat_message(message) for message in mappings(body.get("messages"))
    )


def is_own_choice(choice: object) -> bool:
    """Return whether a ``tool_choice`` has the shape of the Messages API."""
    return not isinstance(choice, str) and mapping(choice).get("type") not in ("function", "custom", "allowed_tools")


def is_foreign_tool(tool: Mapping[str, Any]) -> bool:
    """Return whether a tool is declared in the shape of another API."""
    return tool.get("type") == "function" or "function" in tool or ("parameters" in tool and "input_schema" not in tool)


def blocks(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the blocks of all messages in a request."""
    for message in mappings(body.get("messages")):
        yield from mappings(message.get("content"))


def calls_of(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and arguments of each call in a message from the model."""
    for block in mappings(message.get("content")):
        if block.get("type") == "tool_use":
            yield string(block.get("name")), dump(block.get("input"))


def read_request(body: Mapping[str, Any]) -> ClientRequest:
    """Parse a client's request. Raises BadRequest if it is invalid. The error's ``param`` is the path of the invalid
    field.
    """
    asked, lost, first = chat_request(body)
    request = replace(
        chat.read_request(asked), api="messages", original_body=body, form=answer_form(body), untranslatable=tuple(lost)
    )
    return request if first is None else replace(request, first_tools=read_tools({"tools": first})[0])


def answer_form(body: Mapping[str, Any]) -> AnswerForm:
    """Return the form of answer that the client expects, even for an otherwise invalid request."""
    return AnswerForm(stream=body.get("stream") is True, model=string(body.get("model")), include_usage=True)


def append_tool_results(body: Mapping[str, Any], words: str, calls: Sequence[Called]) -> dict[str, Any]:
    """Return the request with an additional turn: the model's text ``words``, its calls, and the tool outputs."""
    said = [{"type": "text", "text": words}] if words else []
    uses = [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": loaded(call.arguments) or {}}
        for call, _ in calls
    ]
    results = [
        {"type": "tool_result", "tool_use_id": call.call_id, "content": [block_of(part) for part in output.parts]}
        for call, output in calls
    ]
    turn = [{"role": "assistant", "content": [*said, *uses]}, {"role": "user", "content": results}]
    return {**body, "messages": [*array(body.get("messages")), *turn]}


def side_request(body: Mapping[str, Any], rule: str, question: str) -> dict[str, Any]:
    """Return a request that asks the same model a ``question`` and requires a brief, deterministic answer.

    ``rule`` contains instructions for the answer, or is "" if ``question`` contains them.
    """
    left_out = _CONVERSATION | _ANSWER_FIELDS | {"output_config"}
    kept = {key: value for key, value in body.items() if key not in left_out}
    system = {"system": rule} if rule else {}
    asked = [{"role": "user", "content": question}]
    return {**kept, **system, "messages": asked, "temperature": 0, "max_tokens": FEW_TOKENS}


def to_items(request: ClientRequest) -> tuple[list[Item], list[str]]:
    """Return the items of a request for a Messages backend, and notes on the items that the API does not support."""
    items, notes = chat.to_items_for(request, "messages")
    if request.api == "messages":
        return items, notes
    check_one_choice(request)
    shared = chat.compose(request, (), None, keep_hosted=False)
    notes += [key[:40] for key, value in shared.items() if key not in _TRANSLATED and value is not None]
    return items, notes


def compose(
    request: ClientRequest, messages: Sequence[Message | HostedItem], answer_format: Demand, keep_hosted: bool
) -> dict[str, Any]:
    """Return the body for a Messages backend with ``messages`` as its conversation. Hosted items are left out.

    ``answer_format`` is the structured output to request. ``keep_hosted`` specifies whether to forward hosted tools.
    """
    plain = [message for message in messages if isinstance(message, Message)]
    if request.original_body is not None:
        left_out = _CONVERSATION | (frozenset() if keep_hosted else _DROPPED_WITH_TOOLS)
        body = {key: value for key, value in request.original_body.items() if key not in left_out}
    else:
        # The client uses another API. Copy the settings that chat completions and the Messages API have in common.
        shared = chat.compose(request, (), None, keep_hosted=False)
        body = {key: shared[key] for key in SAME if shared.get(key) is not None}
        limit = shared.get("max_completion_tokens")
        body.setdefault("max_tokens", MAX_TOKENS if limit is None else limit)
        if (stop := shared.get("stop")) is not None:
            body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    instructions, rest = split_instructions(plain, "system", "developer")
    if instructions:
        body["system"] = instructions
    body["messages"] = [*_alternating(rest)]
    if keep_hosted and request.hosted:
        body["tools"] = list(request.hosted)
    wanted = request.answer_format if answer_format == "as sent" else answer_format
    config = {key: value for key, value in mapping(body.pop("output_config", None)).items() if key != "format"}
    if wanted is not None and wanted.get("schema"):
        config["format"] = {"type": "json_schema", "schema": wanted["schema"]}
    if config:
        body["output_config"] = config
    return body


def _alternating(messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
    """Yield messages with alternating roles, as the API requires. Instructions between other messages become user
    messages.
    """
    role = ""
    blocks: list[dict[str, Any]] = []
    for message in messages:
        own = "assistant" if message.role == "assistant" else "user"
        if own != role and blocks:
            yield {"role": role, "content": blocks}
            blocks = []
        role = own
        blocks += [block_of(part) for part in message.parts if not isinstance(part, Text) or part.text]
    if blocks:
        yield {"role": role, "content": blocks}


def block_of(part: Part) -> dict[str, Any]:
    """Return a message part as a block of the Messages API."""
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Image(url):
            head, comma, data = url.partition(",")
            if comma and head.startswith("data:") and head.endswith(";base64"):
                kind = head.removeprefix("data:").removesuffix(";base64")
                return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
            return {"type": "image", "source": {"type": "url", "url": url}}
        case Raw():
            return dict(part.part)
