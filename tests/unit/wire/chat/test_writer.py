from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from support.answers import read
from toolsim.core.errors import ApiError
from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Ended,
    Failed,
    KeepAlive,
    Opened,
    PassThrough,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Usage,
)
from toolsim.core.plan import AnswerForm
from toolsim.wire.chat.writer import ChatWriter

FORM = AnswerForm(stream=True, model="text-model")


def write(events: Sequence[ClientEvent], form: AnswerForm = FORM) -> tuple[list[dict[str, Any]], bool, ChatWriter]:
    """Write the given events. Return the chunks, whether ``[DONE]`` followed, and the writer."""
    writer = ChatWriter(form)
    frames = [frame for event in events for frame in writer.write(event)]
    assert all(frame.startswith(b"data: ") and frame.endswith(b"}\n\n") for frame in frames[:-1])
    done = bool(frames) and frames[-1] == b"data: [DONE]\n\n"
    return [json.loads(frame[6:]) for frame in (frames[:-1] if done else frames)], done, writer


def deltas(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def call(number: int, choice: int = 0, **fields: Any) -> list[ClientEvent]:
    return [
        CallStarted(number, "f", choice=choice, **fields),
        CallDelta('{"a":', choice),
        CallDelta("1}", choice),
        CallEnded(choice=choice),
    ]


def test_order_of_a_stream() -> None:
    """A stream contains the role, the ID and name of each call followed by its fragments, a finish reason, and
    ``[DONE]``, in this order.
    """
    chunks, done, _ = write([Opened(None, 5, "m"), TextDelta("Hi"), *call(3), *call(4), Ended({0: "tool_calls"})])
    assert deltas(chunks) == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Hi"},
        {
            "tool_calls": [
                {"index": 0, "id": "call_003", "type": "function", "function": {"name": "f", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "call_004", "type": "function", "function": {"name": "f", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 1, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "1}"}}]},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 8 + ["tool_calls"]
    assert done
    assert not any("usage" in chunk for chunk in chunks)
    assert {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks} == {
        (chunks[0]["id"], "chat.completion.chunk", 5, "m")
    }


def test_usage_is_sent_only_on_request() -> None:
    """If the client requests usage, ``usage`` is null in each chunk except the last, which contains the token counts.
    Otherwise, no usage is sent.
    """
    asked = dataclasses.replace(FORM, include_usage=True)
    chunks, _, _ = write([TextDelta("a"), Ended({0: "stop"}, Usage(1, 2, 3))], asked)
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 3
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 3
    assert write([TextDelta("a"), Ended()], asked)[0][-1]["choices"][0]["finish_reason"] == "stop"
    assert not any(chunk.get("usage") for chunk in write([TextDelta("a"), Ended({}, Usage(1, 2, 3))])[0])


def test_choices() -> None:
    """A stream's first chunk belongs to choice 0. Each choice has a role and a finish reason, even if it has no
    content.
    """
    chunks, _, _ = write([TextDelta("b", 1), *call(1, 0), Ended({0: "tool_calls", 1: "length", 2: "stop"})])
    assert chunks[0]["choices"][0]["index"] == 0
    assert deltas(chunks, 1)[1] == {"content": "b"}
    reasons = {c["index"]: c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]}
    assert reasons == {0: "tool_calls", 1: "length", 2: "stop"}
    assert deltas(chunks, 2) == [{"role": "assistant", "content": "", "refusal": None}, {}]


def test_empty_answer() -> None:
    """Even an empty answer has a role, a finish reason and ``[DONE]``."""
    chunks, done, _ = write([Ended()])
    assert deltas(chunks) == [{"role": "assistant", "content": "", "refusal": None}, {}]
    assert done


def test_non_streamed_message() -> None:
    """If a non-streamed message contains only calls, its content is null."""
    whole = dataclasses.replace(FORM, stream=False)
    _, _, writer = write([*call(1), Ended({0: "tool_calls"}, Usage(1, 2, 3))], whole)
    assert writer.body is not None
    message = writer.body["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "call_001", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
    }
    assert writer.body["choices"][0]["logprobs"] is None
    _, _, writer = write([TextDelta("a"), *call(1), Ended({0: "tool_calls"})], whole)
    assert writer.body is not None
    assert writer.body["choices"][0]["message"]["content"] == "a"
    assert "usage" not in writer.body


def test_legacy_functions() -> None:
    """Legacy calls are written as ``function_call``, with the finish reason "function_call"."""
    legacy = dataclasses.replace(FORM, legacy_functions=True)
    chunks, _, _ = write([*call(1), Ended({0: "tool_calls"})], legacy)
    assert deltas(chunks)[1:] == [
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": '{"a":'}},
        {"function_call": {"arguments": "1}"}},
        {},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"
    _, _, writer = write([*call(1), Ended({0: "tool_calls"})], dataclasses.replace(legacy, stream=False))
    assert writer.body is not None
    assert writer.body["choices"][0]["message"]["function_call"] == {"name": "f", "arguments": '{"a":1}'}


def test_custom_calls() -> None:
    """A call to a custom tool contains ``custom`` in place of ``function``."""
    chunks, _, _ = write([*call(1, kind="custom"), Ended({0: "tool_calls"})])
    assert deltas(chunks)[1] == {
        "tool_calls": [{"index": 0, "id": "call_001", "type": "custom", "custom": {"name": "f", "input": ""}}]
    }
    assert deltas(chunks)[2] == {"tool_calls": [{"index": 0, "custom": {"input": '{"a":'}}]}
    _, _, writer = write([*call(1, kind="custom"), Ended()], dataclasses.replace(FORM, stream=False))
    assert writer.body is not None
    assert writer.body["choices"][0]["message"]["tool_calls"][0]["custom"] == {"name": "f", "input": '{"a":1}'}


def test_failed() -> None:
    """After a failure, the stream ends with an error object and without ``[DONE]``, so that the client raises the
    error.
    """
    chunks, done, writer = write([TextDelta("a"), Failed(ApiError("out", code="c"))])
    assert chunks[-1] == {"error": {"message": "out", "type": "server_error", "param": None, "code": "c"}}
    assert not done
    assert writer.error is not None
    failing = (TextDelta("a"), Failed(ApiError("out", code="c")))
    frames = [frame for event in failing for frame in ChatWriter(FORM).write(event)]
    assert read("chat", True, frames).error == "c"


def test_keepalive_reasoning_and_omitted_items() -> None:
    """In a chat stream, a keep-alive is an empty delta, and reasoning is sent in the usual reasoning field. Items of
    built-in tools are omitted.
    """
    chunks, _, _ = write(
        [Opened(), KeepAlive(), ReasoningDelta("hm"), RefusalDelta("no"), PassThrough({"type": "mcp_call"})]
    )
    assert deltas(chunks)[1:] == [{}, {"reasoning_content": "hm"}, {"refusal": "no"}]


def test_keepalive_before_the_answer_is_a_comment() -> None:
    """A keep-alive before the answer is sent as an SSE comment. It cannot be a chunk, because each chunk names the
    model, which is not yet known.
    """
    writer = ChatWriter(FORM)
    assert writer.write(KeepAlive()) == [b": keepalive\n\n"]
    frames = [*writer.write(Opened(model="theirs")), *writer.write(TextDelta("a")), *writer.write(Ended())]
    assert b'"model":"theirs"' in frames[0]
    assert ChatWriter(AnswerForm(stream=False, model="m")).write(KeepAlive()) == []


PARTS = st.lists(st.text(min_size=1, max_size=5) | st.none(), max_size=6)


@given(PARTS, st.booleans())
def test_any_answer(parts: list[str | None], usage: bool) -> None:
    """Any mixture of text and calls is written as valid chunks and as a valid completion with the same text."""
    events: list[ClientEvent] = []
    for number, part in enumerate(parts, 1):
        events += [TextDelta(part)] if part else call(number)
    reason: Any = "tool_calls" if None in parts else "stop"
    events.append(Ended({0: reason}, Usage(1, 2, 3) if usage else None))
    chunks, done, _ = write(events)
    assert done
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    _, _, writer = write(events, dataclasses.replace(FORM, stream=False))
    assert writer.body is not None
    ChatCompletion.model_validate(writer.body)
    streamed = "".join(delta.get("content") or "" for delta in deltas(chunks))
    assert streamed == (writer.body["choices"][0]["message"]["content"] or "")


@pytest.mark.parametrize(
    ("events", "content"),
    [
        ([TextDelta("a"), *call(1), Ended()], ""),
        ([*call(1), Ended({0: "tool_calls"})], None),
        ([Opened(), KeepAlive(), *call(1), Ended({0: "tool_calls"})], None),
        ([Ended()], ""),
    ],
)
def test_first_chunk_has_null_content_before_a_call(events: list[ClientEvent], content: str | None) -> None:
    """If an answer begins with a call, the content in the first chunk is null, as in a non-streamed answer. If it
    begins with text, the content is an empty string.
    """
    chunks, _, _ = write(events)
    assert deltas(chunks)[0] == {"role": "assistant", "content": content, "refusal": None}


def test_filtered_answer_without_text() -> None:
    """If a filter has removed the answer, its content is null rather than an empty string."""
    _, _, writer = write([Ended({0: "content_filter"})], dataclasses.replace(FORM, stream=False))
    assert writer.body is not None
    assert writer.body["choices"][0]["message"]["content"] is None
