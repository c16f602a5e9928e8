"""openai-agents: ``Runner.run`` and ``Runner.run_streamed``, with the library's Responses and chat models.

The library rejects a call ID that it has already seen in the conversation. The case with two tool turns covers this.
"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    AgentsException,
    FunctionTool,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    RunConfig,
    Runner,
)
from agents.models.openai_responses import ResponsesWebSocketError
from agents.tool_context import ToolContext
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

every_mode = pytest.mark.parametrize("mode", ["run", "run_streamed"])
MODELS = {
    "responses": OpenAIResponsesModel,
    "chat": OpenAIChatCompletionsModel,
    "websocket": OpenAIResponsesWSModel,
}


def tools(strict: bool) -> list[FunctionTool]:
    async def invoke(context: ToolContext[Outcome], arguments: str) -> str:
        context.context.calls.append((context.tool_name, json.loads(arguments)))
        context.context.ids.append(context.tool_call_id)
        return run_tool(*context.context.calls[-1])

    return [
        FunctionTool(tool["name"], tool["description"], tool["parameters"], invoke, strict_json_schema=strict)
        for tool in TOOLS
    ]


async def run(
    base_url: str, api: str, mode: str, prompts: list[str], strict: bool = False, output: type[Sky] | None = None
) -> list[Outcome]:
    outcomes = []
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=10) as client:
        model = MODELS[api](MODEL, client)
        agent = Agent[Any](name="Tester", tools=list(tools(strict)), model=model, output_type=output)
        for prompt in prompts:
            outcome = Outcome()
            outcomes.append(outcome)
            options: dict[str, Any] = {"context": outcome, "run_config": RunConfig(tracing_disabled=True)}
            try:
                if mode == "run":
                    result: Any = await Runner.run(agent, prompt, **options)
                else:
                    result = Runner.run_streamed(agent, prompt, **options)
                    async for _ in result.stream_events():
                        pass
                made = result.final_output
                outcome.text = made.model_dump_json() if isinstance(made, Sky) else made
            except (AgentsException, openai.OpenAIError, ResponsesWebSocketError) as error:
                outcome.error = str(error)
        await model.close()
    return outcomes


@every_case
@every_mode
@over_its_own_api
async def test_tool_loop(stage: Stage, api: str, mode: str, case: Case) -> None:
    """Through the proxy, the client completes the tool loop in each case."""
    stage.prepare(case)
    stage.compare(case, await run(stage.base_url, api, mode, case.prompts, case.strict))


@every_case
@over_chat
async def test_tool_loop_over_a_websocket(stage: Stage, case: Case) -> None:
    """The client completes the tool loop over the SDK's WebSocket connection."""
    stage.prepare(case)
    stage.compare(case, await run(stage.base_url, "websocket", "run_streamed", case.prompts, case.strict))


@every_mode
@over_its_own_api
async def test_typed_answer_with_tools(stage: Stage, api: str, mode: str) -> None:
    """With an ``output_type``, a call without its tag is still recognized as a call, and the final answer is parsed."""
    stage.prepare(TYPED)
    stage.compare(TYPED, await run(stage.base_url, api, mode, TYPED.prompts, output=Sky))


@every_mode
@both_apis
async def test_no_call_without_the_addon(bare_stage: Stage, api: str, mode: str) -> None:
    """Without the addon, the client makes no call, although the answer contains one. This proves that the loop tests
    can fail.
    """
    bare_stage.prepare(ONE_CALL)
    (outcome,) = await run(bare_stage.base_url, api, mode, ONE_CALL.prompts)
    bare_stage.compare_control(outcome)
