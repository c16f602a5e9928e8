"""Chat completions, as one object."""

from __future__ import annotations

from operator import attrgetter

from toolsim.wire.api import Api
from toolsim.wire.chat import request
from toolsim.wire.chat.foreign import as_chat
from toolsim.wire.chat.reader import ChatReader
from toolsim.wire.chat.writer import ChatWriter
from toolsim.wire.ids import chat_call_id

CHAT = Api(
    name="chat",
    ending="/chat/completions",
    known_by="/chat/completions",
    backend="chat",
    is_request=lambda body: "messages" in body,
    is_answer=lambda body: "choices" in body,
    is_event=lambda _, data: "choices" in data or bool(data.get("error")),
    told=("messages",),
    pieces=frozenset({"content", "arguments", "input", "refusal", "reasoning", "reasoning_content"}),
    terms=frozenset({"finish_reason", "system_fingerprint", "tool_call_id"}),
    # The role that every chat template knows; many servers do not know developer.
    manifest_role="system",
    text_follows_calls=False,
    output_mode=attrgetter("output_mode"),
    takes_structural_tags=True,
    spelt_out=as_chat,
    calls_of=request.calls_of,
    uses_tools=request.uses_tools,
    read=request.read_request,
    adopt=request.adopt,
    compose=request.compose,
    answer_form=request.answer_form,
    continued=request.continued,
    called=request.called,
    aside=request.aside,
    reader=ChatReader,
    writer=ChatWriter,
    call_id=chat_call_id,
)
