"""Tests for the client that uses the openai package. Its HTTP transport simulates real servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest
from support.each import each
from toolsim.eval.runtime.openai_client import Api, sender
from toolsim.eval.runtime.turn import Answer, Call, ProviderError, Request, Send, Tool

TOOL = Tool("echo", "Say it again.", {"type": "object", "properties": {}})
MESSAGES = (
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hello"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "echo", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "{}"},
)
REQUEST = Request(MESSAGES, (TOOL,), "required", False, {"temperature": 0, "top_k": 5})
ANSWER = Answer("Hi.", (Call("call_2", "echo", '{"a":1}'),), "tool_calls", 7, 3)
Handler = Callable[[httpx2.Request], httpx2.Response]


def send_by(handler: Handler, api: Api = "chat", *, stream: bool = False) -> Send:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(handler))
    client = openai.AsyncOpenAI(base_url="http://model.test/v1", api_key="k", max_retries=0, http_client=http)
    return sender(client, "any", api=api, stream=stream)


def says(content: Any, status: int = 200, **headers: str) -> Handler:
    return lambda request: httpx2.Response(status, json=content, headers=headers)


def streams(*events: dict[str, Any], done: bool = True) -> Handler:
    text = "".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
        if "type" in event
        else f"data: {json.dumps(event)}\n\n"
        for event in events
    )
    text += "data: [DONE]\n\n" if done else ""
    return lambda request: httpx2.Response(200, text=text, headers={"content-type": "text/event-stream"})


def completion(**message: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", **message}}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "any", "choices": [choice], "usage": usage}


def chunk(finish: str | None = None, usage: dict[str, int] | None = None, **delta: Any) -> dict[str, Any]:
    choices = [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "any",
        "choices": choices,
        "usage": usage,
    }


def response(status: str = "completed", **fields: Any) -> dict[str, Any]:
    message = {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hi.", "annotations": []}],
    }
    call = {
        "type": "function_call",
        "id": "f",
        "call_id": "call_2",
        "name": "echo",
        "arguments": '{"a":1}',
        "status": "completed",
    }
    usage = {
        "input_tokens": 7,
        "output_tokens": 3,
        "total_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": "r",
        "object": "response",
        "created_at": 0,
        "model": "any",
        "status": status,
        "error": None,
        "output": [message, call],
        "usage": usage,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "incomplete_details": None,
        **fields,
    }


CALL = {"id": "call_2", "type": "function", "function": {"name": "echo", "arguments": '{"a":1}'}}
PIECES = [
    chunk(role="assistant", content=""),
    chunk(content="Hi"),
    chunk(content="."),
    chunk(tool_calls=[{"index": 0, "id": "call_2", "type": "function", "function": {"name": "echo", "arguments": ""}}]),
    chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}]),
    chunk(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
    chunk("tool_calls"),
    chunk(usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}),
]
EVENTS = [
    {"type": "response.created", "sequence_number": 0, "response": response("in_progress", output=[])},
    {"type": "response.completed", "sequence_number": 1, "response": response()},
]


@pytest.mark.parametrize(
    ("api", "stream", "handler"),
    [
        ("chat", False, says(completion(content="Hi.", tool_calls=[CALL]))),
        ("chat", True, streams(*PIECES)),
        ("responses", False, says(response())),
        ("responses", True, streams(*EVENTS)),
    ],
)
async def test_answer_is_the_same_over_every_wire(api: Api, stream: bool, handler: Handler) -> None:
    """An answer has the same text, calls, finish reason and token counts with either API, streamed or not."""
    assert await send_by(handler, api, stream=stream)(REQUEST) == ANSWER


async def body_of(api: Api, request: Request = REQUEST) -> dict[str, Any]:
    seen: list[dict[str, Any]] = []

    def handler(asked: httpx2.Request) -> httpx2.Response:
        seen.append(json.loads(asked.content))
        return httpx2.Response(200, json=completion(content="") if api == "chat" else response())

    await send_by(handler, api)(request)
    return seen[0]


async def test_chat_request() -> None:
    """A chat completions request contains the messages unchanged, and the options as top-level fields. If there are no
    tools, it has no fields for them.
    """
    declared = {"name": "echo", "description": "Say it again.", "parameters": TOOL.parameters}
    assert await body_of("chat") == {
        "model": "any",
        "messages": list(MESSAGES),
        "tools": [{"type": "function", "function": declared}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
        "top_k": 5,
    }
    assert set(await body_of("chat", Request(MESSAGES[:2]))) == {"model", "messages"}


async def test_responses_request() -> None:
    """In a Responses API request, calls and their outputs are items. ``strict`` is set to false, because the default of
    the API is true.
    """
    body = await body_of("responses")
    assert body["input"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
        {"type": "function_call", "call_id": "call_1", "name": "echo", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "{}"},
    ]
    assert body["tools"][0]["strict"] is False
    assert body["store"] is False


async def failure(handler: Handler, api: Api = "chat", *, stream: bool = False) -> ProviderError:
    with pytest.raises(ProviderError) as raised:
        await send_by(handler, api, stream=stream)(REQUEST)
    return raised.value


async def test_http_error_is_reported() -> None:
    """If the server returns an HTTP error, the exception has the status, the API's error code, and the value of
    Retry-After.
    """
    refused = {"error": {"message": "Slow down.", "type": "x", "param": None, "code": "rate_limit_exceeded"}}
    error = await failure(says(refused, 429, **{"retry-after": "2.5"}))
    assert (error.status, error.code, error.retry_after, error.timed_out) == (429, "rate_limit_exceeded", 2.5, False)
    for header in ("tomorrow", "nan", "-1", "inf"):
        assert (await failure(says(refused, 429, **{"retry-after": header}))).retry_after is None


async def test_connection_failure_and_timeout_are_errors() -> None:
    """Connection failures and timeouts are errors without a status. Only a timeout is marked as a timeout."""

    def down(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    def slow(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadTimeout("slow")

    assert ((await failure(down)).status, (await failure(down)).timed_out) == (None, False)
    assert ((await failure(slow)).status, (await failure(slow)).timed_out) == (None, True)


@pytest.mark.parametrize(
    ("api", "handler"),
    [
        ("chat", streams(*PIECES[:3], done=False)),
        ("responses", streams(EVENTS[0], done=False)),
        ("chat", streams(*PIECES[:3], {"error": {"message": "Out of memory.", "type": "server_error"}})),
        (
            "responses",
            streams(EVENTS[0], {"type": "error", "code": "x", "message": "Out.", "param": None, "sequence_number": 1}),
        ),
        (
            "responses",
            streams(
                {
                    "type": "response.failed",
                    "sequence_number": 1,
                    "response": response("failed", error={"code": "server_error", "message": "Out."}),
                }
            ),
        ),
    ],
)
async def test_stream_that_breaks_off_is_an_error(api: Api, handler: Handler) -> None:
    """If a stream ends with an error event or without its terminator, an error is raised instead of returning an
    answer.
    """
    await failure(handler, api, stream=True)


@each("api", ["chat", "responses"])
@each("content", ["<html>", "{", "[]", "{}", "null", '{"choices": [{}]}', '{"choices": 5}'])
async def test_unexpected_response_is_a_provider_error(api: Api, content: str) -> None:
    """If a server returns HTML or unexpected JSON, the client raises a ProviderError."""
    for kind in ("text/html", "application/json"):
        for stream in (False, True):
            headers = {"content-type": kind}
            await failure(lambda request: httpx2.Response(200, text=content, headers=headers), api, stream=stream)  # noqa: B023


async def test_truncated_answer_is_marked() -> None:
    """The finish reason of a truncated answer is "length" with both APIs."""
    cut = completion(content="Hi")
    cut["choices"][0]["finish_reason"] = "length"
    assert (await send_by(says(cut))(REQUEST)).finish == "length"
    incomplete = response("incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert (await send_by(says(incomplete), "responses")(REQUEST)).finish == "length"


async def test_arguments_sent_as_an_object_are_encoded() -> None:
    """If a server sends arguments as an object instead of a string, they are encoded as JSON."""
    call = {"id": "1", "type": "function", "function": {"name": "echo", "arguments": {"a": 1}}}
    answer = await send_by(says(completion(content=None, tool_calls=[call])))(REQUEST)
    assert answer.calls == (Call("1", "echo", '{"a": 1}'),)


@pytest.mark.parametrize(
    ("api", "expected"),
    [
        ("chat", {"type": "function", "function": {"name": "echo"}}),
        ("responses", {"type": "function", "name": "echo"}),
    ],
)
async def test_choice_of_a_single_tool(api: Api, expected: dict[str, Any]) -> None:
    """A tool choice that names a single tool is sent in the API's format."""
    asked: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(json.loads(request.content)["tool_choice"])
        return httpx2.Response(500, json={})

    with pytest.raises(ProviderError):
        await send_by(answer, api)(Request(MESSAGES, (TOOL,), "echo"))
    assert asked == [expected]
