"""Tests for structured calls that are forwarded to the OpenAI SDK while they arrive from the backend."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from proxy.conftest import WEATHER
from support.emitted import Emitted, responses_body
from support.mcp_servers import OFFICIAL
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend
from support.wire import ApiName, ChatAnswer, ResponsesAnswer

CITY = "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch"
ARGUMENTS = json.dumps({"city": CITY})
PIECES = [ARGUMENTS[at : at + 9] for at in range(0, len(ARGUMENTS), 9)]


@pytest.fixture(scope="module", params=["chat", "responses"])
def proxy(request: pytest.FixtureRequest, backend: RawBackend) -> Iterator[Mitmdump]:
    options = {"toolsim_backend": request.param, "toolsim_stream_arguments": "incremental"}
    with Mitmdump(backend.url, **options) as proxy:
        yield proxy


def frames_of_call(api_name: ApiName) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return three lists of frames: the beginning of a call, its argument deltas, and the end of the call and the
    answer.
    """
    answer = ChatAnswer() if api_name == "chat" else ResponsesAnswer()
    begin = [*answer.begin(), *answer.begin_call("get_weather")]
    pieces = [frame for piece in PIECES for frame in answer.add_arguments(piece)]
    return begin, pieces, [*answer.end_call(), *answer.end("tool_calls" if api_name == "chat" else "stop")]


def argument_pieces(client: openai.OpenAI, api: str) -> Iterator[str]:
    """Yield the argument deltas that the OpenAI SDK receives."""
    if api == "chat":
        for chunk in client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hi"}],
            tools=[WEATHER],  # type: ignore[list-item]
            stream=True,
        ):
            for call in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
                yield (call.function and call.function.arguments) or ""
        return
    tool: Any = {"type": "function", **WEATHER["function"]}  # type: ignore[dict-item]
    for event in client.responses.create(model="m", input="hi", tools=[tool], stream=True):
        if event.type == "response.function_call_arguments.delta":
            yield event.delta


@pytest.mark.slow
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_call_streams_while_the_backend_waits(api: str, proxy: Mitmdump, backend: RawBackend) -> None:
    """The client receives the beginning of a call before the backend has sent the rest."""
    is_received = threading.Event()

    async def waits(answer: Answer) -> None:
        begin, pieces, end = frames_of_call("chat" if "chat" in answer.asked.path else "responses")
        half = len(pieces) // 2
        await answer.head(Content_Type="text/event-stream")
        for piece in [*begin, *pieces[:half]]:
            await answer.send(piece)
        if not await asyncio.to_thread(is_received.wait, 10):
            answer.hang_up()
            return
        for piece in [*pieces[half:], *end]:
            await answer.send(piece)
        await answer.end()

    backend.play(waits)
    text = ""
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        for piece in argument_pieces(client, api):
            text += piece
            if len(text) > len(ARGUMENTS) // 3:
                is_received.set()
    assert text == ARGUMENTS


@pytest.mark.slow
def test_mcp_call_runs_once_complete(backend: RawBackend, tmp_path: Path) -> None:
    """A malformed MCP call is repaired and runs when it is complete. In the same answer, a call to a client's tool is
    streamed.
    """
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"calc": OFFICIAL | {"require_approval": "never"}}}))
    steps = [Emitted("calc__add", '{"a":1,"b":2,}', 2), Emitted("get_weather", ARGUMENTS, 9)]

    async def emits(answer: Answer) -> None:
        await answer.whole(responses_body(steps, "stop"), Content_Type="text/event-stream")

    backend.play(emits)
    options = {"toolsim_backend": "responses", "toolsim_stream_arguments": "incremental"}
    tool: Any = {"type": "function", **WEATHER["function"]}  # type: ignore[dict-item]
    with (
        Mitmdump(backend.url, toolsim_mcp_config=str(tmp_path / "mcp.json"), **options) as proxy,
        openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0, timeout=60) as client,
        client.responses.stream(model="m", input="hi", tools=[tool]) as events,
    ):
        pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        output: Any = events.get_final_response().output
    assert len(pieces) > 3
    assert "".join(pieces) == ARGUMENTS
    assert [(item.type, item.name) for item in output[1:]] == [("mcp_call", "add"), ("function_call", "get_weather")]
    assert output[1].output == "3"
