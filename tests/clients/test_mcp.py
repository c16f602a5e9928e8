"""MCP with a text-only backend, and with servers and clients from other projects.

The servers are two reference servers of the MCP project, and an HTTP server that uses the official Python package. The
clients are the OpenAI SDK, whose types parse every event, and the Agents SDK with ``HostedMCPTool``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import Agent, HostedMCPTool, OpenAIResponsesModel, RunConfig, Runner, function_tool
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from support.mcp_servers import over_http
from support.mitmdump import Mitmdump
from support.programs import mcp_server
from support.text_backend import TextBackend, says

EVENT = TypeAdapter[Any](ResponseStreamEvent)


def block(tool: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


@pytest.fixture(scope="module")
def published(text_backend: TextBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mitmdump, Path]]:
    """A proxy that runs the two reference servers. One of the servers has access to a folder."""
    commands = [mcp_server(name) for name in ("everything", "filesystem")]
    if None in commands:
        pytest.skip("needs the published MCP servers (make setup, with npm)")
    folder = tmp_path_factory.mktemp("files")
    (folder / "note.txt").write_text("Buy milk.")
    everything, files = commands
    servers = {
        "all": {"command": everything, "require_approval": "never"},
        "files": {"command": files, "args": [str(folder)], "require_approval": {"never": {"read_only": True}}},
    }
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    with Mitmdump(text_backend.url, toolsim_backend="chat", toolsim_mcp_config=str(folder / "mcp.json")) as proxy:
        yield proxy, folder


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_published_servers(stream: bool, published: tuple[Mitmdump, Path], text_backend: TextBackend) -> None:
    """The reference servers return text, images, errors, and files in an allowed folder. A tool that writes needs
    approval.
    """
    proxy, folder = published
    calls = [
        block("all__get-sum", a=2, b=3),
        block("all__get-tiny-image"),
        block("all__get-sum", a=2, b="x"),
        block("files__read_text_file", path=str(folder / "note.txt")),
        block("files__read_text_file", path="/etc/passwd"),
    ]
    text_backend.play([says(*calls), says(block("files__write_file", path=str(folder / "new"), content="x"))])
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=60) as client:
        if stream:
            events = list(client.responses.create(model="m", input="hi", stream=True))
            for event in events:
                EVENT.validate_python(event.to_dict())
            [answer] = [event.response for event in events if event.type == "response.completed"]
            announced = [event for event in events if event.type == "response.mcp_call.in_progress"]
            assert len(announced) == len(calls)
        else:
            answer = client.responses.create(model="m", input="hi")
        listed = {item.server_label: len(item.tools) for item in answer.output if item.type == "mcp_list_tools"}
        assert listed["all"] > 5
        assert listed["files"] > 5
        added, image, wrong, note, denied = (item for item in answer.output if item.type == "mcp_call")
        assert "5" in (added.output or "")
        assert "[image image/png, " in (image.output or "")
        assert (wrong.status, wrong.output) == ("failed", None)
        assert note.output == "Buy milk."
        assert "Access denied" in str(denied.error)
        assert answer.output[-1].type == "mcp_approval_request"
        assert not (folder / "new").exists()


@pytest.fixture(scope="module")
def remote() -> Iterator[str]:
    with over_http() as url:
        yield url


@pytest.fixture(scope="module", params=["responses", "chat"])
def mcp_context(request: pytest.FixtureRequest, text_backend: TextBackend, remote: str) -> Iterator[Mitmdump]:
    with Mitmdump(
        text_backend.url,
        toolsim_backend=request.param,
        toolsim_mcp_hosts=remote.split("/")[2],
    ) as proxy:
        yield proxy


async def run(proxy: Mitmdump, remote: str, mode: str, approve: bool | None) -> Any:
    """Run an agent with a hosted server and a function. ``approve``: the user's decision, or None if not needed."""
    asked: list[Any] = []

    def decide(request: Any) -> Any:
        asked.append(json.loads(request.data.arguments))
        return {"approve": bool(approve), "reason": "Not today."}

    @function_tool
    def note(text: str) -> str:
        """Save a note."""
        return f"noted {text}"

    config: Any = {"type": "mcp", "server_label": "calc", "server_url": remote}
    config["require_approval"] = "never" if approve is None else "always"
    tool = HostedMCPTool(tool_config=config, on_approval_request=None if approve is None else decide)
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=60) as client:
        agent = Agent[Any](name="Tester", tools=[tool, note], model=OpenAIResponsesModel("m", client))
        options: Any = {"run_config": RunConfig(tracing_disabled=True)}
        if mode == "run":
            result: Any = await Runner.run(agent, "hi", **options)
        else:
            result = Runner.run_streamed(agent, "hi", **options)
            async for _ in result.stream_events():
                pass
    return result, asked


def kinds(result: Any) -> list[str]:
    return [
        item.raw_item.type for item in result.new_items if getattr(item.raw_item, "type", "").startswith("mcp_call")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["run", "run_streamed"])
async def test_hosted_and_function_calls_in_agents_sdk(
    mode: str, mcp_context: Mitmdump, remote: str, text_backend: TextBackend
) -> None:
    """The Agents SDK completes a turn with one call to a hosted tool and one call to a function, and the last prompt
    contains the outputs of both calls.
    """
    text_backend.play([says(block("calc__add", a=1, b=2), block("note", text="x")), says("It is 3.")])
    result, _ = await run(mcp_context, remote, mode, None)
    assert result.final_output == "It is 3."
    assert kinds(result) == ["mcp_call"]
    shown = str(text_backend.exchanges[-1].transcript)
    assert "output=3]" in shown
    assert "noted x" in shown


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["run", "run_streamed"])
@pytest.mark.parametrize("approve", [True, False])
async def test_approvals_in_agents_sdk(
    approve: bool, mode: str, mcp_context: Mitmdump, remote: str, text_backend: TextBackend
) -> None:
    """The user is asked to approve a call to an MCP tool. If the user refuses the call, the next prompt contains the
    reason.
    """
    text_backend.play([says(block("calc__add", a=1, b=2)), says("Well.")])
    result, asked = await run(mcp_context, remote, mode, approve)
    assert asked == [{"a": 1, "b": 2}]
    assert result.final_output == "Well."
    shown = str(text_backend.exchanges[-1].transcript)
    assert ("output=3]" in shown) == approve
    assert ("The user refused this call. Not today." in shown) != approve
