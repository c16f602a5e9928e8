"""The implementation of ``Api`` for the Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, override

from toolsim.core.plan import AnswerForm
from toolsim.core.policy import OutputMode, Policy
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

    uses_tools = staticmethod(requests.uses_tools)
    read = staticmethod(requests.read_request)
    answer_form = staticmethod(requests.answer_form)
    to_items = staticmethod(requests.to_items)
    compose = staticmethod(requests.compose)
    append_reply = staticmethod(requests.append_reply)
    append_tool_results = staticmethod(requests.append_tool_results)
    side_request = staticmethod(requests.side_request)
    call_id = staticmethod(responses_call_id)

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
    def output_mode(self, policy: Policy) -> OutputMode:
        return policy.responses_output_mode

    @override
    def reader(self) -> ResponsesReader:
        return ResponsesReader()

    @override
    def writer(self, form: AnswerForm) -> Writer:
        return CompactionWriter(form) if form.compacts else ResponsesWriter(form)


RESPONSES = ResponsesApi()
