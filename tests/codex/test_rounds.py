"""Asking again over the real Codex app-server: each round is a thread of its own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.mcp_servers import OFFICIAL
from support.mitmdump import Mitmdump
from support.stub_model import Reply, StubModel

GOOD = '<tool_call>{"name":"forecast","arguments":{"days":3}}</tool_call>'
DAYS = {
    "type": "object",
    "properties": {"days": {"type": "integer"}},
    "required": ["days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "forecast", "strict": True, "parameters": DAYS}


@pytest.mark.slow
async def test_a_bad_call_is_asked_again(codex: str, tmp_path: Path) -> None:
    """The second thread holds the model's words and the reason, and the client gets the good call, streamed or not."""
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
async def test_mcp_tools_are_run(codex: str, tmp_path: Path) -> None:
    """Codex writes text, the proxy runs the call, and a second thread knows its output: over both APIs."""
    asked: list[str] = []

    def reply(body: dict[str, Any]) -> Reply:
        asked.append(json.dumps(body))
        call = '<tool_call>{"name":"calc__add","arguments":{"a":1,"b":2}}</tool_call>'
        return Reply(["It is 3."] if "output=3]" in asked[-1] else [call])

    stub = StubModel(reply)
    await stub.start()
    stub.write_config(tmp_path)
    servers = {"calc": OFFICIAL | {"require_approval": "never"}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def run() -> list[str]:
        options: dict[str, Any] = {"toolsim_backend": "codex", "toolsim_codex_command": f"{codex} app-server"}
        options["toolsim_mcp_config"] = str(tmp_path / "mcp.json")
        with Mitmdump(None, environment={"CODEX_HOME": str(tmp_path)}, **options) as proxy:
            asks = {
                "responses": {"model": "stub-1", "input": "1+2?", "stream": True},
                "chat/completions": {"model": "stub-1", "messages": [{"role": "user", "content": "1+2?"}]},
            }
            return [httpx.post(f"{proxy.url}/v1/{path}", json=body, timeout=60).text for path, body in asks.items()]

    streamed, whole = await asyncio.to_thread(run)
    await stub.stop()
    assert '"output":"3"' in streamed
    assert "response.mcp_call.completed" in streamed
    assert json.loads(whole)["choices"][0]["message"]["content"] == "It is 3."
    assert len(asked) == 4
