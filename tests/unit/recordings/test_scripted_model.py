"""Tests for the scripted model of the pytest plugin, with a real proxy and with real clients for all three APIs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from support.recording import TOOL
from toolsim.recordings.child import Child, in_front_of
from toolsim.recordings.scripted_model import ModelServer, ScriptedModel

pytestmark = pytest.mark.slow

QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Bonn?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    server = ModelServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def port(server: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    settings = [f"toolsim_upstream={server.url}", "toolsim_backend=chat", "toolsim_engine=unknown"]
    child = Child(in_front_of(server.url), settings, tmp_path_factory.mktemp("proxies") / "proxy")
    yield child.port
    child.stop()


@pytest.fixture
def model(server: ModelServer, port: int) -> ScriptedModel:
    server.current = ScriptedModel(lambda settings: port)
    return server.current


@pytest.fixture
def client(model: ScriptedModel) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=model.base_url, api_key="any", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, messages: list[Any] = QUESTION) -> Any:
    return client.chat.completions.create(model="m", messages=messages, tools=[TOOL]).choices[0].message  # type: ignore[list-item]


def test_scripted_answers_are_used_in_order(model: ScriptedModel, client: openai.OpenAI) -> None:
    """Scripted answers are used in order. The model records the questions, tools and tool outputs that it receives."""
    model.call("get_weather", city="Bonn")
    model.answer("It is 18 degrees.")
    assert model.remaining == 2
    message = chat(client)
    [call] = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Bonn"}
    output = {"role": "tool", "tool_call_id": call.id, "content": "18 celsius"}
    assert chat(client, [*QUESTION, message.model_dump(exclude_none=True), output]).content == "It is 18 degrees."
    first, second = model.asked
    assert (first.question, first.outputs, first.tools) == ("What is the weather in Bonn?", (), ("get_weather",))
    assert second.outputs == ("18 celsius",)
    model.assert_asked("bonn", times=1)
    model.assert_asked("celsius")
    with pytest.raises(
        AssertionError, match=r"the model was asked 'Paris' 0 times, expected at least once; .*\n.*Bonn"
    ):
        model.assert_asked("Paris")
    assert model.remaining == 0


def test_pattern_answers_matching_requests(model: ScriptedModel, client: openai.OpenAI) -> None:
    """An answer with a pattern is used for all matching requests. If several patterns match, the latest one applies."""
    model.answer("Rainy.", when="weather")
    model.answer("Sunny.", when="weather in (Bonn|Paris)")
    model.answer("Who knows?")
    for words, answer in (("weather in Bonn", "Sunny."), ("weather", "Rainy."), ("time", "Who knows?")):
        assert chat(client, [{"role": "user", "content": words}]).content == answer
    assert chat(client).content == "Sunny."


@pytest.mark.parametrize("stream", [False, True])
def test_every_api_receives_the_calls(model: ScriptedModel, client: openai.OpenAI, stream: bool) -> None:
    """Clients of the Responses API and of the Messages API receive the same scripted calls."""
    model.answer(("get_weather", {"city": "Bonn"}), ("get_weather", {"city": "Paris"}), when="weather")
    function: dict[str, Any] = TOOL["function"]  # type: ignore[assignment]
    flat: Any = {"type": "function", "name": "get_weather", "parameters": function["parameters"]}
    asked: Any = {"model": "m", "input": QUESTION, "tools": [flat]}
    if stream:
        with client.responses.stream(**asked) as events:
            response = events.get_final_response()
    else:
        response = client.responses.create(**asked)
    assert [json.loads(item.arguments)["city"] for item in response.output if item.type == "function_call"] == [
        "Bonn",
        "Paris",
    ]
    own: Any = {"name": "get_weather", "input_schema": function["parameters"]}
    with anthropic.Anthropic(base_url=model.base_url.removesuffix("/v1"), api_key="any", max_retries=0) as other:
        asked = {"model": "m", "max_tokens": 100, "messages": QUESTION, "tools": [own]}
        if stream:
            with other.messages.stream(**asked) as streamed:
                answer = streamed.get_final_message()
        else:
            answer = other.messages.create(**asked)
    assert [block.input for block in answer.content if block.type == "tool_use"] == [
        {"city": "Bonn"},
        {"city": "Paris"},
    ]


def test_next_error_fails_one_request(model: ScriptedModel, client: openai.OpenAI) -> None:
    """``next_error`` makes one request fail with the given status and Retry-After. The next request is answered from
    the script again.
    """
    model.answer("Hello.")
    model.next_error(429, "Slow down.", retry_after=7)
    with pytest.raises(openai.RateLimitError, match="Slow down") as raised:
        chat(client)
    assert raised.value.response.headers["retry-after"] == "7"
    assert chat(client).content == "Hello."
    model.next_error(500)
    with pytest.raises(openai.InternalServerError):
        chat(client)


def test_cut_disconnects_the_client(model: ScriptedModel, client: openai.OpenAI) -> None:
    """``cut`` closes the connection after the given number of events. The client then raises an error."""
    model.answer("abcdefghijklmnopqrstuvwxyz", cut=2)
    stream = client.chat.completions.create(model="m", messages=QUESTION, tools=[TOOL], stream=True)  # type: ignore[list-item]
    got: list[str] = []

    def read() -> None:
        for chunk in stream:
            got.extend(choice.delta.content or "" for choice in chunk.choices)

    with pytest.raises(openai.APIError):
        read()
    assert "".join(got) == "abcdefghijklmn"
    model.answer("abcdefghijklmnopqrstuvwxyz", cut=2)
    with pytest.raises(openai.APIError):
        chat(client)


async def test_answers_can_be_delayed(model: ScriptedModel) -> None:
    """An answer can be delayed, and it can contain pauses. It does not delay concurrent requests."""
    model.answer("abcdefghijklmnopqrstu", delay=0.5, pause=0.3, when="weather")
    async with openai.AsyncOpenAI(base_url=model.base_url, api_key="any", max_retries=0) as client:

        async def times() -> list[float]:
            began = time.monotonic()
            stream = await client.chat.completions.create(model="m", messages=QUESTION, stream=True)
            return [
                time.monotonic() - began async for chunk in stream if chunk.choices and chunk.choices[0].delta.content
            ]

        began = time.monotonic()
        one, other = await asyncio.gather(times(), times())
        both = time.monotonic() - began
    for found in (one, other):
        assert len(found) == 3
        assert found[0] >= 0.5
        assert found[2] - found[0] >= 0.5
    assert both < one[-1] + other[-1]


def test_missing_answer_fails_the_test(model: ScriptedModel) -> None:
    """If the script has no answer for a request, the request is refused, and the test fails for that reason, even if
    the client ignores the error.
    """
    answer = httpx.post(f"{model.base_url}/chat/completions", json={"model": "m", "messages": QUESTION}, timeout=30)
    assert answer.status_code == 404
    assert "the test defines no answer" in answer.json()["error"]["message"]
    assert model.unmatched == [
        "toolsim_model: the test defines no answer for this request: 'What is the weather in Bonn?'"
    ]


def test_options_must_be_set_before_the_start() -> None:
    """Once the proxy has started, ``set_option`` raises an exception."""
    given: list[Any] = []
    model = ScriptedModel(lambda settings: given.extend(settings) or 1)  # type: ignore[func-returns-value]
    model.set_option("manifest", "schemas")
    assert model.base_url == "http://127.0.0.1:1/v1"
    assert given == ["toolsim_manifest=schemas"]
    with pytest.raises(RuntimeError, match="before reading base_url"):
        model.set_option("manifest", "hermes")
    assert Path(model.base_url).name == "v1"
