"""Reads Chat Completions requests from clients, and writes them for backends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from toolsim.core.conversation import (
    Call,
    Called,
    CallOutput,
    ClientRequest,
    Declaration,
    Demand,
    HostedItem,
    Item,
    Message,
    Part,
    Text,
    Thought,
)
from toolsim.core.errors import BadRequest
from toolsim.core.events import ToolKind
from toolsim.core.plan import AnswerForm, ToolChoice
from toolsim.core.policy import ApiName
from toolsim.wire.content import ROLES, chat_content, read_parts, translate_item, with_parts_for
from toolsim.wire.ids import highest_number
from toolsim.wire.json_fields import array, expect, json_text, mapping, mappings, optional, required, string
from toolsim.wire.tool_choice import hosted_fields, read_choice
from toolsim.wire.tools import CONSUMED, declares_tools, read_tools

# Fields that contain the conversation, or control the format, length and sampling of the answer. All other fields are
# model settings, whose names differ between servers.
_ANSWER_FIELDS = frozenset(
    {"messages", "response_format", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "stop"}
    | {"temperature", "top_p", "seed", "logprobs", "top_logprobs", "logit_bias", "frequency_penalty"}
    | {"presence_penalty", "modalities", "audio", "prediction", "web_search_options", "verbosity", "store", "metadata"}
)


SHARED = (
    "model",
    "temperature",
    "top_p",
    "metadata",
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "stream",
)
"""Fields with the same name and meaning in chat completions and the Responses API."""

_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "tool_reference"})
ITEMS = frozenset({"function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning"})
"""Types of items, other than messages, in the history of a Responses request."""
CHOICES = ("auto", "any", "tool", "none")
"""Types of a ``tool_choice`` in the Messages API."""
FEW_TOKENS = 16
"""Smallest token limit that the Responses API accepts."""

# Responses fields that are translated, or whose absence has no effect.
_TRANSLATED = frozenset(
    {"input", "instructions", "max_output_tokens", "text", "reasoning", "store", "stream_options", "max_tool_calls"}
)
# Fields that only a Responses backend can process. They are rejected, because dropping them would change the client's
# question.
_STORED = ("previous_response_id", "conversation", "background", "prompt")


def uses_tools(body: Mapping[str, Any]) -> bool:
    """Return whether a request declares tools that the client runs, or has calls in its history."""
    history = any(
        message.get("role") in ("tool", "function") or message.get("tool_calls") or message.get("function_call")
        for message in mappings(body.get("messages"))
    )
    return history or declares_tools(body)


def is_own_shape(body: Mapping[str, Any]) -> bool:
    """Return whether a request contains nothing specific to another API (see ``foreign.py``)."""
    if body.get("messages") is None and body.get("input") is not None:
        return False
    is_plain = "system" not in body and string(mapping(body.get("tool_choice")).get("type")) not in CHOICES
    has_schemas = any("input_schema" in tool for tool in mappings(body.get("tools")))
    return is_plain and not has_schemas and not any(map(_is_foreign, mappings(body.get("messages"))))


def _is_foreign(message: Mapping[str, Any]) -> bool:
    return string(message.get("type")) in ITEMS or has_blocks(message)


def is_chat_message(message: Mapping[str, Any]) -> bool:
    """Return whether a message contains calls or an output in the shape of chat completions."""
    has_calls = bool(message.get("tool_calls") or message.get("function_call"))
    return has_calls or (message.get("role") in ("tool", "function") and "type" not in message)


def has_blocks(message: Mapping[str, Any]) -> bool:
    """Return whether a message has blocks that only the Messages API defines: calls, outputs or reasoning."""
    content = message.get("content")
    return not isinstance(content, str) and any(string(block.get("type")) in _BLOCKS for block in mappings(content))


def call_ids(messages: list[Any]) -> list[str]:
    """Return all call IDs in a history."""
    found: list[object] = []
    for message in mappings(messages):
        found += [message.get("tool_call_id"), *(call.get("id") for call in mappings(message.get("tool_calls")))]
    return [call_id for call_id in found if isinstance(call_id, str)]


def read_request(body: Mapping[str, Any]) -> ClientRequest:
    """Parse a client's request. Raises BadRequest if it is invalid. The error's ``param`` is the path of the invalid
    field.
    """
    legacy = body.get("functions") is not None and body.get("tools") is None
    common = read_common(body, "function_call" if legacy else "tool_choice")
    optional(body, "stream_options", dict)
    n = optional(body, "n", int)
    if n is not None and n < 1:
        raise BadRequest(f"Invalid 'n': expected an integer of at least 1, but got {n} instead.", "n", "invalid_value")
    messages = required(body, "messages", list)
    items = tuple(MessagesReader().read(messages))
    if common.tools and not items:
        message = "Invalid 'messages': expected at least one message, but got an empty array instead."
        raise BadRequest(message, "messages", "empty_array")
    return replace(
        common,
        items=items,
        form=answer_form(body, legacy_functions=legacy),
        n=1 if n is None else n,
        answer_format=flat_format(body.get("response_format")),
        highest_call=highest_number(call_ids(messages)),
    )


def read_common(body: Mapping[str, Any], param: Literal["function_call", "tool_choice"]) -> ClientRequest:
    """Read the parts that both OpenAI APIs share: the tools, and the tool choice at ``param``.

    Raises BadRequest if one of these parts is invalid.
    """
    tools, hosted = read_tools(body)
    choice, notes = ToolChoice(), list[str]()
    if body.get(param) is not None:
        choice, notes = read_choice(body[param], tools, hosted=bool(hosted), param=param)
    parallel = optional(body, "parallel_tool_calls", bool) is not False
    optional(body, "stream", bool)
    return ClientRequest(
        "chat", body, (), tools=tools, hosted=hosted, tool_choice=choice, parallel=parallel, dropped=tuple(notes)
    )


def check_one_choice(request: ClientRequest) -> None:
    """Raise BadRequest if a client requests several choices but the backend's API returns only one."""
    if request.n > 1:
        message = f"'n' is {request.n}, but the backend can return only one choice."
        raise BadRequest(message, "n", "unsupported_parameter")


def append_reply(body: Mapping[str, Any], words: str, reply: str) -> dict[str, Any]:
    """Return the request with an additional turn: the model's text ``words``, and the ``reply`` to it."""
    turn = [{"role": "assistant", "content": words}, {"role": "user", "content": reply}]
    return {**body, "messages": [*array(body.get("messages")), *turn[not words :]]}


def append_tool_results(body: Mapping[str, Any], words: str, calls: Sequence[Called]) -> dict[str, Any]:
    """Return the request with an additional turn: the model's text ``words``, its calls, and the tool outputs."""
    tool_calls = [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call, _ in calls
    ]
    turn = {"role": "assistant", "content": words or None, "tool_calls": tool_calls}
    outputs = [
        {"role": "tool", "tool_call_id": call.call_id, "content": chat_content(output.parts)} for call, output in calls
    ]
    return {**body, "messages": [*array(body.get("messages")), turn, *outputs]}


def calls_of(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and arguments of each call in a message from the model."""
    functions = [call.get("function") for call in mappings(message.get("tool_calls"))]
    for function in (*functions, message.get("function_call")):
        if isinstance(function, dict):
            yield string(function.get("name")), string(function.get("arguments"))


def side_request(body: Mapping[str, Any], rule: str, question: str) -> dict[str, Any]:
    """Return a request that asks the same model a ``question`` and requires a brief, deterministic answer.

    ``rule`` contains instructions for the answer, or is "" if ``question`` contains them.
    """
    kept = {key: value for key, value in body.items() if key not in CONSUMED | _ANSWER_FIELDS}
    limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    messages = [{"role": "system", "content": rule}, {"role": "user", "content": question}]
    return {**kept, "messages": messages[not rule :], "temperature": 0, limit: FEW_TOKENS}


def answer_form(body: Mapping[str, Any], *, legacy_functions: bool = False) -> AnswerForm:
    """Return the form of answer that the client expects, even for an otherwise invalid request."""
    return AnswerForm(
        stream=body.get("stream") is True,
        model=string(body.get("model")),
        include_usage=mapping(body.get("stream_options")).get("include_usage") is True,
        legacy_functions=legacy_functions,
    )


class MessagesReader:
    """Reads ``messages``. Legacy calls are assigned IDs. A legacy output belongs to the last call of the same name."""

    def __init__(self) -> None:
        self._legacy_calls = 0
        self._last_legacy: dict[str, str] = {}

    def read(self, messages: Iterable[object]) -> list[Item]:
        """Return the items in all messages. Raises BadRequest if a message is invalid."""
        items: list[Item] = []
        for index, message in enumerate(messages):
            param = f"messages[{index}]"
            items += self.message(expect(message, dict, param), param)
        return items

    def message(self, message: dict[str, Any], param: str) -> list[Item]:
        """Return the items of one message at the path ``param``. Raises BadRequest if the message is invalid."""
        items: list[Item] = []
        self._message(message, param, items)
        return items

    def _message(self, message: dict[str, Any], param: str, items: list[Item]) -> None:
        if message.get("type") == "additional_tools":
            # As in the Responses API, tools can be declared within the conversation (see ``messages/to_chat.py``).
            tools, _ = read_tools({"tools": optional(message, "tools", list, param) or []})
            removed = tuple(name for name in array(message.get("removed")) if isinstance(name, str))
            items.append(Declaration(tools, removed))
            return
        role = required(message, "role", str, param)
        parts = read_parts(message.get("content"), "chat", f"{param}.content")
        match role:
            case "tool":
                call_id = required(message, "tool_call_id", str, param)
                items.append(CallOutput(call_id, parts, _name(message)))
            case "assistant":
                self._assistant(message, parts, param, items)
            case "function":
                name = required(message, "name", str, param)
                items.append(CallOutput(self._last_legacy.get(name, name), parts, name))
            case _:
                if role not in ROLES:
                    expected = ", ".join(f"'{known}'" for known in (*ROLES, "tool", "function"))
                    text = f"Invalid value: expected one of {expected}, but got '{role[:64]}' instead."
                    raise BadRequest(text, f"{param}.role", "invalid_value")
                items.append(Message(ROLES[role], parts, _name(message)))

    def _assistant(self, message: dict[str, Any], parts: tuple[Part, ...], param: str, items: list[Item]) -> None:
        if refusal := string(message.get("refusal")):
            parts = (*parts, Text(refusal))
        if thought := string(message.get("reasoning_content")) or string(message.get("reasoning")):
            items.append(Thought(thought))
        calls = []
        for index, call in enumerate(optional(message, "tool_calls", list, param) or ()):
            path = f"{param}.tool_calls[{index}]"
            calls.append(self._call(expect(call, dict, path), path))
        legacy = optional(message, "function_call", dict, param)
        if legacy is not None:
            calls.append(self._legacy_call(legacy, f"{param}.function_call"))
        if not calls or (parts and any(not isinstance(part, Text) or part.text for part in parts)):
            items.append(Message("assistant", parts, _name(message)))
        items += calls

    def _call(self, call: dict[str, Any], param: str) -> Call:
        kind: ToolKind = "custom" if call.get("type") == "custom" else "function"
        call_id = required(call, "id", str, param)
        fields = required(call, kind, dict, param)
        path = f"{param}.{kind}"
        name = required(fields, "name", str, path)
        text = _arguments(fields, path) if kind == "function" else optional(fields, "input", str, path) or ""
        return Call(call_id, name, text, None, kind)

    def _legacy_call(self, call: dict[str, Any], param: str) -> Call:
        name = required(call, "name", str, param)
        self._legacy_calls += 1
        self._last_legacy[name] = f"function_{self._legacy_calls}"
        return Call(self._last_legacy[name], name, _arguments(call, param))


def _arguments(fields: Mapping[str, Any], param: str) -> str:
    """Return the arguments of a call as JSON text, even if the client sent an object."""
    sent = fields.get("arguments")
    return json_text(sent) if isinstance(sent, dict) else optional(fields, "arguments", str, param) or ""


def _name(message: Mapping[str, Any]) -> str | None:
    name = message.get("name")
    return name if isinstance(name, str) else None


def to_items(request: ClientRequest) -> tuple[list[Item], list[str]]:
    """Return the items of a request for a chat backend, and notes on the items that chat does not support.

    Raises BadRequest if dropping a part would change the client's question.
    """
    return to_items_for(request, "chat")


def to_items_for(request: ClientRequest, to: ApiName) -> tuple[list[Item], list[str]]:
    """Return the items of a request for a backend whose API has only messages, and notes on unsupported items.

    A Responses client's ``instructions`` become the first system message. Developer messages become system messages,
    which every chat template supports. Raises BadRequest if dropping a part would change the client's question.
    """
    if request.api != "responses":
        lost = list[str]()
        return [with_parts_for(item, to, lost) for item in request.items], lost
    sent = {key: value for key, value in request.body.items() if value is not None}
    _refuse_stored(sent)
    known = CONSUMED | _TRANSLATED | set(SHARED) | set(_STORED)
    notes = [key[:40] for key in sent if key not in known]
    items = [translate_item(item, to, notes) for item in request.items]
    instructions = sent.get("instructions")
    if instructions is not None:
        items.insert(0, Message("system", (Text(expect(instructions, str, "instructions")),)))
    return items, notes


def _refuse_stored(sent: Mapping[str, Any]) -> None:
    if mapping(sent.get("prompt_cache_options")).get("prewarm") is True:
        message = "'prompt_cache_options.prewarm' is not supported: chat completions always generate an answer."
        raise BadRequest(message, "prompt_cache_options.prewarm", "unsupported_parameter")
    for key in _STORED:
        value = sent.get(key)
        if value is None or value is False:
            continue
        if key == "previous_response_id":
            got = f" '{value[:64]}'" if isinstance(value, str) else ""
            message = (
                f"Previous response{got} not found: the backend uses chat completions and does not store responses."
            )
            raise BadRequest(message, key, "previous_response_not_found")
        message = f"'{key}' is not supported: the backend uses chat completions, which have no equivalent."
        if key in ("conversation", "background"):
            message = f"{message[:-1]}, and this proxy does not store answers (toolsim_store)."
        raise BadRequest(message, key, "unsupported_parameter")


def compose(
    request: ClientRequest, messages: Sequence[Message | HostedItem], answer_format: Demand, keep_hosted: bool
) -> dict[str, Any]:
    """Return the body for a chat backend with ``messages`` as its conversation. Hosted items are left out.

    ``answer_format`` is the structured output to request. ``keep_hosted`` specifies whether to forward hosted tools,
    which is possible only for a client of the same API.
    """
    plain = [message for message in messages if isinstance(message, Message)]
    if request.api == "responses":
        return _compose_from_responses(
            request, plain, request.answer_format if answer_format == "as sent" else answer_format
        )
    body = {key: value for key, value in request.body.items() if key not in CONSUMED}
    body["messages"] = [_write_message(message) for message in plain]
    if keep_hosted and request.hosted:
        body |= hosted_fields(request)
    if answer_format is None:
        body.pop("response_format", None)
    elif answer_format != "as sent":
        body["response_format"] = nested_format(answer_format)
    return body


def _compose_from_responses(
    request: ClientRequest, messages: Sequence[Message], answer_format: Mapping[str, Any] | None
) -> dict[str, Any]:
    sent = {key: value for key, value in request.body.items() if value is not None}
    body: dict[str, Any] = {key: sent[key] for key in SHARED if key in sent}
    body["messages"] = [_write_message(message) for message in messages]
    # The client's API always returns token counts, but chat completions does so only on request.
    if request.form.stream:
        body["stream_options"] = {"include_usage": True}
    # ``store`` is false by default, and some gateways reject it, so it is sent only if it is true.
    if sent.get("store") is True:
        body["store"] = True
    if "max_output_tokens" in sent:
        # Every chat server supports ``max_tokens``. A server that ignored the newer ``max_completion_tokens`` would
        # apply no limit at all.
        body["max_tokens"] = sent["max_output_tokens"]
    reasoning, text = sent.get("reasoning"), sent.get("text")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        body["reasoning_effort"] = reasoning["effort"]
    if isinstance(text, dict) and text.get("verbosity") is not None:
        body["verbosity"] = text["verbosity"]
    if answer_format is not None:
        body["response_format"] = nested_format(answer_format)
    return body


def _write_message(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": chat_content(message.parts)}
    return written if message.name is None else {**written, "name": message.name}


def flat_format(wanted: object) -> Mapping[str, Any] | None:
    """Return the JSON format that a client requires, in the flat shape of ``text.format``, or None for plain text.

    The shapes of both OpenAI APIs are accepted on either endpoint, since clients mix them.
    """
    if not isinstance(wanted, dict) or wanted.get("type") not in ("json_schema", "json_object"):
        return None
    nested = wanted.get("json_schema")
    return {"type": wanted["type"], **nested} if isinstance(nested, dict) else wanted


def nested_format(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a flat JSON format to the ``response_format`` of chat completions."""
    if flat["type"] != "json_schema":
        return dict(flat)
    return {"type": "json_schema", "json_schema": {key: value for key, value in flat.items() if key != "type"}}
