"""JavaScript clients: openai-node, LangChain (also as Obsidian Copilot uses it), the AI SDK, and Anthropic's SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from clients.cases import ONE_CALL, Case, Stage, both_apis, every_case, over_chat, over_its_own_api
from clients.node_worker import NodeClient, needs_node
from support.text_backend import refuses

pytestmark = needs_node
MODES = {
    "openai.mjs": ("create", "stream", "helper"),
    "langchain.mjs": ("invoke", "stream", "copilot"),
    "ai_sdk.mjs": ("generateText", "streamText"),
}
OVER_MESSAGES = {
    "anthropic.mjs": ("create", "stream", "helper"),
    "langchain.mjs": ("invoke", "stream"),
    "ai_sdk.mjs": ("generateText", "streamText"),
}


def every(clients: dict[str, tuple[str, ...]]) -> pytest.MarkDecorator:
    pairs = [(script, mode) for script, modes in clients.items() for mode in modes]
    return pytest.mark.parametrize(
        ("script", "mode"), [pytest.param(*pair, id=f"{pair[0][:-4]}-{pair[1]}") for pair in pairs]
    )


every_client = every(MODES)


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, NodeClient]]:
    """The four Node processes, which all tests share, because starting a process takes longer than a test."""
    with ExitStack() as stack:
        yield {script: stack.enter_context(closing(NodeClient(script))) for script in (*MODES, "anthropic.mjs")}


@every_case
@over_its_own_api
@every_client
def test_tool_loop(stage: Stage, clients: dict[str, NodeClient], script: str, api: str, mode: str, case: Case) -> None:
    """Through the proxy, the client completes the tool loop in each case."""
    stage.prepare(case)
    stage.compare(case, clients[script].run(stage.base_url, api, mode, case.prompts, case.strict))


@every_case
@over_chat
def test_tool_loop_over_a_websocket(stage: Stage, clients: dict[str, NodeClient], case: Case) -> None:
    """The client completes the tool loop over openai-node's WebSocket connection, on which it sends only new items."""
    stage.prepare(case)
    stage.compare(case, clients["openai.mjs"].run(stage.base_url, "responses", "websocket", case.prompts, case.strict))


@every_case
@over_chat
@every(OVER_MESSAGES)
def test_tool_loop_over_messages(
    stage: Stage, clients: dict[str, NodeClient], script: str, mode: str, case: Case
) -> None:
    """The client completes the tool loop over the Messages API. No test without the addon is possible, because the test
    backend does not have that API.
    """
    stage.prepare(case)
    stage.compare(case, clients[script].run(stage.base_url, "messages", mode, case.prompts, case.strict))


@over_chat
def test_anthropic_node_sdk(stage: Stage, clients: dict[str, NodeClient]) -> None:
    """The tool runner of Anthropic's SDK for Node works, and a failed request raises the matching class of error."""
    client = clients["anthropic.mjs"]
    stage.prepare(ONE_CALL)
    stage.compare(ONE_CALL, client.run(stage.base_url, "messages", "runner", ONE_CALL.prompts))
    stage.backend.play([refuses(429, "Slow down.")])
    (counted,) = client.run(stage.base_url, "messages", "count", ONE_CALL.prompts)
    assert counted.text == "rate_limit_error: Slow down."


@both_apis
@every_client
def test_no_call_without_the_addon(
    bare_stage: Stage, clients: dict[str, NodeClient], script: str, api: str, mode: str
) -> None:
    """Without the addon, the client makes no call, although the answer contains one. This proves that the loop tests
    can fail.
    """
    bare_stage.prepare(ONE_CALL)
    (outcome,) = clients[script].run(bare_stage.base_url, api, mode, ONE_CALL.prompts)
    bare_stage.compare_control(outcome)
