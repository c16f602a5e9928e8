"""Reads Responses API requests from clients, and writes them for backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolsim.core.conversation import (
    Called,
    ClientRequest,
    Demand,
    HostedItem,
    Item,
    Message,
)
from toolsim.core.errors import BadRequest
from toolsim.core.plan import AnswerForm, Tool
from toolsim.wire.chat.request import (
    CHOICES,
    FEW_TOKENS,
    SHARED,
    check_one_choice,
    flat_format,
    has_blocks,
    is_chat_message,
    read_common,
)
from toolsim.wire.content import responses_content, split_instructions, translate_item, with_parts_for
from toolsim.wire.json_fields import mapping, mappings, missing, string
from toolsim.wire.local_tools import CALLS, is_local
from toolsim.wire.mcp_items import call_items
from toolsim.wire.responses.compaction import summary_turn, wants_summary
from toolsim.wire.responses.history import input_items, read_history
from toolsim.wire.tool_choice import hosted_fields
from toolsim.wire.tools import CONSUMED, declares_tools, echo_tools, read_tools

_HISTORY = frozenset({"function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"})
# Fields that refer to input that the backend stores. A request with such a field can have an empty input.
_STORED_QUESTIONS = ("previous_response_id", "conversation", "prompt")

# Fields of chat completions that are translated, or that have no meaning in the Responses API.
_TRANSLATED = frozenset(
    {"messages", "max_completion_tokens", "max_tokens", "response_format", "verbosity", "reasoning_effort", "store"}
    | {"stream_options", "n"}
)

# Fields that a Response repeats, with the API's defaults for the members that the client did not send.
_COMPLETED_FIELDS = frozenset({"background", "parallel_tool_calls", "reasoning", "text", "tools"})

ANSWER_FIELDS = frozenset(
    {"input", "instructions", "previous_response_id", "conversation", "prompt", "background", "truncation", "include"}
    | {"context_management", "max_tool_calls", "text", "stream", "stream_options", "max_output_tokens", "temperature"}
    | {"top_p", "top_logprobs", "metadata"}
)
"""Fields that contain the conversation, or control the format, length and sampling of the answer."""


def uses_tools(body: Mapping[str, Any]) -> bool:
    """Return whether a request declares tools that the client runs, has calls in its history, or requires a summary."""
    history = any(
        (kind := string(item.get("type"))) in _HISTORY or (kind in CALLS and is_local(item))
        for item in mappings(input_items(body))
    )
    return history or declares_tools(body) or wants_summary(body)


def is_own_shape(body: Mapping[str, Any]) -> bool:
    """Return whether a request contains nothing specific to another API (see ``foreign.py``)."""
    if body.get("input") is None and body.get("messages") is not None:
        return False
    has_choice = string(mapping(body.get("tool_choice")).get("type")) in CHOICES
    has_schemas = any("input_schema" in tool for tool in mappings(body.get("tools")))
    return not (has_choice or has_schemas or any(map(is_foreign, mappings(body.get("input")))))


def is_foreign(item: Mapping[str, Any]) -> bool:
    """Return whether an item of a history is a message with calls or outputs in the shape of another API."""
    return item.get("type") in (None, "message") and (is_chat_message(item) or has_blocks(item))


def read_request(body: Mapping[str, Any]) -> ClientRequest:
    """Parse a client's request. Raises BadRequest if it is invalid. The error's ``param`` is the path of the invalid
    field.
    """
    if wants_summary(body):
        form = replace(answer_form(body), compacts=True)
        return replace(read_request(summary_turn(body)), form=form)
    body = _configured(body)
    common = read_common(body, "tool_choice")
    read = read_history(body.get("input"), has_tools=bool(body.get("tools")))
    first_tools: tuple[Tool, ...] = ()
    if read.declaring:
        before = [None if index in read.declaring else item for index, item in enumerate(body["input"])]
        first_tools, _ = read_tools({**body, "input": before})
    if common.tools and not body.get("input") and not any(body.get(key) for key in _STORED_QUESTIONS):
        raise _no_question(body)
    return replace(
        common,
        api="responses",
        items=read.items,
        form=answer_form(body),
        instructions=string(body.get("instructions")),
        first_tools=first_tools,
        answer_format=flat_format(mapping(body.get("text")).get("format")),
        highest_call=read.highest,
        stored_history=_stored_history(body),
        dropped=(*common.dropped, *read.notes),
    )


def _configured(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Apply the ``configuration_update`` items in a request's conversation, and return the changed request."""
    updates = [item for item in mappings(body.get("input")) if item.get("type") == "configuration_update"]
    for update in updates:
        changed = {key: {**mapping(body.get(key)), **mapping(update.get(key))} for key in ("reasoning", "text")}
        body = {**body, **{key: value for key, value in changed.items() if value}}
    return body


def _stored_history(body: Mapping[str, Any]) -> str | None:
    """Return the ID of the answer that a request continues, "" if it continues a conversation, or None if it continues
    nothing.
    """
    previous = body.get("previous_response_id")
    if previous is not None:
        return string(previous)
    return None if body.get("conversation") is None else ""


def append_reply(body: Mapping[str, Any], words: str, reply: str) -> dict[str, Any]:
    """Return the request with an additional turn: the model's text ``words``, and the ``reply`` to it."""
    turn = [{"role": "assistant", "content": words}, {"role": "user", "content": reply}]
    return {**body, "input": [*input_items(body), *turn[not words :]]}


def append_tool_results(body: Mapping[str, Any], words: str, calls: Sequence[Called]) -> dict[str, Any]:
    """Return the request with an additional turn: the model's text ``words``, its calls, and the tool outputs."""
    message = [{"role": "assistant", "content": words}] if words else []
    return {**body, "input": [*input_items(body), *message, *(item for pair in calls for item in call_items(*pair))]}


def side_request(body: Mapping[str, Any], rule: str, question: str) -> dict[str, Any]:
    """Return a request that asks the same model a ``question`` and requires a brief, deterministic answer.

    ``rule`` contains instructions for the answer, or is "" if ``question`` contains them.
    """
    kept = {key: value for key, value in body.items() if key not in CONSUMED | ANSWER_FIELDS}
    few = {"temperature": 0, "max_output_tokens": FEW_TOKENS, "store": False}
    return {**kept, **({"instructions": rule} if rule else {}), "input": question, **few}


def _no_question(body: Mapping[str, Any]) -> BadRequest:
    """Return the 400 error for a request that has tools but no conversation."""
    if body.get("input") is None:
        return missing("input")
    return BadRequest(
        "Invalid 'input': expected text or at least one message, but got neither.", "input", "empty_array"
    )


def answer_form(body: Mapping[str, Any]) -> AnswerForm:
    """Return the form of answer that the client expects, even for an otherwise invalid request."""
    return AnswerForm(
        stream=body.get("stream") is True, model=string(body.get("model")), include_usage=True, echo=echo(body)
    )


def model_settings(request: ClientRequest) -> tuple[str, str, str]:
    """Return a client's settings for the model: effort, summary and verbosity. A missing setting is ""."""
    reasoning, text = mapping(request.body.get("reasoning")), mapping(request.body.get("text"))
    return string(reasoning.get("effort")), string(reasoning.get("summary")), string(text.get("verbosity"))


def wants_background(request: ClientRequest) -> bool:
    """Return whether a request requires a background answer."""
    return request.body.get("background") is True


def to_items(request: ClientRequest) -> tuple[list[Item], list[str]]:
    """Return the items of a request for a Responses backend, and notes on the items that the API does not support.

    Raises BadRequest if dropping a part would change the client's question.
    """
    if request.api == "responses":
        if wants_background(request) and not request.form.stream:
            message = (
                "'background' requires 'stream' on this proxy: without toolsim_store, an answer that is retrieved "
                "later could not contain calls."
            )
            raise BadRequest(message, "background", "unsupported_parameter")
        lost = list[str]()
        return [with_parts_for(item, "responses", lost) for item in request.items], lost
    check_one_choice(request)
    known = CONSUMED | _TRANSLATED | set(SHARED)
    notes = [key[:40] for key, value in request.body.items() if key not in known and value is not None]
    return [translate_item(item, "responses", notes) for item in request.items], notes


def compose(
    request: ClientRequest, messages: Sequence[Message | HostedItem], answer_format: Demand, keep_hosted: bool
) -> dict[str, Any]:
    """Return the body for a Responses backend with ``messages`` as its conversation. Hosted items are unchanged.

    ``answer_format`` is the structured output to request. ``keep_hosted`` specifies whether to forward hosted tools,
    which is possible only for a client of the same API.
    """
    if request.api != "responses":
        wanted = request.answer_format if answer_format == "as sent" else answer_format
        return _compose_from_chat(request, [item for item in messages if isinstance(item, Message)], wanted)
    items = [_write_message(item) if isinstance(item, Message) else dict(item.item) for item in messages]
    body = {key: value for key, value in request.body.items() if key not in CONSUMED}
    # The API allows requests without ``input`` (for a stored prompt), but not with an empty array.
    if items or "input" in body:
        body["input"] = items
    if keep_hosted and request.hosted:
        body |= hosted_fields(request)
    else:
        body.pop("max_tool_calls", None)
    text = body.get("text")
    if answer_format is None and isinstance(text, dict) and "format" in text:
        body["text"] = {key: value for key, value in text.items() if key != "format"}
    elif answer_format is not None and answer_format != "as sent":
        body["text"] = {**mapping(text), "format": answer_format}
    return body


def _compose_from_chat(
    request: ClientRequest, messages: Sequence[Message], answer_format: Mapping[str, Any] | None
) -> dict[str, Any]:
    sent = {key: value for key, value in request.body.items() if value is not None}
    body: dict[str, Any] = {key: sent[key] for key in SHARED if key in sent}
    instructions, rest = split_instructions(messages, "system")
    if instructions:
        body["instructions"] = instructions
    body["input"] = [_write_message(message) for message in rest]
    # By default, the Responses API stores answers, but chat completions does not. So ``store`` is always set.
    body["store"] = sent.get("store") is True
    limit = sent.get("max_completion_tokens", sent.get("max_tokens"))
    if limit is not None:
        body["max_output_tokens"] = limit
    if "reasoning_effort" in sent:
        body["reasoning"] = {"effort": sent["reasoning_effort"]}
    text = {"verbosity": sent["verbosity"]} if "verbosity" in sent else {}
    if answer_format is not None:
        text["format"] = answer_format
    if text:
        body["text"] = text
    return body


def _write_message(message: Message) -> dict[str, Any]:
    return {"type": "message", "role": message.role, "content": responses_content(message.role, message.parts)}


def echo(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the Response object that repeat the request, with the API's defaults for missing fields."""
    sent = {key: value for key, value in body.items() if value is not None}
    text, reasoning = sent.get("text"), sent.get("reasoning")
    fields: dict[str, Any] = {
        "background": sent.get("background") is True,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": "",
        "parallel_tool_calls": sent.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None, **mapping(reasoning)},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium", **mapping(text)},
        "tool_choice": "auto",
        "tools": echo_tools(sent.get("tools")),
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "user": None,
        "metadata": {},
    }
    return fields | {key: value for key, value in sent.items() if key in fields and key not in _COMPLETED_FIELDS}
