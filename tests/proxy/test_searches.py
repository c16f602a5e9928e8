"""Tests for web searches, which a real MCP server runs, and searches for deferred tools."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from memory.test_background import ended
from support.each import each
from support.line import Line
from support.mcp_servers import OFFICIAL, SEARCHER, over_http
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
HI = [{"role": "user", "content": "hi"}]
WEB: Any = {"type": "web_search_20250305", "name": "web_search"}
SEARCH = "tool_search_tool_regex"


def block(tool: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend() as backend:
        yield backend


@pytest.fixture(scope="module")
def remote() -> Iterator[str]:
    with over_http() as url:
        yield url


@pytest.fixture(scope="module", params=["chat", "responses"])
def proxy(
    request: pytest.FixtureRequest, backend: TextBackend, tmp_path_factory: pytest.TempPathFactory, remote: str
) -> Iterator[Mitmdump]:
    config = tmp_path_factory.mktemp("mcp") / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"web": SEARCHER | {"require_approval": "never"}, "calc": OFFICIAL}}))
    options: dict[str, Any] = {"toolsim_mcp_config": str(config), "toolsim_mcp_hosts": remote.split("/")[2]}
    with Mitmdump(backend.url, toolsim_backend=request.param, toolsim_store="memory", **options) as proxy:
        yield proxy


def messages(proxy: Mitmdump, **more: Any) -> Any:
    """Send a Messages API request, and return the answer that the SDK reads from the stream."""
    sdk = anthropic.Anthropic(base_url=proxy.url, api_key="k", max_retries=0, timeout=60)
    asked: Any = {"model": "m", "max_tokens": 99, "messages": HI, **more}
    with sdk, sdk.beta.messages.stream(**asked) as events:
        return events.get_final_message()


def responses(proxy: Mitmdump, **more: Any) -> Any:
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=60) as sdk:
        return sdk.responses.create(**({"model": "m", "input": "hi"} | more))


@pytest.mark.slow
def test_web_search_over_both_apis(proxy: Mitmdump, backend: TextBackend) -> None:
    """A web search works in a Messages API request without other tools, and in a Responses API turn whose answer is
    stored.
    """
    backend.play([says(block("web_search", query="herons")), says("See https://birds.example/heron")])
    answer = messages(proxy, tools=[WEB], tool_choice={"type": "tool", "name": "web_search"})
    assert [each.type for each in answer.content] == ["server_tool_use", "web_search_tool_result", "text"]
    assert [each.url for each in answer.content[1].content] == [
        "https://birds.example/heron",
        "https://shop.example/heron",
    ]
    assert "The grey heron is common." in str(backend.exchanges[-1].transcript)

    backend.play([says(block("web_search", query="herons")), says("See https://birds.example/heron")])
    tools: Any = [{"type": "web_search", "filters": {"allowed_domains": ["birds.example"]}}]
    first = responses(proxy, tools=tools, include=["web_search_call.results"])
    call, said = first.output[-2:]
    assert (call.type, [each.url for each in call.action.sources]) == (
        "web_search_call",
        ["https://birds.example/heron"],
    )
    assert [note.title for note in said.content[0].annotations] == ["Herons of Europe"]
    before = backend.exchanges[-1].transcript
    backend.play([says("Yes.")])
    assert responses(proxy, tools=tools, previous_response_id=first.id, input="Sure?").output_text == "Yes."
    after = backend.exchanges[-1].transcript
    assert after[: len(before) - 1] == before[:-1]
    assert after[len(before) - 1][1].startswith(before[-1][1])


@pytest.mark.slow
@each("choice", ["auto", "required", {"type": "mcp", "server_label": "sums"}])
def test_background_request_runs_mcp_tools(proxy: Mitmdump, backend: TextBackend, remote: str, choice: Any) -> None:
    tools: Any = [{"type": "mcp", "server_label": "sums", "server_url": remote, "require_approval": "never"}]
    backend.play([says(block("sums__add", a=2, b=3)), says("Five.")])
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=60) as sdk:
        queued = sdk.responses.create(model="m", input="hi", tools=tools, tool_choice=choice, background=True)
        answer = ended(sdk, queued.id)
    assert (answer.status, answer.output_text) == ("completed", "Five.")
    assert [item.output for item in answer.output if item.type == "mcp_call"] == ["5"]


@pytest.mark.slow
def test_search_tool_is_not_offered_separately(proxy: Mitmdump, backend: TextBackend) -> None:
    """The MCP tool that runs web searches is not offered under its own name. The other tools of its server are
    offered.
    """
    backend.play([says("Well.")])
    responses(proxy)
    shown = str(backend.exchanges[-1].transcript)
    assert "web__shout" in shown
    assert "web__find" not in shown


@pytest.mark.slow
def test_oversized_or_malformed_search_results(proxy: Mitmdump, backend: TextBackend) -> None:
    """If the output of a search is too large or contains malformed JSON, the model's answer continues."""
    for query, content in (("huge", "unavailable"), ("nested", None)):
        backend.play([says(block("web_search", query=query)), says("I go on.")])
        answer = messages(proxy, tools=[WEB])
        *_, result, text = answer.content
        assert (getattr(result.content, "error_code", None), text.text) == (content, "I go on.")


@pytest.mark.slow
def test_search_times_out(backend: TextBackend, tmp_path: Path) -> None:
    """If a search exceeds the timeout of its MCP server, it is aborted, and the model's answer continues."""
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"web": SEARCHER | {"timeout": 1, "require_approval": "never"}}}))
    with Mitmdump(backend.url, toolsim_backend="chat", toolsim_mcp_config=str(config)) as proxy:
        backend.play([says(block("web_search", query="slow")), says("I go on.")])
        *_, result, text = messages(proxy, tools=[WEB]).content
    assert (result.content.error_code, text.text) == ("unavailable", "I go on.")


@pytest.mark.slow
def test_disconnect_aborts_the_search(proxy: Mitmdump, backend: TextBackend, line: Line) -> None:
    """If the client disconnects, its search is aborted. The next search succeeds."""
    backend.play([says(block("web_search", query="slow")), says("I go on.")])
    body = {"model": "m", "max_tokens": 9, "messages": HI, "tools": [WEB], "stream": True}
    response = line.begin("POST", "/v1/messages", body)
    assert b"message_start" in response.read(40)
    line.close()
    started = time.monotonic()
    backend.play([says(block("web_search", query="herons")), says("Done.")])
    assert messages(proxy, tools=[WEB]).content[-1].text == "Done."
    assert time.monotonic() - started < 20


@pytest.mark.slow
def test_deferred_tool_search(proxy: Mitmdump, backend: TextBackend) -> None:
    """The client receives a search for deferred tools as content blocks, and the next prompt continues the previous
    one.
    """
    deferred: Any = {"name": "get_weather", "description": "Weather.", "input_schema": CITY, "defer_loading": True}
    tools: Any = [{"type": f"{SEARCH}_20251119", "name": SEARCH}, deferred]
    turns = [says(block(SEARCH, pattern="weather")), says(block("get_weather", city="Bonn"))]
    backend.play(turns)
    answer = messages(proxy, tools=tools)
    assert [each.type for each in answer.content] == ["server_tool_use", "tool_search_tool_result", "tool_use"]
    assert answer.stop_reason == "tool_use"
    before = backend.exchanges[-1].transcript
    call = answer.content[-1]
    output = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
    history = [*HI, {"role": "assistant", "content": [each.to_dict() for each in answer.content]}]
    backend.play([says("It rains.")])
    messages(proxy, tools=tools, messages=[*history, {"role": "user", "content": [output]}])
    after = backend.exchanges[-1].transcript
    assert after[: len(before) - 1] == before[:-1]
    assert after[len(before) - 1][1].startswith(before[-1][1])


@pytest.mark.slow
def test_messages_request_can_name_a_server(proxy: Mitmdump, backend: TextBackend, remote: str) -> None:
    """A Messages API request can name an MCP server on an allowed host. If the host is not allowed, the error names
    ``toolsim_mcp_hosts``.
    """
    server: Any = {"type": "url", "name": "sums", "url": remote}
    toolset: Any = {"type": "mcp_toolset", "mcp_server_name": "sums"}
    backend.play([says(block("sums__add", a=2, b=3)), says("Five.")])
    answer = messages(proxy, mcp_servers=[server], tools=[toolset], betas=["mcp-client-2025-11-20"])
    assert [each.type for each in answer.content] == ["mcp_tool_use", "mcp_tool_result", "text"]
    assert answer.content[1].content[0].text == "5"
    with pytest.raises(anthropic.BadRequestError, match="toolsim_mcp_hosts"):
        messages(proxy, mcp_servers=[server | {"url": "https://other.example/mcp"}], tools=[toolset])


@pytest.mark.slow
@each("kind", ["web_search_20250305", "web_search_20260209"])
def test_web_search_without_a_server_is_refused(backend: TextBackend, kind: str) -> None:
    """If no MCP server is configured for web searches, a request whose only tool is a web search is refused. The error
    names the missing setting.
    """
    with Mitmdump(backend.url, toolsim_backend="chat") as proxy:
        sdk = anthropic.Anthropic(base_url=proxy.url, api_key="k", max_retries=0, timeout=60)
        tool: Any = {"type": kind, "name": "web_search"}
        with sdk, pytest.raises(anthropic.BadRequestError, match='"web_search" for a server in toolsim_mcp_config'):
            sdk.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}], tools=[tool])
