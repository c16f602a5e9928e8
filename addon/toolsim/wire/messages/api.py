"""The Messages API as an object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, override

from toolsim.core.conversation import Called, ClientRequest, Demand, HostedItem, Item, Message
from toolsim.core.events import ToolKind
from toolsim.core.plan import AnswerForm, OutputMode, Policy
from toolsim.wire.api import Api, HeaderChange, TokenCountEndpoint, Writer
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
    # Many websites have paths that end in "messages".
    path_marker = "/v1/messages"
    # Nearly every server implements chat completions, hardly any this API.
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
    # The API allows it, but Claude's own answers never put text there.
    text_follows_calls = False
    has_own_errors = True
    hosted = MessagesHosted()

    @override
    def is_request(self, body: Mapping[str, Any]) -> bool:
        if "messages" not in body:
            return False
        # These exist in no request for chat completions.
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
    def can_demand(self, answer_format: Mapping[str, Any]) -> bool:
        return bool(answer_format.get("schema"))

    @override
    def append_reply(self, body: Mapping[str, Any], words: str, reply: str) -> dict[str, Any]:
        return chat.append_reply(body, words, reply)

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
        return "openai-json"

    @override
    def reader(self) -> MessagesReader:
        return MessagesReader()

    @override
    def writer(self, form: AnswerForm) -> Writer:
        return MessagesWriter(form)

    @override
    def call_id(self, kind: ToolKind, number: int) -> str:
        return call_id(kind, number)

    @override
    def own_backend_headers(self, headers: Mapping[str, str]) -> HeaderChange:
        return shape.own_backend_headers(headers)

    @override
    def other_backend_headers(self, headers: Mapping[str, str]) -> HeaderChange:
        return shape.other_backend_headers(headers)

    @override
    def error_answer(self, status: int, body: bytes) -> bytes:
        return shape.error_answer(status, body)

    @override
    def model_list(self, body: bytes) -> bytes:
        return shape.model_list(body)


MESSAGES = MessagesApi()
