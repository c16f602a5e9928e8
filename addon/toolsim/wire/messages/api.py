"""The Messages API, as one object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolsim.wire.api import Api, Counting
from toolsim.wire.chat.request import continued
from toolsim.wire.json_fields import mappings
from toolsim.wire.messages import request
from toolsim.wire.messages.reader import MessagesReader
from toolsim.wire.messages.shape import SHAPE
from toolsim.wire.messages.writer import MessagesWriter, call_id

_EVENTS = frozenset(
    {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"}
)
_COUNTED = frozenset({"messages", "model", "output_config", "system", "thinking", "tool_choice", "tools"})


def is_request(body: Mapping[str, Any]) -> bool:
    """Return whether a body has something that chat completions have not."""
    if "messages" not in body:
        return False
    if "system" in body or any("input_schema" in tool for tool in mappings(body.get("tools"))):
        return True
    return any(block.get("type") in ("tool_use", "tool_result", "image") for block in request.blocks(body))


MESSAGES = Api(
    name="messages",
    ending="/messages",
    # Many a website has messages too.
    known_by="/v1/messages",
    # Nearly every server speaks chat completions, hardly any this one.
    backend="chat",
    is_request=is_request,
    is_answer=lambda body: body.get("type") == "message" and "content" in body,
    is_event=lambda kind, _: kind in _EVENTS,
    told=("system", "messages"),
    pieces=frozenset({"text", "partial_json", "thinking"}),
    terms=frozenset({"media_type", "stop_reason", "tool_name", "tool_use_id"}),
    headers=("anthropic-version", "anthropic-beta"),
    key_headers=("authorization", "x-api-key"),
    shape=SHAPE,
    counting=Counting("/count_tokens", _COUNTED, ("llama.cpp", "vllm")),
    manifest_role="system",
    # It has one, but Claude's own answers never put text there.
    text_follows_calls=False,
    output_mode=lambda policy: "openai-json",
    calls_of=request.calls_of,
    uses_tools=request.uses_tools,
    read=request.read_request,
    adopt=request.adopt,
    compose=request.compose,
    answer_form=request.answer_form,
    continued=continued,
    called=request.called,
    aside=request.aside,
    reader=MessagesReader,
    writer=MessagesWriter,
    call_id=call_id,
)
