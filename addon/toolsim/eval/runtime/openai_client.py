"""Sends requests to a model with the ``openai`` package: chat completions and Responses, streamed and non-streamed.

Requests and answers of both APIs are converted from and to the types in ``turn``. Streams are read as applications do:
text and calls are assembled from the deltas (chat), or read from the terminal event (Responses). Create the client with
``max_retries=0`` to see every failure. Errors contain the value of ``Retry-After``.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import openai

from toolsim.eval.runtime.turn import Answer, Api, Call, Finish, Message, ProviderError, Request, Send

_FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


def sender(client: openai.AsyncOpenAI, model: str, *, api: Api = "chat", stream: bool = False) -> Send:
    """Return a Send that sends requests to ``model`` with ``client``. The Send raises ProviderError."""
    ask = _chat if api == "chat" else _responses

    async def send(request: Request) -> Answer:
        async with _provider_errors():
            return await ask(client, model, request, stream)

    return send


@asynccontextmanager
async def _provider_errors() -> AsyncIterator[None]:
    try:
        yield
    except openai.APITimeoutError as error:
        raise ProviderError("timed out waiting for an answer", timed_out=True) from error
    except openai.APIStatusError as error:
        raise ProviderError(
            error.message,
            status=error.status_code,
            code=error.code if isinstance(error.code, str) else "",
            retry_after=_seconds(error.response.headers.get("retry-after")),
        ) from error
    except openai.APIError as error:  # For example, the connection was lost, or the stream contained an error event.
        code = error.code if isinstance(error.code, str) else ""
        raise ProviderError(f"{type(error).__name__}: {error.message}", code=code) from error
    except (AttributeError, TypeError, ValueError) as error:
        # The package does not validate responses. A body in another format, such as HTML, causes one of these errors.
        raise ProviderError(f"the answer is not in the API's format: {error}") from error


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


async def _chat(client: openai.AsyncOpenAI, model: str, request: Request, stream: bool) -> Answer:
    tools = [
        {"type": "function", "function": tool.declaration() | ({"strict": True} if tool.strict else {})}
        for tool in request.tools
    ]
    body = _body(model, request, tools, lambda name: {"function": {"name": name}}) | {
        "messages": list(request.messages)
    }
    extra = dict(request.options)
    if not stream:
        completion = await client.chat.completions.create(**body, extra_body=extra)
        return _whole_chat(completion)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with await client.chat.completions.create(**body, extra_body=extra) as chunks:
        return await _streamed_chat(chunks)


def _body(
    model: str, request: Request, tools: list[dict[str, Any]], named: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """Return the fields that both APIs share. ``named`` converts the name of a required tool to the tool choice."""
    if not tools:
        return {"model": model}
    choice = request.tool_choice
    is_word = choice in ("auto", "required", "none")
    body = {"model": model, "tools": tools, "tool_choice": choice if is_word else {"type": "function", **named(choice)}}
    return body if request.parallel else body | {"parallel_tool_calls": False}


def _whole_chat(completion: Any) -> Answer:
    if not completion.choices:
        raise ProviderError("the answer has no choices")
    choice = completion.choices[0]
    calls = tuple(
        Call(call.id or "", call.function.name or "", _arguments(call.function.arguments))
        for call in choice.message.tool_calls or ()
        if call.type in ("function", None)
    )
    return Answer(choice.message.content or "", calls, _finish(choice.finish_reason), *_chat_usage(completion.usage))


def _arguments(value: object) -> str:
    """Return the arguments of a call as text. Some servers send an object instead of text."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


async def _streamed_chat(chunks: Any) -> Answer:
    text: list[str] = []
    calls: dict[int, dict[str, str]] = {}
    finish: Finish = "unknown"
    usage: tuple[int | None, int | None] = (None, None)
    async for chunk in chunks:
        if chunk.usage is not None:
            usage = _chat_usage(chunk.usage)
        for choice in chunk.choices[:1]:
            text.append(choice.delta.content or "")
            for delta in choice.delta.tool_calls or ():
                call = calls.setdefault(delta.index, {"id": "", "name": "", "arguments": ""})
                call["id"] = delta.id or call["id"]
                if delta.function is not None:
                    call["name"] += delta.function.name or ""
                    call["arguments"] += _arguments(delta.function.arguments)
            if choice.finish_reason:
                finish = _finish(choice.finish_reason)
    if finish == "unknown":
        raise ProviderError("the stream ended prematurely")
    return Answer("".join(text), tuple(Call(**calls[index]) for index in sorted(calls)), finish, *usage)


def _finish(reason: str | None) -> Finish:
    return _FINISHES.get(reason or "", "unknown")


def _chat_usage(usage: Any) -> tuple[int | None, int | None]:
    return (None, None) if usage is None else (usage.prompt_tokens, usage.completion_tokens)


async def _responses(client: openai.AsyncOpenAI, model: str, request: Request, stream: bool) -> Answer:
    # In the Responses API, unlike in chat completions, ``strict`` is on by default.
    tools = [{"type": "function", **tool.declaration(), "strict": tool.strict} for tool in request.tools]
    body = _body(model, request, tools, lambda name: {"name": name})
    body |= {"input": _input(request.messages), "store": False}
    extra = dict(request.options)
    if not stream:
        return _whole_response(await client.responses.create(**body, extra_body=extra))
    # The stream is closed after the final event. Otherwise, the connection would stay open until garbage collection.
    async with await client.responses.create(**body, stream=True, extra_body=extra) as events:
        async for event in events:
            if event.type in ("response.completed", "response.incomplete", "response.failed"):
                return _whole_response(event.response)
            if event.type == "error":
                raise ProviderError(event.message, code=event.code or "")
    raise ProviderError("the stream ended prematurely")


def _input(messages: Sequence[Message]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            call_id, output = message["tool_call_id"], message["content"]
            items.append({"type": "function_call_output", "call_id": call_id, "output": output})
            continue
        if message.get("content"):
            items.append({"role": message["role"], "content": message["content"]})
        for call in message.get("tool_calls") or ():
            function = call["function"]
            items.append({"type": "function_call", "call_id": call["id"], **function})
    return items


def _whole_response(response: Any) -> Answer:
    if response.error is not None:
        raise ProviderError(response.error.message, code=response.error.code or "")
    text, calls = [], []
    for item in response.output:
        if item.type == "message":
            text += [part.text for part in item.content if part.type == "output_text"]
        elif item.type == "function_call":
            calls.append(Call(item.call_id, item.name, item.arguments))
    finish: Finish = "tool_calls" if calls else "stop"
    if response.status == "incomplete":
        reason = response.incomplete_details.reason if response.incomplete_details else ""
        finish = "content_filter" if reason == "content_filter" else "length"
    usage = response.usage
    tokens = (None, None) if usage is None else (usage.input_tokens, usage.output_tokens)
    return Answer("".join(text), tuple(calls), finish, *tokens)
