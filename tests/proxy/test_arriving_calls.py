"""Calls that a backend emits itself, told by a real mitmdump while they arrive, to the OpenAI SDK."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from proxy.conftest import WEATHER
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend
from support.wire import DONE, event_frame, frame

CITY = "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch"
ARGUMENTS = json.dumps({"city": CITY})
PIECES = [ARGUMENTS[at : at + 9] for at in range(0, len(ARGUMENTS), 9)]


@pytest.fixture(scope="module", params=["chat", "responses"])
def proxy(request: pytest.FixtureRequest, backend: RawBackend) -> Iterator[Mitmdump]:
    options = {"toolsim_backend": request.param, "toolsim_stream_arguments": "incremental"}
    with Mitmdump(backend.url, **options) as proxy:
        yield proxy


def frames_of_call() -> dict[str, tuple[list[bytes], list[bytes], list[bytes]]]:
    """Return for each dialect how a call begins, its pieces, and how it and the answer end."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return frame({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def fragment(**fields: Any) -> bytes:
        return chunk({"tool_calls": [{"index": 0, **fields}]})

    head = fragment(id="c0", type="function", function={"name": "get_weather", "arguments": ""})
    chat = [head], [fragment(function={"arguments": piece}) for piece in PIECES], [chunk({}, "tool_calls"), DONE]

    at = {"output_index": 0, "item_id": "fc_0"}
    item = {"type": "function_call", "id": "fc_0", "call_id": "c0", "name": "get_weather"}
    whole = {**item, "arguments": ARGUMENTS, "status": "completed"}
    begun = {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}}
    deltas = [{"type": "response.function_call_arguments.delta", **at, "delta": piece} for piece in PIECES]
    response = {"id": "resp_b", "status": "completed", "output": [whole]}
    over = [
        {"type": "response.output_item.done", "output_index": 0, "item": whole},
        {"type": "response.completed", "response": response},
    ]
    responses = [event_frame(begun)], [*map(event_frame, deltas)], [*map(event_frame, over)]
    return {"chat": chat, "responses": responses}


def heard(client: openai.OpenAI, api: str) -> Iterator[str]:
    """Yield the pieces of arguments that an SDK's client hears of."""
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
def test_pieces_arrive_while_the_backend_waits(api: str, proxy: Mitmdump, backend: RawBackend) -> None:
    """The backend ends its call only when the client has heard half of it, and the client hears the call."""
    is_heard = threading.Event()

    async def waits(answer: Answer) -> None:
        chat = "chat" in answer.asked.path
        begin, pieces, end = frames_of_call()["chat" if chat else "responses"]
        half = len(pieces) // 2
        await answer.head(Content_Type="text/event-stream")
        for piece in [*begin, *pieces[:half]]:
            await answer.send(piece)
        if not await asyncio.to_thread(is_heard.wait, 10):
            answer.hang_up()
            return
        for piece in [*pieces[half:], *end]:
            await answer.send(piece)
        await answer.end()

    backend.play(waits)
    text = ""
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        for piece in heard(client, api):
            text += piece
            if len(text) > len(ARGUMENTS) // 3:
                is_heard.set()
    assert text == ARGUMENTS
