"""Tests for how agent programs react to a call to an undeclared tool, depending on ``toolsim_unknown_tool``."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from agents import (
    Agent,
    ModelBehaviorError,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import Tool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says

MARKUP = '<tool_call>{"name":"get_wind","arguments":{"city":"Bonn"}}</tool_call>'
ANSWER = "There is no such tool."

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend() as backend:
        yield backend


@pytest.fixture(scope="module", params=["text", "call", "retry"])
def served(request: pytest.FixtureRequest, backend: TextBackend) -> Iterator[tuple[str, str]]:
    with Mitmdump(backend.url, toolsim_unknown_tool=request.param) as proxy:
        yield request.param, f"{proxy.url}/v1"


def get_weather(city: str) -> str:
    """Return the weather in a city."""
    return f"sun over {city}"


async def test_pydantic_ai_reports_undeclared_call(served: tuple[str, str], backend: TextBackend) -> None:
    """pydantic-ai reports an undeclared call to the model, which corrects itself. If pydantic-ai receives the call as
    text, it accepts the text as the final answer.
    """
    way, url = served
    backend.play([says(MARKUP), says(ANSWER)])
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
        result = await PydanticAgent(model, tools=[Tool(get_weather, strict=False)]).run("hi")
    assert result.output == (MARKUP if way == "text" else ANSWER)
    if way == "call":
        assert "Unknown tool name: 'get_wind'" in backend.exchanges[1].transcript[-1][1]


async def test_agents_sdk_raises_or_reports_undeclared_call(served: tuple[str, str], backend: TextBackend) -> None:
    """For an undeclared call, the Agents SDK raises an exception or, if configured, returns an error to the model."""
    way, url = served
    set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        model = OpenAIChatCompletionsModel("m", client)
        agent = Agent(name="a", model=model, tools=[function_tool(get_weather, strict_mode=False)])
        for behaviour in ("raise_error", "return_error_to_model"):
            backend.play([says(MARKUP), says(ANSWER)])
            config = RunConfig(tool_not_found_behavior=behaviour)  # type: ignore[arg-type]
            if (way, behaviour) == ("call", "raise_error"):
                with pytest.raises(ModelBehaviorError, match="get_wind not found"):
                    await Runner.run(agent, "hi", run_config=config)
                continue
            result = await Runner.run(agent, "hi", run_config=config)
            assert result.final_output == (MARKUP if way == "text" else ANSWER)
