"""Tests for the rules of the Open Responses specification, which ``/v1/responses`` follows even with a chat backend.

Each rule is tested end to end: a client's request is rewritten, a chat backend answers it, and the answer is rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from support.answers import rewrite
from support.wire import backend_answer
from toolsim.core.errors import BadRequest
from toolsim.core.plan import Plan
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy.jobs import AnswerJob, RequestJob, run
from toolsim.request.rewrite import rewrite_request
from toolsim.wire.responses.operations import compaction

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}}
NESTED = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Paris\\"}"}</tool_call>'
OTHER = CALL.replace("get_weather", "other")
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
USER = {"type": "message", "role": "user", "content": "Hi"}

# For each kind of request in the specification's test suite: the client's request, and the model's answer.
REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"input": "Hi"}, "Hello."),
    "instructions": (
        {"input": "Hi", "instructions": "Be brief.", "temperature": 0.2, "metadata": {"a": "b"}},
        "Hello.",
    ),
    "call": ({"input": "Weather?", "tools": [WEATHER]}, CALL),
    "chat-shaped tool": ({"input": "Weather?", "tools": [NESTED]}, f"Let me look. {CALL}"),
    "words after the call": ({"input": "Weather?", "tools": [WEATHER]}, f"{CALL} and {CALL} so."),
    "image": ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "What?"}, IMAGE]}]}, "A dot."),
    "instructions in the input": ({"input": [{"role": "system", "content": "Be a pirate."}, USER]}, "Ahoy."),
    "phases": (
        {
            "input": [
                {"type": "message", "role": "assistant", "phase": "commentary", "content": "I look."},
                {"type": "message", "role": "assistant", "phase": "final_answer", "content": "Four."},
                USER,
            ]
        },
        "Four.",
    ),
    "several turns": (
        {
            "input": [
                {"role": "user", "content": "Weather?"},
                {"type": "function_call", "call_id": "fc_001", "name": "get_weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "fc_001", "output": "18"},
            ],
            "tools": [WEATHER],
        },
        CALL,
    ),
}
# Required fields with their allowed types; NoneType stands for null.
NULLABLE = (dict, list, str, int, float, bool, type(None))
REQUIRED: dict[str, tuple[type, ...]] = {
    "id": (str,), "object": (str,), "created_at": (int,), "completed_at": (int, type(None)), "status": (str,),
    "model": (str,), "output": (list,), "tools": (list,), "tool_choice": (str, dict), "parallel_tool_calls": (bool,),
    "temperature": (int, float), "top_p": (int, float), "presence_penalty": (int, float),
    "frequency_penalty": (int, float), "top_logprobs": (int,), "store": (bool,), "background": (bool,),
    "service_tier": (str,), "truncation": (str,), "text": (dict,), "metadata": (dict, type(None)),
    **dict.fromkeys(("error", "incomplete_details", "instructions", "previous_response_id", "reasoning", "usage",
                     "max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key"), NULLABLE),
}  # fmt: skip


@dataclass
class Outcome:
    """What the client receives: the final object and, if streamed, the chunks and events."""

    sent: dict[str, Any]
    plan: Plan
    response: dict[str, Any]
    chunks: list[bytes]
    events: list[tuple[str, dict[str, Any]]]


def ask(sent: dict[str, Any], text: str, stream: bool) -> Outcome:
    body = json.dumps({"model": "m", "stream": stream, **sent}).encode()
    policy = Policy(backend="chat")
    rewritten = rewrite_request("responses", "/v1/responses", body, policy, output_mode=None, report=Report())
    assert rewritten is not None
    assert rewritten.path == "/v1/chat/completions"
    answer = backend_answer("chat", stream, [text[i : i + 5] for i in range(0, len(text), 5)])
    rewriter, chunks = rewrite(rewritten.plan, *answer)
    assert rewriter.status == 200
    events = []
    if stream:
        frames = b"".join(chunks).decode().split("\n\n")
        assert frames[-2:] == ["data: [DONE]", ""]
        for frame in frames[:-2]:
            name, data = frame.split("\n")
            events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    response = events[-1][1]["response"] if stream else json.loads(b"".join(chunks))
    return Outcome(sent, rewritten.plan, response, chunks, events)


@pytest.fixture(params=[f"{name}, {way}" for name in REQUESTS for way in ("streamed", "whole")])
def outcome(request: pytest.FixtureRequest) -> Iterator[Outcome]:
    name, _, way = request.param.rpartition(", ")
    return ask(*REQUESTS[name], way == "streamed")


@pytest.fixture(params=REQUESTS)
def streamed(request: pytest.FixtureRequest) -> Iterator[Outcome]:
    return ask(*REQUESTS[request.param], True)


def test_response_object(outcome: Outcome) -> None:
    """Each response object has all required fields with allowed types, and the final object is completed."""
    for response in [outcome.response, *(event["response"] for _, event in outcome.events if "response" in event)]:
        for key, types in REQUIRED.items():
            assert isinstance(response[key], types), key
    assert outcome.response["status"] == "completed"
    assert outcome.response["completed_at"] is not None


def test_published_schemas(outcome: Outcome) -> None:
    """The final response object and all events of a stream conform to the specification's schemas."""
    from support.open_responses import check_event, check_response

    check_response(outcome.response)
    for _, event in outcome.events:
        check_event(event)


def test_request_fields_are_echoed(outcome: Outcome) -> None:
    """Instructions, temperature and metadata are echoed unchanged. Tools are echoed as flat functions with all keys."""
    for key in ("instructions", "temperature", "metadata"):
        if key in outcome.sent:
            assert outcome.response[key] == outcome.sent[key]
    assert len(outcome.response["tools"]) == len(outcome.sent.get("tools", ()))
    for tool in outcome.response["tools"]:
        assert {"type", "name", "description", "parameters", "strict"} <= set(tool)


def test_usage(outcome: Outcome) -> None:
    """The usage object contains the backend's token counts and their details."""
    usage = outcome.response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (3, 4, 7)
    assert usage["input_tokens_details"]["cached_tokens"] == 0
    assert usage["output_tokens_details"]["reasoning_tokens"] == 0


def test_items(outcome: Outcome) -> None:
    """Each output item is completed, and its ID is unique within the answer and the conversation."""
    ids = [item["id"] for item in outcome.response["output"]]
    assert len(set(ids)) == len(ids)
    assert all(item["status"] == "completed" for item in outcome.response["output"])
    if any(item.get("type") == "function_call" for item in outcome.sent["input"] if isinstance(item, dict)):
        assert "fc_001" not in ids


def test_chunks_contain_complete_frames(streamed: Outcome) -> None:
    """Each chunk contains only complete frames. Event names match the types, and sequence numbers count from 0."""
    assert all(name == event["type"] for name, event in streamed.events)
    assert [event["sequence_number"] for _, event in streamed.events] == list(range(len(streamed.events)))
    assert all(chunk.startswith((b"event: ", b"data: [DONE]")) and chunk.endswith(b"\n\n") for chunk in streamed.chunks)


def test_order_of_events(streamed: Outcome) -> None:
    """A stream begins with created and in_progress, and ends with completed. Each item has deltas and a done event."""
    kinds = [kind for kind, _ in streamed.events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    for index, item in enumerate(streamed.response["output"]):
        own = [kind for kind, event in streamed.events if event.get("output_index") == index]
        assert own[0] == "response.output_item.added"
        assert own[-1] == "response.output_item.done"
        delta = "function_call_arguments" if item["type"] == "function_call" else "output_text"
        assert own.count(f"response.{delta}.delta") >= 1
        assert own.count(f"response.{delta}.done") == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "allowed", [{"type": "function", "name": "get_weather"}, {"type": "function", "function": {"name": "get_weather"}}]
)
def test_tool_outside_allowed_tools_is_not_called(stream: bool, allowed: dict[str, Any]) -> None:
    """A declared tool that is not in ``allowed_tools`` is never called: a call from the model remains text."""
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [allowed]}
    sent = {"input": "x", "tools": [WEATHER, {**WEATHER, "name": "other"}], "tool_choice": choice}
    response = ask(sent, f"{OTHER}{CALL}", stream).response
    assert [item["type"] for item in response["output"]] == ["message", "function_call"]
    assert response["output"][0]["content"][0]["text"] == OTHER
    assert response["output"][1]["name"] == "get_weather"
    assert response["tool_choice"] == choice


@pytest.mark.parametrize("stream", [True, False])
def test_parallel_tool_calls_false_allows_one_call(stream: bool) -> None:
    """If parallel_tool_calls is false, the answer has at most one call."""
    sent = {"input": "x", "tools": [WEATHER], "parallel_tool_calls": False}
    response = ask(sent, CALL * 2, stream).response
    assert [item["type"] for item in response["output"]] == ["function_call"]
    assert response["parallel_tool_calls"] is False


def test_unknown_previous_response() -> None:
    """If the previous response is not stored, the request fails with ``previous_response_not_found``."""

    with pytest.raises(BadRequest) as raised:
        ask({"input": "x", "previous_response_id": "resp_1"}, "", False)
    assert (raised.value.error.code, raised.value.error.param) == (
        "previous_response_not_found",
        "previous_response_id",
    )


def compact(**sent: Any) -> tuple[int, dict[str, Any]]:
    """Return the status and body of the answer to a compaction request. A chat backend writes the summary."""
    body = json.dumps(sent).encode()
    policy = Policy(backend="chat")
    job = RequestJob("responses", "/v1/responses", policy, data=body, limit=10_000, action="compact")
    asked = run(job)
    if asked.error is not None:
        return asked.error.status, {"error": asked.error.body()}
    assert asked.rewritten is not None
    content_type, answer = backend_answer("chat", False, ["Launch on Tuesday; tell support first."])
    answered = run(AnswerJob(asked.rewritten.plan, content_type, data=answer, limit=10_000))
    made = compaction(answered.body, asked.prepared)
    assert isinstance(made, bytes)
    return 200, json.loads(made)


def test_compaction() -> None:
    """A compaction and its items have all required fields, and the last item has the type compaction."""
    texts = ["We agreed to launch on Tuesday and notify support first.", "Understood."]
    roles = zip(("user", "assistant"), texts, strict=True)
    items = [{"type": "message", "role": role, "content": text} for role, text in roles]
    status, made = compact(model="m", prompt_cache_key="key", input=items)
    assert (status, made["object"]) == (200, "response.compaction")
    assert made["id"].startswith("resp_")
    assert isinstance(made["created_at"], int)
    message, last = made["output"]
    assert (message["type"], message["role"], message["status"]) == ("message", "user", "completed")
    assert message["content"] == [{"type": "input_text", "text": texts[0]}]
    assert last["type"] == "compaction"
    assert {"id", "encrypted_content"} <= last.keys()
    usage = made["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (3, 4, 7)
    assert usage["input_tokens_details"]["cached_tokens"] == usage["output_tokens_details"]["reasoning_tokens"] == 0


def test_compaction_needs_a_model() -> None:
    """A compaction request without a model fails with 400."""
    status, body = compact(input=[{"type": "message", "role": "user", "content": "Compact this."}])
    assert (status, body["error"]["param"]) == (400, "model")
