"""The Responses API, as one object."""

from __future__ import annotations

from operator import attrgetter

from toolsim.wire.api import Api, Counting
from toolsim.wire.ids import responses_call_id
from toolsim.wire.responses import request
from toolsim.wire.responses.compaction import CompactionWriter, with_summaries
from toolsim.wire.responses.reader import ResponsesReader
from toolsim.wire.responses.writer import ResponsesWriter

_COUNTED = frozenset(
    {"conversation", "input", "instructions", "model", "parallel_tool_calls", "personality", "previous_response_id"}
    | {"reasoning", "text", "tool_choice", "tools", "truncation"}
)

RESPONSES = Api(
    name="responses",
    ending="/responses",
    known_by="/responses",
    backend="responses",
    is_request=lambda body: "messages" not in body,
    is_answer=lambda body: "choices" not in body and (body.get("object") == "response" or "output" in body),
    is_event=lambda kind, _: kind.startswith("response."),
    told=("instructions", "input"),
    pieces=frozenset({"delta", "text", "arguments", "input", "refusal"}),
    terms=frozenset({"call_id", "created_by", "item_id", "phase", "truncation"}),
    counting=Counting("/input_tokens", _COUNTED),
    manifest_role="developer",
    text_follows_calls=True,
    output_mode=attrgetter("responses_output_mode"),
    is_storable=True,
    spelt_out=with_summaries,
    uses_tools=request.uses_tools,
    read=request.read_request,
    adopt=request.adopt,
    compose=request.compose,
    answer_form=request.answer_form,
    continued=request.continued,
    called=request.called,
    aside=request.aside,
    reader=ResponsesReader,
    writer=lambda form: CompactionWriter(form) if form.compacts else ResponsesWriter(form),
    call_id=responses_call_id,
)
