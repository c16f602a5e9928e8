"""Tool loops of the OpenAI SDK through a real mitmdump, with the real Codex app-server and a stub model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from support.mitmdump import Mitmdump
from support.stub_model import Reply, StubModel, texts

TOOL = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
CITIES = ("Bonn", "Köln")


def block(city: str) -> str:
    arguments = json.dumps({"city": city}, ensure_ascii=False)
    return f"<tool_call>{json.dumps({'name': 'get_weather', 'arguments': arguments}, ensure_ascii=False)}</tool_call>"


def weather(body: dict[str, Any]) -> Reply:
    """Answer with a call for each city or, once the outputs are in the history, with text."""
    lines = [line for item in body["input"] for line in texts(item).splitlines()]
    outputs = [line for line in lines if line.startswith("[function_call_output ")]
    text = f"It rains {len(outputs)} times." if outputs else "Let me look.\n" + "\n".join(map(block, CITIES))
    return Reply([text[i : i + 7] for i in range(0, len(text), 7)])


@dataclass
class Stage:
    stub: StubModel
    client: openai.AsyncOpenAI


@pytest.fixture
async def loops(codex: str, tmp_path: Path) -> AsyncIterator[Stage]:
    stub = StubModel(weather)
    await stub.start()
    stub.write_config(tmp_path / "home")
    proxy = Mitmdump(
        toolsim_backend="codex",
        toolsim_codex_command=f"{codex} app-server",
        environment={"CODEX_HOME": str(tmp_path / "home")},
    )
    await asyncio.to_thread(proxy.__enter__)
    try:
        async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client:
            yield Stage(stub, client)
    finally:
        await asyncio.to_thread(proxy.__exit__, None, None, None)
        await stub.stop()


async def respond(client: openai.AsyncOpenAI, stream: bool, given: list[Any]) -> Any:
    tools: Any = [{"type": "function", **TOOL}]
    if not stream:
        return await client.responses.create(model="stub-1", input=given, tools=tools)
    async with client.responses.stream(model="stub-1", input=given, tools=tools) as events:
        return await events.get_final_response()


async def complete(client: openai.AsyncOpenAI, stream: bool, messages: list[Any]) -> Any:
    tools: Any = [{"type": "function", "function": TOOL}]
    if not stream:
        return await client.chat.completions.create(model="stub-1", messages=messages, tools=tools)
    options: Any = {"include_usage": True}
    # The SDK's stream helper only accepts strict tools, so only its accumulator is used, without its parsing.
    chunks = await client.chat.completions.create(
        model="stub-1", messages=messages, tools=tools, stream=True, stream_options=options
    )
    state: Any = ChatCompletionStreamState()
    async for chunk in chunks:
        state.handle_chunk(chunk)
    return state.get_final_completion()


def history(request: dict[str, Any]) -> list[tuple[str, str]]:
    return [(item["role"], texts(item)) for item in request["input"] if item["type"] == "message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_responses_loop(loops: Stage, stream: bool) -> None:
    """In a Responses loop, the client receives calls and usage, and the model receives the image and all roles."""
    question = [{"type": "input_text", "text": "Weather here?"}, {"type": "input_image", "image_url": PIXEL}]
    given: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
    first = await respond(loops.client, stream, given)
    calls = [item for item in first.output if item.type == "function_call"]
    assert first.output_text == "Let me look.\n"
    assert [json.loads(call.arguments) for call in calls] == [{"city": city} for city in CITIES]
    assert first.usage.total_tokens > 0
    given += [item.to_dict() for item in first.output]
    given += [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
    second = await respond(loops.client, stream, given)
    assert second.output_text == "It rains 2 times."
    asked, answered = loops.stub.requests
    assert PIXEL in json.dumps(asked)
    assert "# CLIENT TOOL CATALOG" in json.dumps(asked)
    roles = [role for role, _ in history(answered)]
    assert roles[-3:] == ["user", "assistant", "user"]
    assert roles[0] == "developer"
    assert [text.count("get_weather") for _, text in history(answered)[-2:]] == [2, 2]
    assert history(answered)[-1][1].count("[function_call_output ") == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_chat_loop(loops: Stage, stream: bool) -> None:
    """In a chat loop, the client receives calls and usage, and the model receives the image and the history's roles."""
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather here?"}, image]},
    ]
    first = await complete(loops.client, stream, messages)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.content == "Let me look.\n"
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"city": city} for city in CITIES]
    assert first.usage.total_tokens > 0
    calls = [call.to_dict() for call in message.tool_calls]
    messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls]
    second = await complete(loops.client, stream, messages)
    assert second.choices[0].message.content == "It rains 2 times."
    assert PIXEL in json.dumps(loops.stub.requests[0])
    assert [role for role, _ in history(loops.stub.requests[1])][-3:] == ["user", "assistant", "user"]


async def test_chat_stream_ends_after_its_call(loops: Stage) -> None:
    """A chat stream ends after its call, and the connection to the model's server is closed."""
    loops.stub.reply = lambda _: Reply([block("Bonn"), *(f" and {n}" for n in range(500))], delay=0.05)
    completion = await complete(loops.client, True, [{"role": "user", "content": "Weather?"}])
    assert completion.choices[0].finish_reason == "tool_calls"
    assert not completion.choices[0].message.content
    await asyncio.wait_for(loops.stub.someone_left.wait(), 10)
    assert loops.stub.written < 100
    loops.stub.reply = weather
    again = await complete(loops.client, False, [{"role": "user", "content": "Weather?"}])
    assert len(again.choices[0].message.tool_calls) == 2
