"""The Responses API as an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, override

from toolsim.core.conversation import Called, ClientRequest, Demand, HostedItem, Item, Message
from toolsim.core.events import ToolKind
from toolsim.core.plan import AnswerForm, OutputMode, Policy
from toolsim.wire.api import Api, TokenCountEndpoint, Writer
from toolsim.wire.foreign import as_responses
from toolsim.wire.ids import responses_call_id
from toolsim.wire.responses import request as requests
from toolsim.wire.responses.compaction import CompactionWriter, with_summaries
from toolsim.wire.responses.hosted import ResponsesHosted
from toolsim.wire.responses.reader import ResponsesReader
from toolsim.wire.responses.writer import ResponsesWriter

_COUNTED = frozenset(
    {"conversation", "input", "instructions", "model", "parallel_tool_calls", "personality", "previous_response_id"}
    | {"reasoning", "text", "tool_choice", "tools", "truncation"}
)


class ResponsesApi(Api):
    """OpenAI's Responses API."""

    name = "responses"
    path_suffix = path_marker = "/responses"
    backend = "responses"
    conversation_fields = ("instructions", "input")
    delta_text_keys = frozenset({"delta", "text", "arguments", "input", "refusal"})
    identifier_keys = frozenset({"call_id", "created_by", "item_id", "phase", "truncation"})
    token_count = TokenCountEndpoint("/input_tokens", _COUNTED)
    manifest_role = "developer"
    text_follows_calls = True
    is_storable = True
    hosted = ResponsesHosted()

    @override
    def is_request(self, body: Mapping[str, Any]) -> bool:
        return "messages" not in body

    @override
    def is_answer(self, body: Mapping[str, Any]) -> bool:
        return "choices" not in body and (body.get("object") == "response" or "output" in body)

    @override
    def is_event(self, kind: str, data: Mapping[str, Any]) -> bool:
        return kind.startswith("response.")

    @override
    def expand_opaque_items(self, body: dict[str, Any]) -> dict[str, Any]:
        return with_summaries(body if requests.is_own_shape(body) else as_responses(body))

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
    def output_mode(self, policy: Policy) -> OutputMode:
        return policy.responses_output_mode

    @override
    def reader(self) -> ResponsesReader:
        return ResponsesReader()

    @override
    def writer(self, form: AnswerForm) -> Writer:
        return CompactionWriter(form) if form.compacts else ResponsesWriter(form)

    @override
    def call_id(self, kind: ToolKind, number: int) -> str:
        return responses_call_id(kind, number)


RESPONSES = ResponsesApi()
