"""The implementation of ``Api`` for the Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, override

from toolsim.core.plan import AnswerForm
from toolsim.core.policy import OutputMode, Policy
from toolsim.wire.api import Api, TokenCountEndpoint, Writer
from toolsim.wire.chat import request as chat
from toolsim.wire.foreign import as_messages
from toolsim.wire.json_fields import mappings
from toolsim.wire.messages import request as requests
from toolsim.wire.messages import shape
from toolsim.wire.messages.hosted import MessagesHosted
from toolsim.wire.messages.reader import MessagesReader
from toolsim.wire.messages.writer import MessagesWriter, call_id

_EVENTS = frozenset(
    {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"}
)
_COUNTED = frozenset({"messages", "model", "output_config", "system", "thinking", "tool_choice", "tools"})


class MessagesApi(Api):
    """Anthropic's Messages API."""

    name = "messages"
    path_suffix = "/messages"
    # The path has to include the version, because many websites have paths that end in "messages".
    path_marker = "/v1/messages"
    # Nearly every server implements chat completions, but hardly any server implements the Messages API.
    backend = "chat"
    conversation_fields = ("system", "messages")
    delta_text_keys = frozenset({"text", "partial_json", "thinking"})
    identifier_keys = frozenset({"media_type", "stop_reason", "tool_name", "tool_use_id"})
    headers = ("anthropic-version", "anthropic-beta")
    key_headers = ("authorization", "x-api-key")
    own_key_header = "x-api-key"
    own_query = "beta=true"
    token_count = TokenCountEndpoint("/count_tokens", _COUNTED, ("llama.cpp", "vllm"))
    manifest_role = "system"
    # The Messages API allows text after calls, but Claude's answers never contain it.
    text_follows_calls = False
    has_own_errors = True
    hosted = MessagesHosted()

    uses_tools = staticmethod(requests.uses_tools)
    read = staticmethod(requests.read_request)
    answer_form = staticmethod(requests.answer_form)
    to_items = staticmethod(requests.to_items)
    compose = staticmethod(requests.compose)
    append_reply = staticmethod(chat.append_reply)
    append_tool_results = staticmethod(requests.append_tool_results)
    side_request = staticmethod(requests.side_request)
    calls_of = staticmethod(requests.calls_of)
    call_id = staticmethod(call_id)
    own_backend_headers = staticmethod(shape.own_backend_headers)
    other_backend_headers = staticmethod(shape.other_backend_headers)
    error_answer = staticmethod(shape.error_answer)
    model_list = staticmethod(shape.model_list)

    @override
    def is_request(self, body: Mapping[str, Any]) -> bool:
        if "messages" not in body:
            return False
        # Chat completions requests do not have ``system`` or ``input_schema``.
        if "system" in body or any("input_schema" in tool for tool in mappings(body.get("tools"))):
            return True
        return any(block.get("type") in ("tool_use", "tool_result", "image") for block in requests.blocks(body))

    @override
    def is_answer(self, body: Mapping[str, Any]) -> bool:
        return body.get("type") == "message" and "content" in body

    @override
    def is_event(self, kind: str, data: Mapping[str, Any]) -> bool:
        return kind in _EVENTS

    @override
    def expand_opaque_items(self, body: dict[str, Any]) -> dict[str, Any]:
        return body if requests.is_own_shape(body) else as_messages(body)

    @override
    def can_demand(self, answer_format: Mapping[str, Any]) -> bool:
        return bool(answer_format.get("schema"))

    @override
    def output_mode(self, policy: Policy) -> OutputMode:
        return "openai-json"

    @override
    def reader(self) -> MessagesReader:
        return MessagesReader()

    @override
    def writer(self, form: AnswerForm) -> Writer:
        return MessagesWriter(form)


MESSAGES = MessagesApi()
