"""openai-python: ``create``, ``stream=True`` and the ``.stream()`` helpers for both APIs."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import openai
import pytest
from clients.cases import (
    MODEL,
    ONE_CALL,
    PARIS,
    TOOLS,
    Case,
    Outcome,
    Stage,
    both_apis,
    call,
    every_case,
    over_its_own_api,
    over_responses,
    over_the_other_api,
    run_tool,
    transcript,
)
from support.text_backend import Exchange, Turn, says, until_output

Json = dict[str, Any]
every_mode = pytest.mark.parametrize("mode", ["create", "stream", "helper"])


def connect(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=10)


def responses_tools(strict: bool) -> list[Any]:
    return [{"type": "function", "strict": strict, **tool} for tool in TOOLS]


def responses_turn(client: openai.OpenAI, mode: str, items: list[Any], strict: bool) -> Any:
    """Send one request; return the complete response object."""
    request: Json = {"model": MODEL, "input": items, "tools": responses_tools(strict)}
    match mode:
        case "create":
            return client.responses.create(**request)
        case "helper":
            with client.responses.stream(**request) as helper:
                return helper.get_final_response()
    arguments: dict[str, str] = {}
    response = None
    with client.responses.create(**request, stream=True) as stream:
        for event in stream:
            match event.type:
                case "response.function_call_arguments.delta":
                    arguments[event.item_id] = arguments.get(event.item_id, "") + event.delta
                case "response.output_item.done" if event.item.type == "function_call":
                    assert arguments[str(event.item.id)] == event.item.arguments
                case "response.completed":
                    response = event.response
    assert response is not None, "no response.completed, and no error"
    return response


def responses_loop(client: openai.OpenAI, mode: str, prompt: str, strict: bool) -> Outcome:
    outcome, items = Outcome(), [{"role": "user", "content": prompt}]
    while True:
        response = responses_turn(client, mode, items, strict)
        assert response.status == "completed"
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            outcome.text = response.output_text
            return outcome
        items += [item.to_dict() for item in response.output]
        for made in calls:
            answer = note(outcome, made.call_id, made.name, made.arguments)
            items.append({"type": "function_call_output", "call_id": made.call_id, "output": answer})


def chat_tools(strict: bool) -> list[Any]:
    return [{"type": "function", "function": {"strict": strict, **tool}} for tool in TOOLS]


def chat_turn(client: openai.OpenAI, mode: str, messages: list[Any], strict: bool) -> tuple[str, Json]:
    """Send one request; return the finish reason and the assistant's message."""
    # The SDK's stream helper only accepts strict tools.
    request: Json = {"model": MODEL, "messages": messages, "tools": chat_tools(strict or mode == "helper")}
    match mode:
        case "create":
            answer = client.chat.completions.create(**request).choices[0]
            return answer.finish_reason, answer.message.to_dict()
        case "helper":
            with client.chat.completions.stream(**request) as helper:
                parsed = helper.get_final_completion().choices[0]
            calls = [
                {
                    "id": call.id,
                    "type": call.type,
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in parsed.message.tool_calls or []
            ]
            return parsed.finish_reason, assistant(parsed.message.content or "", calls)
    text, reason, built = "", None, list[Json]()
    with client.chat.completions.create(**request, stream=True) as stream:
        for chunk in stream:
            (choice,) = chunk.choices
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or []:
                if piece.id is not None:
                    assert piece.index == len(built)
                    built.append(
                        {"id": piece.id, "type": piece.type, "function": {"name": piece.function.name, "arguments": ""}}
                    )
                built[piece.index]["function"]["arguments"] += piece.function.arguments or ""
            reason = choice.finish_reason or reason
    assert reason is not None, "no finish reason, and no error"
    return reason, assistant(text, built)


def assistant(text: str, calls: list[Json]) -> Json:
    return {"role": "assistant", "content": text or None} | ({"tool_calls": calls} if calls else {})


def chat_loop(client: openai.OpenAI, mode: str, prompt: str, strict: bool) -> Outcome:
    outcome, messages = Outcome(), list[Any]([{"role": "user", "content": prompt}])
    while True:
        reason, message = chat_turn(client, mode, messages, strict)
        calls = message.get("tool_calls") or []
        assert reason == ("tool_calls" if calls else "stop")
        if not calls:
            outcome.text = message["content"]
            return outcome
        messages.append(message)
        for made in calls:
            answer = note(outcome, made["id"], made["function"]["name"], made["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": answer})


def note(outcome: Outcome, call_id: str, name: str, arguments: str) -> str:
    outcome.calls.append((name, json.loads(arguments)))
    outcome.ids.append(call_id)
    return run_tool(*outcome.calls[-1])


LOOPS: dict[str, Callable[[openai.OpenAI, str, str, bool], Outcome]] = {"responses": responses_loop, "chat": chat_loop}


def run(client: openai.OpenAI, api: str, mode: str, prompt: str, strict: bool = False) -> Outcome:
    try:
        return LOOPS[api](client, mode, prompt, strict)
    except openai.OpenAIError as error:
        return Outcome(error=str(error))


@every_case
@over_the_other_api
@pytest.mark.parametrize("mode", ["create", "stream"])
def test_tool_loop_over_the_other_api(stage: Stage, api: str, mode: str, case: Case) -> None:
    """The client completes the tool loop, streamed or not, if the backend uses a different API than the client."""
    with connect(stage.base_url) as client:
        stage.run_case(case, lambda prompt: run(client, api, mode, prompt, case.strict))


@every_case
@every_mode
@over_its_own_api
def test_tool_loop(stage: Stage, api: str, mode: str, case: Case) -> None:
    """Through the proxy, the client completes the tool loop in each case."""
    if (api, mode, case.calls) == ("chat", "helper", ()):
        pytest.skip("the chat helper takes strict tools only; beside them a call to an unknown tool is an error")
    with connect(stage.base_url) as client:
        stage.run_case(case, lambda prompt: run(client, api, mode, prompt, case.strict))


def websocket_loop(client: openai.OpenAI, prompt: str, strict: bool) -> Outcome:
    """Run a tool loop over one WebSocket connection. The connection, not a store, remembers the conversation."""
    outcome, items, previous = Outcome(), list[Any]([{"role": "user", "content": prompt}]), Json()
    with client.responses.connect() as connection:
        while True:
            request: Json = {"model": MODEL, "input": items, "tools": responses_tools(strict), "store": False}
            connection.response.create(**request, **previous)
            event: Any = next(event for event in connection if event.type in ENDS)
            if event.type != "response.completed":
                error = event.error if event.type == "error" else event.response.error
                return Outcome(error=error.message)
            calls = [item for item in event.response.output if item.type == "function_call"]
            if not calls:
                outcome.text = event.response.output_text
                return outcome
            answers = [(made.call_id, note(outcome, made.call_id, made.name, made.arguments)) for made in calls]
            items = [{"type": "function_call_output", "call_id": id, "output": answer} for id, answer in answers]
            previous = {"previous_response_id": event.response.id}


ENDS = ("response.completed", "response.failed", "response.incomplete", "error")


@every_case
@over_responses
def test_tool_loop_over_a_websocket(stage: Stage, case: Case) -> None:
    """The client completes the tool loop over the SDK's WebSocket connection, on which it sends only new items."""
    with connect(stage.base_url) as client:
        stage.run_case(case, lambda prompt: websocket_loop(client, prompt, case.strict))


@every_mode
def test_custom_tool(stage: Stage, mode: str) -> None:
    """A custom tool's input arrives unchanged, as an item of the custom tool type or in the events for that type."""
    patch = '*** Begin Patch\n+"è" 🌞\n*** End Patch'
    stage.backend.play([says(call("apply_patch", {"input": patch}))], chunk_size=3)
    request: Json = {"model": MODEL, "input": "Patch it.", "tools": [{"type": "custom", "name": "apply_patch"}]}
    built = ""
    with connect(stage.base_url) as client:
        match mode:
            case "create":
                response: Any = client.responses.create(**request)
            case "helper":
                with client.responses.stream(**request) as helper:
                    response = helper.get_final_response()
            case _:
                with client.responses.create(**request, stream=True) as stream:
                    for event in stream:
                        if event.type == "response.custom_tool_call_input.delta":
                            built += event.delta
                        elif event.type == "response.completed":
                            response = event.response
    (item,) = response.output
    assert (item.type, item.name, item.input) == ("custom_tool_call", "apply_patch", patch)
    assert built == (patch if mode == "stream" else "")


def test_custom_tool_in_chat(stage: Stage) -> None:
    """In chat, a non-streamed answer can contain custom tool calls."""
    stage.backend.play([says(call("apply_patch", {"input": "+è"}))])
    with connect(stage.base_url) as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Patch it."}],
            tools=[{"type": "custom", "custom": {"name": "apply_patch"}}],
        )
    (made,) = answer.choices[0].message.tool_calls or []
    assert made.type == "custom"
    assert (made.custom.name, made.custom.input) == ("apply_patch", "+è")


async def test_concurrent_conversations_stay_separate(stage: Stage) -> None:
    """In concurrent conversations over both APIs, each client receives only its own calls and text."""

    def rule(exchange: Exchange) -> Turn:
        city = re.findall(r"City-\d+", transcript(exchange))[-1]
        return until_output(says(call("get_weather", {"city": city})), says(f"Clear in {city}."))(exchange)

    def converse(number: int) -> Outcome:
        api, mode = ("responses", "chat")[number % 2], ("create", "stream", "helper")[number % 3]
        with connect(stage.base_url) as client:
            return run(client, api, mode, f"What is the weather in City-{number}?")

    stage.backend.play(rule, chunk_size=2)
    outcomes = await asyncio.gather(*(asyncio.to_thread(converse, number) for number in range(12)))
    for number, outcome in enumerate(outcomes):
        assert outcome.error is None
        assert outcome.calls == [("get_weather", {"city": f"City-{number}"})]
        assert outcome.text == f"Clear in City-{number}."


@both_apis
def test_text_streams_and_disconnect_is_passed_on(stage: Stage, api: str) -> None:
    """Text reaches the client while the backend is still writing.

    If the client disconnects, the proxy disconnects from the backend.
    """
    stage.backend.play([says("Once upon a time", ending="hang")])
    with connect(stage.base_url) as client:
        with open_stream(client, api) as stream:
            assert next(text for event in stream if (text := words(event)))
            assert not stage.backend.exchanges[0].over.is_set()
        assert stage.backend.exchanges[0].over.wait(10)


def test_chat_stream_ends_after_its_calls(stage: Stage) -> None:
    """A chat stream ends at the first text after its calls, and the proxy disconnects from the backend."""
    rhyme = ["a rhyme, "] * 2000
    stage.backend.play([says(call("get_weather", PARIS), " While it runs: ", *rhyme, pause=0.005), says("Clear.")])
    with connect(stage.base_url) as client:
        outcome = run(client, "chat", "stream", "What is the weather?")
    assert (outcome.calls, outcome.text) == ([("get_weather", PARIS)], "Clear.")
    cut = stage.backend.exchanges[0]
    assert cut.over.wait(10)
    assert not cut.whole
    assert len(cut.sent) < 100


def open_stream(client: openai.OpenAI, api: str) -> openai.Stream[Any]:
    if api == "responses":
        return client.responses.create(model=MODEL, input="Tell.", tools=responses_tools(False), stream=True)
    messages: list[Any] = [{"role": "user", "content": "Tell."}]
    return client.chat.completions.create(model=MODEL, messages=messages, tools=chat_tools(False), stream=True)


def words(event: Any) -> Any:
    """Return the text of a stream event from either API, or None if the event has no text."""
    if hasattr(event, "choices"):
        return event.choices[0].delta.content
    return event.delta if event.type == "response.output_text.delta" else None


@every_mode
@both_apis
def test_no_call_without_the_addon(bare_stage: Stage, api: str, mode: str) -> None:
    """Without the addon, the client makes no call, although the answer contains one. This proves that the loop tests
    can fail.
    """
    bare_stage.prepare(ONE_CALL)
    with connect(bare_stage.base_url) as client:
        outcome = run(client, api, mode, "What is the weather?")
    bare_stage.compare_control(outcome)
