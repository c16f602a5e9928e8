"""Functions that rewrite a backend's answer with toolsim, and read the result with the real client libraries."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx
import httpx2
import openai
from toolsim.core.plan import AnswerForm, Plan, Tool
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.response.rewrite import ResponseRewriter
from toolsim.wire.apis import APIS


def rewrite(plan: Plan, content_type: str, body: bytes, cut: int = 0) -> tuple[ResponseRewriter, list[bytes]]:
    """Return a rewriter and the chunks that it produces from a backend's body.

    ``cut``: the size of the chunks in which the body arrives; 0 means a single chunk.
    """
    rewriter = ResponseRewriter(plan, Report(), content_type=content_type)
    chunks: list[bytes] = []
    for start in range(0, len(body), cut or len(body) or 1):
        chunks += rewriter.feed(body[start : start + (cut or len(body))])
    chunks += rewriter.feed(b"")
    assert rewriter.feed(b"") == []
    assert all(chunks)
    return rewriter, chunks


def tool(name: str, strict: bool = False, **properties: str) -> Tool:
    """Return a function tool whose properties have these JSON types and are all required."""
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    return Tool(name, name, parameters=schema, strict=strict)


def plan(client: ApiName, backend: ApiName, stream: bool, tools: Sequence[Tool] = (), **fields: Any) -> Plan:
    """Return a plan. ``policy`` can be a dict with fields of ``Policy``."""
    policy = Policy(**fields.pop("policy", {}))
    echo = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "metadata": {}, "temperature": 1.0}
    form = AnswerForm(
        stream, "text-model", include_usage=True, echo=echo, legacy_functions=fields.pop("legacy_functions", False)
    )
    stops = policy.stop_after_tools
    return Plan(
        client,
        backend,
        form,
        tuple(tools),
        any_strict=any(tool.strict for tool in tools),
        stops_after_tools=stops == "on" or (stops == "auto" and not APIS[client].text_follows_calls),
        policy=policy,
        **fields,
    )


@dataclass
class Seen:
    """An answer as the client reads it: texts and calls in order, the finish reason, and the IDs of the calls."""

    items: list[list[Any]] = field(default_factory=list)
    finish: str = ""
    ids: list[str] = field(default_factory=list)
    usage: int | None = None
    error: str | None = None

    def add_text(self, text: str) -> None:
        if text:
            self.items.append(["text", text])


def deltas(chunks: Sequence[bytes]) -> str:
    """Return all text and arguments in the deltas of a client's stream."""
    texts = re.findall(
        r'(?:"delta"|"content"|"type":"text_delta","text"):("(?:[^"\\]|\\.)*")', b"".join(chunks).decode()
    )
    return "".join(map(json.loads, texts))


def _client(status: int, content_type: str, chunks: Sequence[bytes]) -> openai.OpenAI:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers={"content-type": content_type}, content=iter(chunks))

    transport = httpx.Client(transport=httpx.MockTransport(answer))
    return openai.OpenAI(api_key="k", base_url="http://backend.test/v1", max_retries=0, http_client=transport)


def read(api_name: ApiName, stream: bool, chunks: Sequence[bytes], status: int = 200) -> Seen:
    """Read a client's bytes with the real client library, whose accumulator also checks the order of the events."""
    kind = "text/event-stream" if stream else "application/json"
    if api_name == "messages":
        return _read_messages(status, kind, chunks)
    with _client(status, kind, chunks) as client:
        try:
            return _read_chat(client, stream) if api_name == "chat" else _read_responses(client, stream)
        except openai.APIError as error:
            return Seen(error=error.code or error.type)


def _read_messages(status: int, content_type: str, chunks: Sequence[bytes]) -> Seen:
    """Read an answer with Anthropic's SDK. In a stream, the arguments of a call are the exact text of its deltas."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers={"content-type": content_type}, content=iter(chunks))

    transport = httpx2.Client(transport=httpx2.MockTransport(answer))
    with anthropic.Anthropic(
        api_key="k", base_url="http://backend.test", max_retries=0, http_client=transport
    ) as client:
        asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
        arguments: dict[int, str] = {}
        try:
            if content_type == "application/json":
                message = client.messages.create(**asked)
            else:
                with client.messages.stream(**asked) as events:
                    for event in events:
                        if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                            arguments[event.index] = arguments.get(event.index, "") + event.delta.partial_json
                    message = events.get_final_message()
        except anthropic.APIError as error:
            body: Any = error.body
            return Seen(error=body["error"]["type"])
    counted = message.usage.input_tokens + message.usage.output_tokens
    seen = Seen(finish=str(message.stop_reason), usage=counted or None)
    for index, block in enumerate(message.content):
        if block.type == "text":
            seen.add_text(block.text)
        elif block.type == "tool_use":
            seen.items.append(
                [
                    "call",
                    block.name,
                    arguments.get(index) or json.dumps(block.input, ensure_ascii=False, separators=(",", ":")),
                ]
            )
            seen.ids.append(block.id)
    return seen


def _read_responses(client: openai.OpenAI, stream: bool) -> Seen:
    if stream:
        with client.responses.stream(model="m", input="x") as events:
            received = list(events)
        assert [event.sequence_number for event in received] == list(range(len(received)))
        # The SDK's helper returns a final response only for `response.completed`.
        ends = ("response.completed", "response.incomplete")
        (response,) = [event.response for event in received if event.type in ends]
    else:
        response = client.responses.create(model="m", input="x")
    assert response is not None
    seen = Seen(finish=str(response.status), usage=response.usage.total_tokens if response.usage else None)
    for item in response.output:
        if item.type == "message":
            seen.add_text("".join(part.text for part in item.content if part.type == "output_text"))
        elif item.type == "function_call":
            seen.items.append(["call", item.name, item.arguments])
            seen.ids.append(item.call_id)
        elif item.type == "custom_tool_call":
            seen.items.append(["call", item.name, item.input])
            seen.ids.append(item.call_id)
    return seen


def completion(stream: bool, chunks: Sequence[bytes]) -> Any:
    """Return the chat completion that the real client library creates from a client's bytes."""
    with _client(200, "text/event-stream" if stream else "application/json", chunks) as client:
        return _completion(client, stream)


def _completion(client: openai.OpenAI, stream: bool) -> Any:
    if not stream:
        return client.chat.completions.create(model="m", messages=[])
    with client.chat.completions.stream(model="m", messages=[]) as events:
        for _ in events:
            pass
        try:
            return events.get_final_completion()
        except openai.LengthFinishReasonError as error:
            return error.completion


def _read_chat(client: openai.OpenAI, stream: bool) -> Seen:
    completion = _completion(client, stream)
    choice = completion.choices[0]
    seen = Seen(finish=choice.finish_reason, usage=completion.usage.total_tokens if completion.usage else None)
    seen.add_text(choice.message.content or "")
    for call in choice.message.tool_calls or ():
        seen.items.append(["call", call.function.name, call.function.arguments])
        seen.ids.append(call.id)
    return seen
