"""Tests for recording prompts and answers in spans. They are recorded only if enabled, in the format of the
OpenTelemetry conventions, and without secrets.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from mitmproxy.test import tflow
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from toolsim.mcp.outcome import ToolOutcome
from toolsim.otel import content
from toolsim.otel.content import VARIABLE, Content, is_asked_for
from toolsim.wire.mcp_items import McpCall

KEY = "sk-abcdefghijklmnopqrstuvwx"
TRACER = TracerProvider(shutdown_on_exit=False).get_tracer("test")


@pytest.mark.parametrize(
    ("value", "is_on"),
    [
        ("", False),
        ("false", False),
        ("NO_CONTENT", False),
        ("EVENT_ONLY", False),
        ("true", True),
        ("SPAN_ONLY", True),
        ("span_and_event", True),
    ],
)
def test_content_is_enabled_by_a_variable(value: str, is_on: bool) -> None:
    assert is_asked_for({VARIABLE: value}) is is_on
    assert not is_asked_for({})


def filled(kept: Content, span: Any) -> dict[str, Any]:
    """End the span, and return the attributes that would be exported with it."""
    span.end()
    made = kept.filled(span)
    assert isinstance(made, ReadableSpan)
    assert (made.name, made.context, made.status.status_code) == (span.name, span.context, span.status.status_code)
    return {name: json.loads(str(value)) for name, value in (made.attributes or {}).items()}


def of_turn(request: dict[str, Any], answer: bytes) -> dict[str, Any]:
    kept, span = Content(True), TRACER.start_span("chat m")
    flow = tflow.tflow()
    flow.request.headers["authorization"] = "Bearer own-key-of-the-client"
    flow.request.content = json.dumps(request).encode()
    kept.of_turn(span, flow, answer)
    found = filled(kept, span)
    # Once the content is part of the span, no other copy of it is kept.
    assert (kept._noted, kept._size) == ({}, 0)
    return found


STREAM = b"".join(
    b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"
    for choice in (
        {"index": 0, "delta": {"role": "assistant", "content": "Hi, "}},
        {"index": 0, "delta": {"content": f"{KEY}."}},
        {"index": 0, "delta": {}, "finish_reason": "stop"},
    )
)


def test_messages_are_recorded_and_redacted() -> None:
    """The parts of messages are recorded as attributes of the span. API keys are redacted, even if the deltas of a
    stream split them.
    """
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": f"My key is {KEY}, or own-key-of-the-client"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
    ]
    found = of_turn({"model": "m", "messages": messages}, STREAM + b"data: [DONE]\n\n")
    told, asked, picture = found["gen_ai.input.messages"]
    assert told == {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]}
    assert asked["parts"][0]["content"].startswith("My key is sk-xxx")
    assert picture["parts"] == [{"type": "blob", "modality": "image", "content": ""}]
    [said] = found["gen_ai.output.messages"]
    assert said["parts"] == [{"type": "text", "content": "Hi, sk-" + "x" * (len(KEY) - 3) + "."}]
    assert (said["role"], said["finish_reason"]) == ("assistant", "stop")
    assert KEY not in str(found)
    assert "own-key-of" not in str(found)


def test_structured_calls_and_outputs_are_separate_parts() -> None:
    """Structured calls and their outputs, in a request or an answer, are recorded as separate parts."""
    request = {
        "model": "m",
        "input": [
            {"role": "user", "content": "hi"},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
        ],
    }
    call = {"type": "function_call", "id": "i", "call_id": "c2", "name": "f", "arguments": '{"a":2}'}
    body = {"id": "r", "object": "response", "status": "completed", "model": "m", "output": [call]}
    found = of_turn(request, json.dumps(body).encode())
    assert found["gen_ai.input.messages"][1:] == [
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "f", "arguments": {"a": 1}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "done"}]},
    ]
    [said] = found["gen_ai.output.messages"]
    assert said["parts"] == [{"type": "tool_call", "id": "c2", "name": "f", "arguments": {"a": 2}}]


@pytest.mark.parametrize("answer", [b"", b"\xff", b"data: {", b'{"error": 1}'])
def test_unreadable_answer_does_not_raise(answer: bytes) -> None:
    """An answer that cannot be parsed is recorded as empty, without an exception in the exporter's thread."""
    found = of_turn({"what": "ever"}, answer)
    assert found == {"gen_ai.input.messages": [], "gen_ai.output.messages": []}


def test_call_content_is_redacted() -> None:
    kept, span = Content(True), TRACER.start_span("execute_tool f")
    call = McpCall("mcp_1", "files", "f", json.dumps({"token": "very-secret-token", "path": "/tmp"}))
    kept.of_call(span, call, ToolOutcome(json.dumps({"size": 3})))
    found = filled(kept, span)
    assert found["gen_ai.tool.call.arguments"] == {"token": "x" * 17, "path": "/tmp"}
    assert found["gen_ai.tool.call.result"] == {"size": 3}


@pytest.mark.parametrize("depth", [100, 600])
def test_deeply_nested_content_is_redacted(depth: int) -> None:
    """Deeply nested arguments are recorded with their secrets redacted, and no exception is raised."""
    kept, span = Content(True), TRACER.start_span("execute_tool f")
    kept.of_call(span, McpCall("i", "s", "t", '{"a":' * depth + "1" + "}" * depth), ToolOutcome(None))
    assert set(filled(kept, span)) == {"gen_ai.tool.call.arguments"}


def test_noted_content_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The content that is kept for open spans is limited in size. If the limit is exceeded, the content of the oldest
    spans is dropped.
    """
    monkeypatch.setattr(content, "MAX_BYTES", 100)
    kept, spans = Content(True), [TRACER.start_span(str(number)) for number in range(3)]
    for span in spans:
        kept.of_call(span, McpCall("i", "s", "t", "x" * 60), ToolOutcome(None))
    assert list(kept._noted) == [spans[2].get_span_context().span_id]
    assert kept._size == 60


def test_disabled_content_records_nothing() -> None:
    kept, span = Content(False), TRACER.start_span("execute_tool f")
    kept.of_call(span, McpCall("mcp_1", "files", "f", "{}"), ToolOutcome("text"))
    assert filled(kept, span) == {}
