"""The implementation of ``Api`` for chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, override

from toolsim.core.plan import AnswerForm
from toolsim.core.policy import OutputMode, Policy
from toolsim.wire.api import Api, Writer
from toolsim.wire.chat import request as requests
from toolsim.wire.chat.reader import ChatReader
from toolsim.wire.chat.writer import ChatWriter
from toolsim.wire.foreign import as_chat
from toolsim.wire.ids import chat_call_id


class ChatApi(Api):
    """The chat completions API."""

    name = "chat"
    path_suffix = path_marker = "/chat/completions"
    backend = "chat"
    conversation_fields = ("messages",)
    delta_text_keys = frozenset({"content", "arguments", "input", "refusal", "reasoning", "reasoning_content"})
    identifier_keys = frozenset({"finish_reason", "system_fingerprint", "tool_call_id"})
    # Every chat template supports the system role; many servers do not support the developer role.
    manifest_role = "system"
    text_follows_calls = False
    takes_structural_tags = True

    uses_tools = staticmethod(requests.uses_tools)
    read = staticmethod(requests.read_request)
    answer_form = staticmethod(requests.answer_form)
    to_items = staticmethod(requests.to_items)
    compose = staticmethod(requests.compose)
    append_reply = staticmethod(requests.append_reply)
    append_tool_results = staticmethod(requests.append_tool_results)
    side_request = staticmethod(requests.side_request)
    calls_of = staticmethod(requests.calls_of)
    call_id = staticmethod(chat_call_id)

    @override
    def is_request(self, body: Mapping[str, Any]) -> bool:
        return "messages" in body

    @override
    def is_answer(self, body: Mapping[str, Any]) -> bool:
        return "choices" in body

    @override
    def is_event(self, kind: str, data: Mapping[str, Any]) -> bool:
        return "choices" in data or bool(data.get("error"))

    @override
    def expand_opaque_items(self, body: dict[str, Any]) -> dict[str, Any]:
        return body if requests.is_own_shape(body) else as_chat(body)

    @override
    def output_mode(self, policy: Policy) -> OutputMode:
        return policy.output_mode

    @override
    def reader(self) -> ChatReader:
        return ChatReader()

    @override
    def writer(self, form: AnswerForm) -> Writer:
        return ChatWriter(form)


CHAT = ChatApi()
