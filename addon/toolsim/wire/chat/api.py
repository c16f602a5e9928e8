"""The chat completions API as an object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, override

from toolsim.core.conversation import Called, ClientRequest, Demand, HostedItem, Item, Message
from toolsim.core.events import ToolKind
from toolsim.core.plan import AnswerForm, OutputMode, Policy
from toolsim.wire.api import Api, Writer
from toolsim.wire.chat import request as requests
from toolsim.wire.chat.reader import ChatReader
from toolsim.wire.chat.writer import ChatWriter
from toolsim.wire.foreign import as_chat
from toolsim.wire.ids import chat_call_id


class ChatApi(Api):
    """Chat completions."""

    name = "chat"
    path_suffix = path_marker = "/chat/completions"
    backend = "chat"
    conversation_fields = ("messages",)
    delta_text_keys = frozenset({"content", "arguments", "input", "refusal", "reasoning", "reasoning_content"})
    identifier_keys = frozenset({"finish_reason", "system_fingerprint", "tool_call_id"})
    # The role that every chat template supports; many servers do not know developer.
    manifest_role = "system"
    text_follows_calls = False
    takes_structural_tags = True

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
    def uses_tools(self, body: Mapping[str, Any]) -> bool:
        return requests.uses_tools(body)

    @override
    def read(self, body: Mapping[str, Any]) -> ClientRequest:
        return requests.read_request(body)

    @override
    def answer_form(self, body: Mapping[str, Any]) -> AnswerForm:
        return requests.answer_form(body)

    @override
    def to_items(self, request: ClientRequest) -> tuple[list[Item], list[str]]:
        return requests.to_items(request)

    @override
    def compose(
        self, request: ClientRequest, messages: Sequence[Message | HostedItem], answer_format: Demand, keep_hosted: bool
    ) -> dict[str, Any]:
        return requests.compose(request, messages, answer_format, keep_hosted)

    @override
    def append_reply(self, body: Mapping[str, Any], words: str, reply: str) -> dict[str, Any]:
        return requests.append_reply(body, words, reply)

    @override
    def append_tool_results(self, body: Mapping[str, Any], words: str, calls: Sequence[Called]) -> dict[str, Any]:
        return requests.append_tool_results(body, words, calls)

    @override
    def side_request(self, body: Mapping[str, Any], rule: str, question: str) -> dict[str, Any]:
        return requests.side_request(body, rule, question)

    @override
    def calls_of(self, message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        return requests.calls_of(message)

    @override
    def output_mode(self, policy: Policy) -> OutputMode:
        return policy.output_mode

    @override
    def reader(self) -> ChatReader:
        return ChatReader()

    @override
    def writer(self, form: AnswerForm) -> Writer:
        return ChatWriter(form)

    @override
    def call_id(self, kind: ToolKind, number: int) -> str:
        return chat_call_id(kind, number)


CHAT = ChatApi()
