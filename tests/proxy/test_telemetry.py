"""What is told of an exchange: log line, saved flow, headers, counters. Never argument values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mitmproxy.http import HTTPFlow
from mitmproxy.io import FlowReader
from proxy.conftest import CALL
from support.line import Line
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend, stream_of
from support.wire import chat_whole


async def whole(answer: Answer) -> None:
    await answer.whole(chat_whole(f"Hi {CALL} tail"), Content_Type="application/json")


def told(proxy: Mitmdump) -> list[Any]:
    return [json.loads(line.partition(" toolsim ")[2]) for line in proxy.log().splitlines() if " toolsim {" in line]


def test_each_exchange_is_told_once(backend: RawBackend, tmp_path: Path, ask: Any) -> None:
    """One line each in the log, the same in the saved flow beside the client's original request, headers, counters."""
    saved = tmp_path / "saved.flow"
    with Mitmdump(backend.url, arguments=("-w", str(saved))) as proxy, Line(proxy.url) as line:
        backend.play(whole)
        reply = line.post("/v1/chat/completions", ask())
        assert reply.headers["x-toolsim-tool-call-count"] == "1"
        assert reply.headers["x-toolsim-mode"] == "openai-json"
        assert reply.headers["x-toolsim-truncated"] == "false"
        assert reply.headers["x-toolsim-tool-cutoff"]
        backend.play(stream_of("Hi ", CALL, " tail"))
        line.post("/v1/chat/completions", ask(stream=True))
        line.post("/v1/chat/completions", ask(tools=1))
        line.post("/v1/chat/completions", ask(tools=[]))
        lines = told(proxy)
        assert [each["status"] for each in lines] == [200, 200, 400]
        assert [each["tool_call_count"] for each in lines] == [1, 1, 0]
        assert lines[0]["calls"] == lines[1]["calls"] == lines[0]["tools"] == ["get_weather"]
        assert lines[0]["tool_cutoff"] == lines[1]["tool_cutoff"]
        assert lines[2]["error"]
        assert "Bonn" not in proxy.log()
        text = line.request("GET", "/toolsim/metrics").body.decode()
    assert 'toolsim_exchanges_total{client="chat",backend="chat",stream="true",outcome="ok"} 1' in text
    assert "toolsim_tool_calls_total 2" in text
    assert "toolsim_exchanges_open 0" in text

    with saved.open("rb") as file:
        flows = [flow for flow in FlowReader(file).stream() if isinstance(flow, HTTPFlow)]
    assert [flow.metadata.get("toolsim", {}).get("status") for flow in flows[:4]] == [200, 200, 400, None]
    assert flows[0].metadata["toolsim"]["calls"] == ["get_weather"]
    assert flows[0].comment.startswith("toolsim: 1 call: get_weather · cut off: ")
    assert b"# CLIENT TOOL CATALOG" in (flows[0].request.content or b"")
    flows[0].revert()  # type: ignore[no-untyped-call]
    assert json.loads(flows[0].request.content or b"") == ask()


def test_stream_comment_only_on_demand(backend: RawBackend, line: Line, ask: Any) -> None:
    """Streams hold no comment unless it is asked for."""
    backend.play(stream_of(CALL))
    assert b"\n:" not in b"\n" + line.post("/v1/chat/completions", ask(stream=True)).body
    with Mitmdump(backend.url, toolsim_sse_telemetry=True) as proxy, Line(proxy.url) as other:
        body = other.post("/v1/chat/completions", ask(stream=True)).body
        told = json.loads(body.partition(b"\n: toolsim ")[2].partition(b"\n")[0])
        assert (told["tool_call_count"], told["calls"], told["mode"]) == (1, ["get_weather"], "openai-json")
        assert "blocks" not in told
