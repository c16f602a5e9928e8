"""The JavaScript clients: openai-node, LangChain (also as Obsidian Copilot uses it), AI SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from clients.cases import ONE_CALL, Case, Stage, both_apis, every_case, over_its_own_api
from clients.node_worker import NodeClient, needs_node

pytestmark = needs_node
MODES = {
    "openai.mjs": ("create", "stream", "helper"),
    "langchain.mjs": ("invoke", "stream", "copilot"),
    "ai_sdk.mjs": ("generateText", "streamText"),
}
every_client = pytest.mark.parametrize(
    ("script", "mode"),
    [pytest.param(script, mode, id=f"{script[:-4]}-{mode}") for script, modes in MODES.items() for mode in modes],
)


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, NodeClient]]:
    """All three processes, shared by all tests: starting one takes longer than a test."""
    with ExitStack() as stack:
        yield {script: stack.enter_context(closing(NodeClient(script))) for script in MODES}


@every_case
@over_its_own_api
@every_client
def test_tool_loop(stage: Stage, clients: dict[str, NodeClient], script: str, api: str, mode: str, case: Case) -> None:
    """The client completes the case through the proxy."""
    stage.prepare(case)
    stage.compare(case, clients[script].run(stage.base_url, api, mode, case.prompts, case.strict))


@both_apis
@every_client
def test_control(bare_stage: Stage, clients: dict[str, NodeClient], script: str, api: str, mode: str) -> None:
    """Without the addon the same client makes no call from the same answer: the loop can fail."""
    bare_stage.prepare(ONE_CALL)
    (outcome,) = clients[script].run(bare_stage.base_url, api, mode, ONE_CALL.prompts)
    bare_stage.compare_control(outcome)
