"""pydantic-ai: its Responses, chat and Anthropic models, streamed and not streamed."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from clients.cases import (
    MODEL,
    ONE_CALL,
    TOOLS,
    TYPED,
    Case,
    Outcome,
    Sky,
    Stage,
    both_apis,
    every_case,
    over_chat,
    over_its_own_api,
    run_tool,
)
from pydantic_ai import Agent, AgentRunError, NativeOutput, RunContext, Tool
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

every_mode = pytest.mark.parametrize("mode", ["run", "stream"])
MODELS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatModel}
# pydantic-ai's Anthropic model omits ``strict`` if the model's name is unknown to it.
CLAUDE = "claude-sonnet-4-6"


def tool(declaration: dict[str, Any], strict: bool) -> Tool[Outcome]:
    # pydantic-ai would run a function that is not async in a separate thread per call, so calls would run in random
    # order.
    async def invoke(context: RunContext[Outcome], **arguments: Any) -> str:
        context.deps.calls.append((declaration["name"], arguments))
        context.deps.ids.append(str(context.tool_call_id))
        return run_tool(declaration["name"], arguments)

    made = Tool.from_schema(
        invoke,
        name=declaration["name"],
        description=declaration["description"],
        json_schema=declaration["parameters"],
        takes_ctx=True,
    )
    made.strict = strict
    return made


async def read(_: RunContext[Outcome], events: AsyncIterable[Any]) -> None:
    """Consume the events of a run, so that the run streams. ``run_stream`` would end at the first text instead."""
    async for _event in events:
        pass


@asynccontextmanager
async def connected(base_url: str, api: str) -> AsyncIterator[Model]:
    how: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 10}
    if api == "messages":
        async with anthropic.AsyncAnthropic(base_url=base_url.removesuffix("/v1"), **how) as claude:
            yield AnthropicModel(CLAUDE, provider=AnthropicProvider(anthropic_client=claude))
    else:
        async with openai.AsyncOpenAI(base_url=base_url, **how) as client:
            yield MODELS[api](MODEL, provider=OpenAIProvider(openai_client=client))


async def run(
    base_url: str, api: str, mode: str, prompts: list[str], strict: bool = False, output: Any = str
) -> list[Outcome]:
    outcomes = []
    async with connected(base_url, api) as model:
        made = [tool(declaration, strict) for declaration in TOOLS]
        agent = Agent(model, deps_type=Outcome, tools=made, output_type=output)
        for prompt in prompts:
            outcome = Outcome()
            outcomes.append(outcome)
            try:
                handler = read if mode == "stream" else None
                result = await agent.run(prompt, deps=outcome, event_stream_handler=handler)
                outcome.text = result.output.model_dump_json() if isinstance(result.output, Sky) else result.output
            except AgentRunError as error:
                outcome.error = str(error)
    return outcomes


@every_case
@every_mode
@over_its_own_api
async def test_tool_loop(stage: Stage, api: str, mode: str, case: Case) -> None:
    """Through the proxy, the client completes the tool loop in each case."""
    stage.prepare(case)
    stage.compare(case, await run(stage.base_url, api, mode, case.prompts, case.strict))


@every_case
@every_mode
@over_chat
async def test_tool_loop_over_messages(stage: Stage, mode: str, case: Case) -> None:
    """The client completes the tool loop over the Messages API."""
    stage.prepare(case)
    stage.compare(case, await run(stage.base_url, "messages", mode, case.prompts, case.strict))


@every_mode
@over_its_own_api
async def test_typed_answer_with_tools(stage: Stage, api: str, mode: str) -> None:
    """With a native output type, a call without its tag is still recognized as a call, and the final answer
    is parsed.
    """
    stage.prepare(TYPED)
    stage.compare(TYPED, await run(stage.base_url, api, mode, TYPED.prompts, output=NativeOutput(Sky)))


@every_mode
@both_apis
async def test_no_call_without_the_addon(bare_stage: Stage, api: str, mode: str) -> None:
    """Without the addon, the client makes no call, although the answer contains one. This proves that the loop tests
    can fail.
    """
    bare_stage.prepare(ONE_CALL)
    (outcome,) = await run(bare_stage.base_url, api, mode, ONE_CALL.prompts)
    bare_stage.compare_control(outcome)
