"""Tests for retries and MCP tools with the real Codex app-server, where each round is a new thread."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from support.mcp_servers import OFFICIAL, over_http
from support.mitmdump import Mitmdump
from support.stub_model import Reply, StubModel

NEVER = {"require_approval": "never"}


def block(tool: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


ADD = block("calc__add", a=1, b=2)
GOOD = '<tool_call>{"name":"forecast","arguments":{"days":3}}</tool_call>'
DAYS = {
    "type": "object",
    "properties": {"days": {"type": "integer"}},
    "required": ["days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "forecast", "strict": True, "parameters": DAYS}


@pytest.mark.slow
async def test_invalid_call_is_retried_in_a_second_thread(codex: str, tmp_path: Path) -> None:
    """After an invalid call, a second thread's prompt states the reason, and the client receives the valid call."""
    asked: list[str] = []

    def reply(body: dict[str, Any]) -> Reply:
        asked.append(json.dumps(body))
        return Reply([GOOD if "function_call_error" in asked[-1] else GOOD.replace("3", '"three"')])

    stub = StubModel(reply)
    await stub.start()
    stub.write_config(tmp_path)

    def run() -> list[str]:
        options: dict[str, Any] = {"toolsim_backend": "codex", "toolsim_codex_command": f"{codex} app-server"}
        with Mitmdump(None, toolsim_retry=1, environment={"CODEX_HOME": str(tmp_path)}, **options) as proxy:
            body = {"model": "stub-1", "input": "hi", "tools": [TOOL]}
            url = f"{proxy.url}/v1/responses"
            return [httpx.post(url, json=body | {"stream": stream}, timeout=60).text for stream in (False, True)]

    whole, streamed = await asyncio.to_thread(run)
    await stub.stop()
    [call] = json.loads(whole)["output"]
    assert (call["name"], call["arguments"]) == ("forecast", '{"days":3}')
    assert '"arguments":"{\\"days\\":3}"' in streamed
    assert len(asked) == 4
    assert "/days: got string, expected integer" in asked[1]


@pytest.mark.slow
async def test_questions_about_a_call_are_separate_threads(codex: str, tmp_path: Path) -> None:
    """Yes-or-no questions about a call, and the request for text that replaces a refused call, run in
    separate threads.
    """
    asked: list[str] = []

    def reply(body: dict[str, Any]) -> Reply:
        asked.append(json.dumps(body))
        if "A function: forecast(days)" in asked[-1]:
            return Reply(["No"])
        return Reply([GOOD if "CLIENT TOOL CATALOG" in asked[-1] else "Forty-two."])

    stub = StubModel(reply)
    await stub.start()
    stub.write_config(tmp_path)

    def run() -> str:
        options: dict[str, Any] = {"toolsim_backend": "codex", "toolsim_codex_command": f"{codex} app-server"}
        options["toolsim_second_opinion"] = "on"
        with Mitmdump(None, environment={"CODEX_HOME": str(tmp_path)}, **options) as proxy:
            body = {"model": "stub-1", "messages": [{"role": "user", "content": "hi"}], "stream": True}
            tools = [{"type": "function", "function": {name: TOOL[name] for name in ("name", "parameters")}}]
            return httpx.post(f"{proxy.url}/v1/chat/completions", json=body | {"tools": tools}, timeout=60).text

    answer = await asyncio.to_thread(run)
    await stub.stop()
    assert len(asked) == 4
    assert "Forty-two." in answer
    assert "forecast" not in answer


@pytest.mark.slow
async def test_mcp_tools_with_functions(codex: str, tmp_path: Path) -> None:
    """MCP tools and a client's function work in one conversation, over both APIs, streamed or not."""
    asked: list[str] = []

    def reply(body: dict[str, Any]) -> Reply:
        asked.append(json.dumps(body))
        sums = asked[-1].count("output=3]")
        if "noted" in asked[-1]:
            return Reply(["All done." if sums == 2 else ADD])
        return Reply([ADD, block("web__header", name="x-own"), block("note", text="x")])

    stub = StubModel(reply)
    await stub.start()
    stub.write_config(tmp_path)

    def run(remote: str) -> None:
        servers = {"calc": OFFICIAL | NEVER, "web": {"url": remote, "headers": {"X-Own": "mine"}} | NEVER}
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        options: dict[str, Any] = {"toolsim_backend": "codex", "toolsim_codex_command": f"{codex} app-server"}
        options["toolsim_mcp_config"] = str(tmp_path / "mcp.json")
        with (
            Mitmdump(None, environment={"CODEX_HOME": str(tmp_path)}, **options) as proxy,
            openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=60) as client,
        ):
            for stream in (False, True):
                responses_loop(client, stream=stream)
                chat_loop(client, stream=stream)

    with over_http() as remote:
        await asyncio.to_thread(run, remote)
    await stub.stop()
    assert len(asked) == 4 * 3
    assert all("web__header" in body for body in asked)


def responses_loop(client: openai.OpenAI, *, stream: bool) -> None:
    """Run two turns over the Responses API. Check that MCP items with correct outputs precede the function call."""
    tools: Any = [{"type": "function", "name": "note", "parameters": {"type": "object"}}]

    def ask(history: Any) -> Any:
        if not stream:
            return client.responses.create(model="stub-1", input=history, tools=tools)
        with client.responses.stream(model="stub-1", input=history, tools=tools) as events:
            return events.get_final_response()

    history: list[Any] = [{"role": "user", "content": "1+2?"}]
    first = ask(history)
    assert [item.type for item in first.output][-3:] == ["mcp_call", "mcp_call", "function_call"]
    assert [item.output for item in first.output if item.type == "mcp_call"] == ["3", "mine"]
    history += [item.to_dict() for item in first.output]
    history.append({"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "noted"})
    second = ask(history)
    assert [item.type for item in second.output] == ["mcp_call", "message"]
    assert second.output_text == "All done."


def chat_loop(client: openai.OpenAI, *, stream: bool) -> None:
    """Run two turns over chat. Check that the client sees only its own function, and the model sees all outputs."""
    tools: Any = [{"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}]

    def ask(messages: Any) -> dict[str, Any]:
        answer: Any = client.chat.completions.create(model="stub-1", messages=messages, tools=tools, stream=stream)
        if not stream:
            whole: dict[str, Any] = answer.choices[0].message.to_dict()
            return whole
        state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
        for chunk in answer:
            state.handle_chunk(chunk)
        return state.get_final_completion().choices[0].message.to_dict()

    messages: list[Any] = [{"role": "user", "content": "1+2?"}]
    first = ask(messages)
    [call] = first["tool_calls"]
    assert (call["function"]["name"], first["content"]) == ("note", None)
    messages += [first, {"role": "tool", "tool_call_id": call["id"], "content": "noted"}]
    second = ask(messages)
    assert (second["content"], second.get("tool_calls")) == ("All done.", None)


@pytest.mark.slow
async def test_prose_is_retried_until_required_json(codex: str, tmp_path: Path) -> None:
    """Prose is retried until the answer is the required JSON, streamed or not; each prompt has the schema."""
    asked: list[str] = []

    def reply(body: dict[str, Any]) -> Reply:
        asked.append(json.dumps(body))
        return Reply(['```json\n{"days":3}\n```' if "was not passed on" in asked[-1] else "Three days."])

    stub = StubModel(reply)
    await stub.start()
    stub.write_config(tmp_path)

    def run() -> list[str]:
        options: dict[str, Any] = {"toolsim_backend": "codex", "toolsim_codex_command": f"{codex} app-server"}
        with Mitmdump(None, toolsim_retry=1, environment={"CODEX_HOME": str(tmp_path)}, **options) as proxy:
            url = f"{proxy.url}/v1"
            wanted = {"type": "json_schema", "name": "forecast", "schema": DAYS}
            message = {"model": "stub-1", "messages": [{"role": "user", "content": "hi"}]}
            body = {"model": "stub-1", "input": "hi", "text": {"format": wanted}}
            nested = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": DAYS}}
            return [
                httpx.post(f"{url}/{path}", json=each | {"stream": stream}, timeout=60).text
                for path, each in (("responses", body), ("chat/completions", message | {"response_format": nested}))
                for stream in (False, True)
            ]

    answers = await asyncio.to_thread(run)
    await stub.stop()
    assert all('{\\"days\\":3}' in answer for answer in answers), answers
    assert not any("Three days" in answer for answer in answers)
    assert len(asked) == 8
    assert all("MUST conform exactly" in each for each in asked)
