"""Tool loops of client libraries that send only new items. In each loop, the second question depends on the first."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, RunConfig, Runner
from agents.items import ModelResponse
from clients.cases import MODEL, PARIS, TOOLS, Outcome, call, run_tool
from clients.test_openai_agents import tools

QUESTIONS = ("Weather in Paris?", "And now?")
MODEL_TEXTS = (f"I look.\n{call('get_weather', PARIS)}", "Clear.", call("get_weather", PARIS), "Yes.")
"""The model's text for each turn."""

LLAMA_INDEX = Path(sys.prefix) / ".llama-index" / "bin" / "python"

Loop = Callable[[str, bool], Awaitable[list[Outcome]]]
"""A function that asks both questions. Its arguments are the base URL, and whether the answers are streamed."""


def check(outcomes: list[Outcome], shown: str) -> None:
    """Check each question's calls and final text, and that ``shown`` contains the conversation once, in order."""
    assert [(outcome.text, outcome.calls) for outcome in outcomes] == [
        (text, [("get_weather", {"city": "Paris"})]) for text in ("Clear.", "Yes.")
    ]
    assert len({id for outcome in outcomes for id in outcome.ids}) == 2
    words = ["Weather in Paris?", "I look.", "The sky over Paris", "Clear.", "And now?"]
    assert [shown.count(text) for text in words] == [1, 1, 2, 1, 1], shown
    places = [shown.index(text) for text in words]
    assert places == sorted(places)


def run(outcome: Outcome, name: str, arguments: dict[str, Any], call_id: str) -> str:
    outcome.calls.append((name, arguments))
    outcome.ids.append(call_id)
    return run_tool(name, arguments)


async def _agents(base_url: str, streamed: bool, **how: Any) -> list[Outcome]:
    outcomes = []
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60) as client:
        agent = Agent[Any](name="Tester", tools=list(tools(False)), model=OpenAIResponsesModel(MODEL, client))
        options: dict[str, Any] = {"run_config": RunConfig(tracing_disabled=True), **how}
        if "conversation_id" in how:
            options["conversation_id"] = (await client.conversations.create()).id
        if "session" in how:
            options["session"] = OpenAIConversationsSession(openai_client=client)
        for question in QUESTIONS:
            outcome = Outcome()
            outcomes.append(outcome)
            if streamed:
                result: Any = Runner.run_streamed(agent, question, context=outcome, **options)
                async for _ in result.stream_events():
                    pass
            else:
                result = await Runner.run(agent, question, context=outcome, **options)
            outcome.text = result.final_output
            if "auto_previous_response_id" in options:
                last: ModelResponse = result.raw_responses[-1]
                options["previous_response_id"] = last.response_id
    return outcomes


async def agents_previous(base_url: str, streamed: bool) -> list[Outcome]:
    return await _agents(base_url, streamed, auto_previous_response_id=True)


async def agents_conversation(base_url: str, streamed: bool) -> list[Outcome]:
    return await _agents(base_url, streamed, conversation_id="")


async def agents_session(base_url: str, streamed: bool) -> list[Outcome]:
    return await _agents(base_url, streamed, session=None)


async def openai_sdk(base_url: str, streamed: bool) -> list[Outcome]:
    """Run the loop with the OpenAI SDK. Also retrieve and delete the last response, and list its input items."""
    declared: Any = [{"type": "function", **tool} for tool in TOOLS]
    outcomes, previous = [], openai.omit
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60) as client:
        for question in QUESTIONS:
            outcome = Outcome()
            outcomes.append(outcome)
            new: Any = question
            while new:
                sent: dict[str, Any] = {"model": MODEL, "input": new, "tools": declared}
                sent["previous_response_id"] = previous
                if streamed:
                    async with client.responses.stream(**sent) as stream:
                        answer: Any = await stream.get_final_response()
                else:
                    answer = await client.responses.create(**sent)
                calls = [item for item in answer.output if item.type == "function_call"]
                outputs = [
                    (call.call_id, run(outcome, call.name, json.loads(call.arguments), call.call_id)) for call in calls
                ]
                new = [{"type": "function_call_output", "call_id": id, "output": text} for id, text in outputs]
                previous = answer.id
            outcome.text = answer.output_text
        assert (await client.responses.retrieve(answer.id)).output_text == outcome.text
        listed: Any = await client.responses.input_items.list(answer.id)
        assert [item.type for item in listed.data] == ["function_call_output"]
        await client.responses.delete(answer.id)
        try:
            await client.responses.retrieve(answer.id)
        except openai.NotFoundError:
            return outcomes
    raise AssertionError("a deleted answer is still there")


async def langchain(base_url: str, streamed: bool) -> list[Outcome]:
    """Run the loop with LangChain. With ``use_previous_response_id``, LangChain sends only new messages."""
    import httpx2
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    # Do not use the default client, because all models in this process would share it, and it would never be closed.
    http = httpx2.AsyncClient(trust_env=False)
    options: dict[str, Any] = {"base_url": base_url, "api_key": "none", "max_retries": 0, "timeout": 60}
    options["http_async_client"] = http
    chat = ChatOpenAI(model=MODEL, use_responses_api=True, use_previous_response_id=True, **options)
    model = chat.bind_tools([{"type": "function", "function": tool} for tool in TOOLS])
    outcomes: list[Outcome] = []
    messages: list[Any] = []
    for question in QUESTIONS:
        outcome = Outcome()
        outcomes.append(outcome)
        messages.append(HumanMessage(question))
        while True:
            if streamed:
                answer: Any = None
                async for chunk in model.astream(messages):
                    answer = chunk if answer is None else answer + chunk
            else:
                answer = await model.ainvoke(messages)
            messages.append(answer)
            if not answer.tool_calls:
                break
            for made in answer.tool_calls:
                output = run(outcome, made["name"], made["args"], made["id"])
                messages.append(ToolMessage(output, tool_call_id=made["id"]))
        outcome.text = answer.text
    await http.aclose()
    return outcomes


async def llama_index(base_url: str, streamed: bool) -> list[Outcome]:
    asked = {"base_url": base_url, "model": "gpt-4o", "streamed": streamed, "questions": QUESTIONS}
    command = [str(LLAMA_INDEX), str(Path(__file__).with_name("llama_index_loop.py")), json.dumps(asked)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = [Outcome(**fields) for fields in json.loads(done.stdout)]
    for outcome in outcomes:
        outcome.calls = [(name, arguments) for name, arguments in outcome.calls]
    return outcomes


def needed(name: str) -> None:
    """Skip the test if the library of this loop is not installed."""
    if name == "LangChain":
        pytest.importorskip("langchain_openai", reason="needs langchain: run `make setup`")
    if name == "LlamaIndex" and not LLAMA_INDEX.exists():
        pytest.skip("needs llama-index: run `make test-clients`")


LOOPS: dict[str, Loop] = {
    "Agents SDK, previous_response_id": agents_previous,
    "Agents SDK, conversation": agents_conversation,
    "Agents SDK, session": agents_session,
    "OpenAI SDK": openai_sdk,
    "LangChain": langchain,
    "LlamaIndex": llama_index,
}
