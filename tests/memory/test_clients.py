"""Tool loops of real clients whose default settings require a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from clients.cases import CASES, ONE_CALL, Case, Stage, transcript
from clients.node_worker import NodeClient, needs_node
from memory.loops import LOOPS, MODEL_TEXTS, check, needed
from support.effort import parameters
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says

pytestmark = pytest.mark.slow
CALLING = [case for case in CASES if case.error is None and case.calls]
every_loop = pytest.mark.parametrize("case", CALLING, ids=lambda case: case.name.replace(" ", "_"))


@pytest.fixture
def stage(proxy: Mitmdump, backend: TextBackend, request: pytest.FixtureRequest) -> Stage:
    api_name, _ = request.node.callspec.params["proxy"]
    return Stage(backend, f"{proxy.url}/v1", api_name)


@pytest.fixture(scope="module")
def ai_sdk() -> Iterator[NodeClient]:
    with closing(NodeClient("ai_sdk.mjs")) as client:
        yield client


@needs_node
@every_loop
@pytest.mark.parametrize("mode", ["generateText", "streamText"])
def test_ai_sdk_without_store_false(stage: Stage, ai_sdk: NodeClient, mode: str, case: Case) -> None:
    """The AI SDK sends references to earlier texts and calls, and the model receives their contents in order."""
    stage.prepare(case)
    stage.compare(case, ai_sdk.run(stage.base_url, "responses", mode, case.prompts))
    sent = stage.backend.exchanges[-1]
    texts = [text for role, text in sent.transcript if role == "assistant"]
    assert len(texts) >= 1
    if case is ONE_CALL:
        assert texts[0].startswith("Let me look.\n")
        assert "get_weather" in texts[0]


@pytest.fixture(scope="module")
def openai_node() -> Iterator[NodeClient]:
    with closing(NodeClient("openai.mjs")) as client:
        yield client


@needs_node
@pytest.mark.parametrize("mode", ["polled", "resumed"])
def test_openai_node_with_background_answers(stage: Stage, openai_node: NodeClient, mode: str) -> None:
    """If openai-node polls each turn, or interrupts and resumes its stream, the tool loop has the same result."""
    stage.prepare(ONE_CALL)
    stage.compare(ONE_CALL, openai_node.run(stage.base_url, "responses", mode, ONE_CALL.prompts))


@pytest.mark.parametrize("name", parameters(LOOPS, lambda name: name == "LlamaIndex"))
async def test_clients_that_send_only_new_items(stage: Stage, name: str) -> None:
    """Whichever way a client continues a conversation, the model receives the complete conversation, once and in order.

    The client cannot see the backend's API or the kind of store, so only two combinations are tested: non-streamed with
    one API and store, and streamed with the other API and store.
    """
    needed(name)
    stage.backend.play([says(text) for text in MODEL_TEXTS], chunk_size=3)
    streamed = stage.api_name == "responses"
    check(await LOOPS[name](stage.base_url, streamed), transcript(stage.backend.exchanges[-1]))
