"""Tests for the reports of exchanges in the log, flow files, headers and metrics. Reports never contain argument
values.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.io import FlowReader
from proxy.conftest import CALL
from support.line import Line
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend, stream_of
from support.wire import chat_whole
from toolsim.version import __version__


async def whole(answer: Answer) -> None:
    await answer.whole(chat_whole(f"Hi {CALL} tail"), Content_Type="application/json")


def turn_lines(proxy: Mitmdump) -> list[Any]:
    lines = [json.loads(line) for line in proxy.log().splitlines() if line.startswith("{")]
    return [line for line in lines if "tool_call_count" in line]


def test_each_exchange_is_reported_once(backend: RawBackend, tmp_path: Path, ask: Any) -> None:
    """Each exchange is reported in one log line. The flow, the headers and the metrics contain the same figures."""
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
        lines = turn_lines(proxy)
        assert [entry["status"] for entry in lines] == [200, 200, 400, 200]
        assert [entry["tool_call_count"] for entry in lines] == [1, 1, 0, 0]
        assert lines[0]["calls"] == lines[1]["calls"] == lines[0]["tools"] == ["get_weather"]
        assert lines[0]["tool_cutoff"] == lines[1]["tool_cutoff"]
        assert lines[2]["error"]
        assert [entry["level"] for entry in lines] == ["info", "info", "warning", "info"]
        assert "Bonn" not in proxy.log()
        text = line.request("GET", "/toolsim/metrics").body.decode()
    assert 'toolsim_exchanges_total{client="chat",backend="chat",stream="true",outcome="ok"} 1' in text
    assert 'toolsim_tool_calls_total{client="chat"} 2' in text
    assert "toolsim_exchanges_in_progress 0" in text
    assert "Bonn" not in text + str(reply.headers)

    with saved.open("rb") as file:
        flows = [flow for flow in FlowReader(file).stream() if isinstance(flow, HTTPFlow)]
    assert [flow.metadata.get("toolsim", {}).get("status") for flow in flows[:4]] == [200, 200, 400, None]
    assert "Bonn" not in str([(flow.comment, flow.metadata.get("toolsim")) for flow in flows])
    assert flows[0].metadata["toolsim"]["calls"] == ["get_weather"]
    assert flows[0].comment.startswith("1 call: get_weather · cut off: ")
    assert flows[0].comment.endswith(" · #1 turn 1 · m chat · “hi”")
    assert b"# CLIENT TOOL CATALOG" in (flows[0].request.content or b"")
    flows[0].revert()  # type: ignore[no-untyped-call]
    assert json.loads(flows[0].request.content or b"") == ask()


def test_stream_comment_is_optional(backend: RawBackend, line: Line, ask: Any) -> None:
    """A stream contains a comment with the report only if an option enables it."""
    backend.play(stream_of(CALL))
    assert b"\n:" not in b"\n" + line.post("/v1/chat/completions", ask(stream=True)).body
    with Mitmdump(backend.url, toolsim_sse_telemetry=True) as proxy, Line(proxy.url) as other:
        body = other.post("/v1/chat/completions", ask(stream=True)).body
        comment = json.loads(body.partition(b"\n: ")[2].partition(b"\n")[0])
        assert (comment["tool_call_count"], comment["calls"], comment["mode"]) == (1, ["get_weather"], "openai-json")
        # These fields have the names that toolsim's predecessor used.
        assert (comment["tool_call_truncated"], comment["stop_after_tools_mode"]) == (False, "burst")
        assert "blocks" not in comment


@pytest.mark.slow
def test_log_has_one_line_per_turn(backend: RawBackend, ask: Any) -> None:
    """By default, the log contains only the startup lines and one line for each turn, with or without tools."""

    async def models(answer: Answer) -> None:
        await answer.whole(b'{"data": [{"id": "llama3"}]}', Content_Type="application/json")

    backend.play(models)
    with Mitmdump(backend.url, toolsim_log="text") as proxy, Line(proxy.url) as line:
        proxy.wait_for("models: llama3")
        backend.play(stream_of("Hi ", CALL))
        line.post("/v1/chat/completions", ask(stream=True))
        backend.play(whole)
        line.post("/v1/chat/completions", ask(tools=[]))
        line.post("/v1/chat/completions", ask(tools=1))
        line.request("GET", "/toolsim/metrics")
        proxy.wait_for("✗")
        lines = [re.sub(r"^\[[\d:.]+\]\s*|[\d.]+ s$", "", entry) for entry in proxy.log().splitlines()]
    assert lines[2].startswith(f"toolsim {__version__} in front of {backend.url}/v1")
    assert lines[3:7] == [
        f"  base URL for clients  {proxy.url}/v1  (key: any)",
        f"  overview              {proxy.url}/toolsim/",
        f"  metrics               {proxy.url}/toolsim/metrics",
        "models: llama3",
    ]
    assert lines[7:] == [
        "✓ m · chat stream · 1 call get_weather · ",
        "✓ m · chat · no tools · ",
        "✗ m · chat · HTTP 400 Invalid type for 'tools': expected an array, but got an integer instead. · ",
    ]


@pytest.mark.slow
def test_log_has_one_line_per_round(backend: RawBackend, ask: Any) -> None:
    """In the text log, an answer in several rounds produces one line for each round, and no lines about connections."""
    backend.play(stream_of(CALL.removesuffix("}</tool_call>")))
    with Mitmdump(backend.url, toolsim_log="text", toolsim_retry=1) as proxy, Line(proxy.url) as line:
        proxy.wait_for("is this an API")  # This startup line about the backend can be logged late.
        line.post("/v1/chat/completions", ask(stream=True))
        proxy.wait_for("m · chat stream · [^\n]*rounds")
        lines = [re.sub(r"^\[[\d:.]+\]\s*", "", entry) for entry in proxy.log().splitlines()]
    turns = [entry for entry in lines if " m · chat stream · " in entry]
    assert lines[-3:] == turns
    assert ["round 1" in turns[0], "round 2" in turns[1]] == [True, True]


def test_message_of_a_backend_error_is_logged(backend: RawBackend, ask: Any) -> None:
    """The error message of a backend is logged even if the request was not rewritten."""

    async def refuses(answer: Answer) -> None:
        error = b'{"error": {"message": "model \'m\' not found"}}'
        await answer.whole(error, status=404, Content_Type="application/json")

    backend.play(refuses)
    with Mitmdump(backend.url) as proxy, Line(proxy.url) as line:
        for tools in (ask()["tools"], []):
            assert line.post("/v1/chat/completions", ask(tools=tools)).json()["error"]["message"].startswith("model")
        proxy.wait_for(r"model 'm' not found", count=2)
        assert [entry["problem"] for entry in turn_lines(proxy)] == ["model 'm' not found"] * 2


TWO = '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Paris\\"}"}</tool_call>'


async def two_calls(answer: Answer) -> None:
    await answer.whole(chat_whole(f"{CALL}{TWO}"), Content_Type="application/json")


@pytest.mark.parametrize(("stop", "cutoff"), [("off", None), ("on", "more than 1 calls")])
def test_calls_over_the_limit_are_reported(backend: RawBackend, ask: Any, stop: str, cutoff: str | None) -> None:
    """If an answer has more calls than the limit, the log, a header and the metrics report this. They report a cutoff
    only if the turn was ended early.
    """
    options = {"toolsim_stop_after_tools": stop, "toolsim_tool_block_max": 1, "toolsim_log": "json"}
    with Mitmdump(backend.url, **options) as proxy, Line(proxy.url) as line:
        backend.play(two_calls)
        unanswered = {"id": "call_007", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        history = [*ask()["messages"], {"role": "assistant", "tool_calls": [unanswered]}]
        reply = line.post("/v1/chat/completions", ask(messages=history))
        (entry,) = turn_lines(proxy)
        text = line.request("GET", "/toolsim/metrics").body.decode()
    assert reply.headers["x-toolsim-truncated"] == "true"
    assert reply.headers.get("x-toolsim-tool-cutoff") == entry.get("tool_cutoff") == cutoff
    assert [code.partition(":")[0] for code in entry["dropped_calls"]] == ["OVER_LIMIT"]
    assert (entry["has_tool_calls"], entry["tool_call_ids"]) == (True, ["call_008"])
    assert entry["stop_after_tools_mode"] == ("burst" if stop == "on" else "off")
    assert entry["warnings"] == ["UNANSWERED_CALL:get_weather"]
    assert ('toolsim_tool_cutoffs_total{reason="more than 1 calls"} 1' in text) == (cutoff is not None)
    assert 'toolsim_dropped_calls_total{reason="OVER_LIMIT"} 1' in text


def test_lost_calls_are_reported_with_their_own_turn(backend: RawBackend, ask: Any, tmp_path: Path) -> None:
    """If the client continues the conversation without the output of a call, a warning names the turn in which the call
    was made.
    """
    made = '{"name":"get_weather","arguments":{"city":"Bonn"}}'
    saved = tmp_path / "saved.flow"

    def following(message: Any, outputs: int) -> list[Any]:
        answered = [{"role": "tool", "tool_call_id": call["id"], "content": "18"} for call in message["tool_calls"]]
        return [*ask()["messages"], message, *answered[:outputs], {"role": "user", "content": "And?"}]

    with Mitmdump(backend.url, arguments=("-w", str(saved))) as proxy, Line(proxy.url) as line:
        for question, outputs in (("lost", 0), ("half", 1), ("all", 2)):
            first = ask(messages=[{"role": "user", "content": question}])
            backend.play(stream_of(f"<tool_call>[{made},{made}]</tool_call>"))
            message = line.post("/v1/chat/completions", first).json()["choices"][0]["message"]
            history = [*first["messages"], *following(message, outputs)[1:]]
            backend.play(stream_of("Well."))
            line.post("/v1/chat/completions", ask(messages=history))
        lines = [json.loads(each) for each in proxy.log().splitlines() if each.startswith("{")]
    found = [(each["place"], each["lost_calls"], each["level"]) for each in lines if "lost_calls" in each]
    assert found == [
        ("#1 turn 1", ["call_001", "call_002"], "warning"),
        ("#2 turn 1", ["call_002"], "warning"),
    ]
