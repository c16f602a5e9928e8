"""The loops of real clients that lean on a store: as they come, without the settings that do without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import openai
import pytest
from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, RunConfig, Runner
from agents.items import ModelResponse
from clients.cases import CASES, MODEL, ONE_CALL, PARIS, Case, Outcome, Stage, call, transcript
from clients.node_worker import NodeClient, needs_node
from clients.test_openai_agents import tools
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says

pytestmark = pytest.mark.slow
LOOPS = [case for case in CASES if case.error is None and case.calls]
every_loop = pytest.mark.parametrize("case", LOOPS, ids=lambda case: case.name.replace(" ", "_"))


@pytest.fixture
def stage(proxy: Mitmdump, backend: TextBackend, request: pytest.FixtureRequest) -> Stage:
    dialect, _ = request.node.callspec.params["proxy"]
    return Stage(backend, f"{proxy.url}/v1", dialect)


@pytest.fixture(scope="module")
def ai_sdk() -> Iterator[NodeClient]:
    with closing(NodeClient("ai_sdk.mjs")) as client:
        yield client


@needs_node
@every_loop
@pytest.mark.parametrize("mode", ["generateText", "streamText"])
def test_ai_sdk_without_store_false(stage: Stage, ai_sdk: NodeClient, mode: str, case: Case) -> None:
    """Its earlier texts and calls are references: the model is shown them, in their places."""
    stage.prepare(case)
    stage.compare(case, ai_sdk.run(stage.base_url, "responses", mode, case.prompts))
    sent = stage.backend.exchanges[-1]
    said = [text for role, text in sent.transcript if role == "assistant"]
    assert len(said) >= 1
    if case is ONE_CALL:
        assert said[0].startswith("Let me look.\n")
        assert "get_weather" in said[0]


@pytest.fixture(scope="module")
def openai_node() -> Iterator[NodeClient]:
    with closing(NodeClient("openai.mjs")) as client:
        yield client


@needs_node
@every_loop
@pytest.mark.parametrize("mode", ["polled", "resumed"])
def test_openai_node_in_the_background(stage: Stage, openai_node: NodeClient, mode: str, case: Case) -> None:
    """Each turn is polled, or its stream is left in the middle and taken up again: the same loop as ever."""
    stage.prepare(case)
    stage.compare(case, openai_node.run(stage.base_url, "responses", mode, case.prompts))


async def agents_loop(stage: Stage, *, streamed: bool, **how: Any) -> list[Outcome]:
    """Ask two questions, of which the second makes sense only to who remembers the first."""
    stage.backend.play(
        [says("I look.\n", call("get_weather", PARIS)), says("Clear."), says(call("get_weather", PARIS)), says("Yes.")],
        chunk_size=3,
    )
    outcomes = []
    async with openai.AsyncOpenAI(base_url=stage.base_url, api_key="none", max_retries=0, timeout=10) as client:
        agent = Agent[Any](name="Tester", tools=list(tools(False)), model=OpenAIResponsesModel(MODEL, client))
        options: dict[str, Any] = {"run_config": RunConfig(tracing_disabled=True)}
        match how:
            case {"conversation": True}:
                options["conversation_id"] = (await client.conversations.create()).id
            case {"session": True}:
                options["session"] = OpenAIConversationsSession(openai_client=client)
            case _:
                options["auto_previous_response_id"] = True
        for prompt in "Weather in Paris?", "And now?":
            outcome = Outcome()
            outcomes.append(outcome)
            if streamed:
                result: Any = Runner.run_streamed(agent, prompt, context=outcome, **options)
                async for _ in result.stream_events():
                    pass
            else:
                result = await Runner.run(agent, prompt, context=outcome, **options)
            outcome.text = result.final_output
            if "auto_previous_response_id" in options:
                last: ModelResponse = result.raw_responses[-1]
                options["previous_response_id"] = last.response_id
    return outcomes


@pytest.mark.parametrize("streamed", [False, True], ids=["run", "run_streamed"])
@pytest.mark.parametrize("how", ["previous_response_id", "conversation", "session"])
async def test_agents_sdk(stage: Stage, how: str, streamed: bool) -> None:
    """It sends only what is new, by each of its three ways; the model is shown all of it, once, in order."""
    outcomes = await agents_loop(stage, streamed=streamed, **{how: True})
    assert [(each.text, each.calls) for each in outcomes] == [
        (text, [("get_weather", {"city": "Paris"})]) for text in ("Clear.", "Yes.")
    ]
    ids = [id for each in outcomes for id in each.ids]
    assert len(set(ids)) == 2
    said = transcript(stage.backend.exchanges[-1])
    words = ["Weather in Paris?", "I look.", "The sky over Paris", "Clear.", "And now?"]
    assert [said.count(each) for each in words] == [1, 1, 2, 1, 1], said
    places = [said.index(each) for each in words]
    assert places == sorted(places)
