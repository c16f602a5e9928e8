"""Tests for retries: the prompts for the model, the client's answer, and the recordings."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.io import read_flows_from_paths
from support.line import Line, Reply, arrivals
from support.mitmdump import Mitmdump
from support.processes import is_busy
from support.raw_backend import Answer, RawBackend
from support.text_backend import TextBackend, Turn, refuses, says
from support.wire import chat_frame

DAYS = {
    "type": "object",
    "properties": {"days": {"type": "integer"}},
    "required": ["days"],
    "additionalProperties": False,
}
GOOD = '<tool_call>{"name":"forecast","arguments":{"days":3}}</tool_call>'
BAD = GOOD.replace("3", '"three"')
MISFIT = BAD.removeprefix("<tool_call>").removesuffix("</tool_call>")
# For each fault: the model's first answer, the error record that the model receives, and the reason in the record.
WAYS: dict[str, tuple[Turn, str, str]] = {
    "schema": (says(BAD), "SCHEMA_MISMATCH name=forecast", "/days: got string, expected integer"),
    "malformed": (says(GOOD.replace(":3", " 3")), "MALFORMED_JSON name=forecast", "one JSON object"),
    "untagged": (
        says('{"name":"forecast","arguments":{"days":<integer>}}'),
        "MALFORMED_JSON name=forecast",
        "<integer> is a placeholder for a value",
    ),
    "untagged misfit": (says(MISFIT), "SCHEMA_MISMATCH name=forecast", "/days: got string, expected integer"),
    "unclosed": (says(GOOD.removesuffix("}</tool_call>")), "MALFORMED_JSON", "up to its closing tag"),
    "unknown": (says(GOOD.replace("forecast", "wind")), "UNKNOWN_TOOL name=wind", "on offer: forecast"),
    "masked": (says(GOOD.replace("forecast", "secret")), "MASKED_TOOL name=secret", "on offer: forecast"),
    "large": (says(GOOD.replace("3", "3" * 300)), "ARGUMENTS_TOO_LARGE name=forecast", "at most 200 bytes"),
    "required": (says("I will not."), "NO_CALL", "because this answer must contain one"),
}


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend(chunk_size=5) as backend:
        yield backend


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rounds")


@pytest.fixture(scope="module")
def proxy(backend: TextBackend, folder: Path) -> Iterator[Mitmdump]:
    with Mitmdump(
        backend.url,
        toolsim_retry=2,
        toolsim_fix_empty_final="on",
        toolsim_tool_allowlist="!secret",
        toolsim_max_tool_bytes=200,
        toolsim_capture=str(folder / "captured"),
        arguments=["-w", str(folder / "flows")],
    ) as proxy:
        yield proxy


@pytest.fixture
def line(proxy: Mitmdump) -> Iterator[Line]:
    with Line(proxy.url) as line:
        yield line


def body(api: str, *, stream: bool, strict: bool = True, **more: Any) -> dict[str, Any]:
    tools: list[dict[str, Any]] = [
        {"name": "forecast", "strict": strict, "parameters": DAYS},
        {"name": "secret", "parameters": {"type": "object"}},
    ]
    if api == "chat/completions":
        asked = {"messages": [{"role": "user", "content": "hi"}], "tools": [_wrapped(tool) for tool in tools]}
    else:
        asked = {"input": "hi", "tools": [{"type": "function", **tool} for tool in tools]}
    return {"model": "m", "stream": stream, **asked, **more}


def _wrapped(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": tool}


def calls_of(reply: Reply, api: str, *, stream: bool) -> list[tuple[str, str]]:
    assert reply.status == 200, reply.body
    if api == "responses":
        items = (
            [event["item"] for event in reply.events()[:-1] if event["type"] == "response.output_item.done"]
            if stream
            else reply.json()["output"]
        )
        return [(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
    if not stream:
        calls = reply.json()["choices"][0]["message"].get("tool_calls", [])
        return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    deltas = [event["choices"][0]["delta"] for event in reply.events()[:-1]]
    parts = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    return [("".join(part.get("name", "") for part in parts), "".join(part["arguments"] for part in parts))]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat/completions", "responses"])
@pytest.mark.parametrize("way", WAYS)
def test_retry_gives_the_exact_reason(way: str, api: str, stream: bool, line: Line, backend: TextBackend) -> None:
    """After a faulty call, the model is shown its answer and the exact reason. The client receives a valid call from
    the retry.
    """
    first, record, reason = WAYS[way]
    backend.play([first, says(GOOD)], chunk_size=5)
    more = {"tool_choice": "required"} if way == "required" else {}
    reply = line.post(f"/v1/{api}", body(api, stream=stream, **more))
    assert calls_of(reply, api, stream=stream) == [("forecast", '{"days":3}')]
    _, second = backend.exchanges
    (role, words), (last_role, error_record) = second.transcript[-2:]
    assert (role, words) == ("assistant", first.text)
    assert last_role == "user"
    assert error_record.startswith(f"[function_call_error reason={record}")
    assert reason in error_record.splitlines()[0]
    if not stream:
        assert reply.headers["x-toolsim-tool-call-count"] == "1"


@pytest.mark.slow
def test_truncated_call_is_continued(line: Line, backend: TextBackend) -> None:
    """If a call is cut off, a second round continues it. The client receives a single stream with consecutive sequence
    numbers.
    """
    backend.play([says(GOOD[:40], ending="length"), says(GOOD[40:])], chunk_size=5)
    reply = line.post("/v1/responses", body("responses", stream=True))
    assert calls_of(reply, "responses", stream=True) == [("forecast", '{"days":3}')]
    events = reply.events()[:-1]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    assert "CALL_CUT_OFF" in backend.exchanges[1].transcript[-1][1]


@pytest.mark.slow
def test_retries_are_limited_and_sent_text_stays(line: Line, backend: TextBackend) -> None:
    """If both retries fail, the client receives an error. The text that was sent before the retries is not
    retracted.
    """
    backend.play([says("Well. ", BAD), says(BAD), says(BAD), says(GOOD)], chunk_size=5)
    reply = line.post("/v1/chat/completions", body("chat/completions", stream=True))
    *deltas, error = reply.events()
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in deltas) == "Well. "
    assert error["error"]["code"] == "invalid_tool_call"
    assert len(backend.exchanges) == 3


CALL = {"id": "call_001", "type": "function", "function": {"name": "forecast", "arguments": '{"days":3}'}}
HISTORY = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_001", "content": "rain"},
]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_answer_that_is_not_the_required_json(stream: bool, line: Line, backend: TextBackend) -> None:
    """If the model answers a tool output with text instead of the required JSON, the next round enforces the JSON
    format. The client receives only the JSON.
    """
    form = {"type": "json_schema", "json_schema": {"name": "report", "schema": {"type": "object", "required": ["sky"]}}}
    backend.play([says(BAD), says("It will rain."), says('{"sky":"rain"}')], chunk_size=5)
    asked = body("chat/completions", stream=stream, messages=HISTORY, response_format=form)
    reply = line.post("/v1/chat/completions", asked)
    if stream:
        text = "".join(event["choices"][0]["delta"].get("content") or "" for event in reply.events()[:-1])
    else:
        text = reply.json()["choices"][0]["message"]["content"]
    assert text == '{"sky":"rain"}'
    assert [exchange.body.get("response_format") for exchange in backend.exchanges] == [None, None, form]
    assert backend.exchanges[2].transcript[-1][1].startswith("[function_call_error reason=ANSWER_MISMATCH")


@pytest.mark.slow
def test_empty_answer_after_an_output(line: Line, backend: TextBackend) -> None:
    """If the answer to a tool output is empty, the next prompt forbids calls, and the client receives the text that the
    model then writes.
    """
    backend.play([says(""), says("It will rain.")])
    reply = line.post("/v1/chat/completions", body("chat/completions", stream=False, messages=HISTORY))
    assert reply.json()["choices"][0]["message"]["content"] == "It will rain."
    transcripts = [str(exchange.transcript) for exchange in backend.exchanges]
    assert all("CLIENT TOOL CATALOG" in text for text in transcripts)
    assert ["You may call no tool in this answer" in text for text in transcripts] == [False, True]


@pytest.mark.slow
def test_large_request_is_not_retried(line: Line, backend: TextBackend, proxy: Mitmdump) -> None:
    """Requests over 1 MiB are not retried, and the log states this."""
    backend.play([says(MISFIT), says(GOOD)])
    asked = body("chat/completions", stream=False, messages=[{"role": "user", "content": "x" * 1024 * 1024}])
    reply = line.post("/v1/chat/completions", asked)
    assert reply.json()["choices"][0]["message"]["content"] == MISFIT
    assert len(backend.exchanges) == 1
    proxy.wait_for(r'"ROUNDS_OFF:request_too_large"')


@pytest.mark.slow
def test_errors_pass_and_failed_round_changes_nothing(line: Line, backend: TextBackend) -> None:
    """An error in the first round reaches the client unchanged. If the second round fails, the client receives the
    answer from the first round.
    """
    backend.play([refuses(429, "Slow down.")])
    refused = line.post("/v1/chat/completions", body("chat/completions", stream=True))
    assert (refused.status, refused.json()["error"]["message"]) == (429, "Slow down.")
    backend.play([says("Well."), refuses(500, "Gone.")])
    answered = line.post("/v1/responses", body("responses", stream=False, tool_choice="required"))
    assert answered.json()["output"][0]["content"][0]["text"] == "Well."
    bad = line.post("/v1/responses", body("responses", stream=False, tools=[{"type": "function"}]))
    assert bad.status == 400


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_stops_the_round(stream: bool, proxy: Mitmdump, backend: TextBackend) -> None:
    """If the client disconnects, the current request to the backend is aborted, and no further request is sent."""
    backend.play([says(BAD), says("a ", "b ", ending="hang"), says(GOOD)], chunk_size=5)
    with Line(proxy.url) as line:
        line.send("POST", "/v1/responses", body("responses", stream=stream))
        backend.wait_for(2)
    assert backend.exchanges[1].over.wait(10)
    time.sleep(0.3)
    assert len(backend.exchanges) == 2


@pytest.mark.slow
def test_text_of_a_round_is_streamed(line: Line, backend: TextBackend) -> None:
    """If an answer can take several rounds, the text of a round is streamed to the client while the model writes it."""
    backend.play([says("one ", "two ", "three", pause=0.4)])
    response = line.begin("POST", "/v1/responses", body("responses", stream=True))
    times = [when for when, data in arrivals(response) if b"output_text.delta" in data]
    assert times[-1] - times[0] > 0.5


@pytest.mark.slow
def test_each_round_is_a_flow_that_replays(backend: TextBackend, tmp_path: Path) -> None:
    """The flow of the client contains its request and the final answer.

    Each round has a separate flow, which contains the ID of the client's flow and can be replayed.
    """
    with Mitmdump(
        backend.url,
        toolsim_retry=1,
        toolsim_backend="responses",
        toolsim_capture=str(tmp_path / "captured"),
        arguments=["-w", str(tmp_path / "flows")],
    ) as proxy:
        backend.play([says("Well. ", BAD), says(GOOD)], chunk_size=5)
        with Line(proxy.url) as line:
            sent = body("chat/completions", stream=True)
            line.post("/v1/chat/completions", sent)
        proxy.wait_for(r'"rounds": 2')
        log = proxy.log()
    flows = [flow for flow in read_flows_from_paths([tmp_path / "flows"]) if isinstance(flow, HTTPFlow)]
    whole = next(flow for flow in flows if "rounds" in flow.metadata["toolsim"])
    first, second = sorted(
        (flow for flow in flows if flow is not whole), key=lambda flow: flow.metadata["toolsim"]["round"]
    )
    assert json.loads(whole.request.content or b"") == sent
    assert f"127.0.0.1:{backend.port}" in whole.request.url
    assert "toolsim-rounds" not in whole.request.headers
    assert whole.metadata["toolsim"]["retries"] == ["SCHEMA_MISMATCH:forecast"]
    assert whole.response is not None
    assert b'"tool_calls"' in (whole.response.content or b"")
    assert "2 rounds" in whole.comment
    for number, flow in enumerate((first, second), 1):
        assert flow.metadata["toolsim"]["part_of"] == whole.id
        assert f"round {number} of {whole.id}" in flow.comment
        assert b"CLIENT TOOL CATALOG" in (flow.request.content or b"")
        assert flow.request.path == "/v1/responses"
    assert len(re.findall(r'"part_of": "', log)) == 2
    replay = [sys.executable, "-m", "toolsim.recordings.replay", str(tmp_path / "captured")]
    replayed = subprocess.run(replay, capture_output=True, text=True, check=False)
    assert replayed.stdout.endswith("2 recorded exchanges, none differ\n"), replayed.stdout + replayed.stderr


@pytest.mark.slow
def test_rounds_with_a_builtin_backend_and_key() -> None:
    """With a built-in backend and a key, rounds work for a client that sends the key. Other clients are refused."""
    options: dict[str, Any] = {"toolsim_backend": "scripted", "toolsim_api_key": "k"}
    with Mitmdump(None, toolsim_retry=1, **options) as it, Line(it.url) as line:
        question = {"input": "What is the forecast for 3 days? [badly]"}
        reply = line.post("/v1/responses", body("responses", stream=False, **question), authorization="Bearer k")
        assert calls_of(reply, "responses", stream=False) == [("forecast", '{"days":3}')]
        assert line.post("/v1/responses", body("responses", stream=False)).status == 401


@pytest.mark.slow
def test_rounds_with_large_bodies_and_proxy_authentication(backend: TextBackend) -> None:
    """Rounds also work if bodies are so large that a worker rewrites them, and if mitmproxy requires proxy
    authentication.
    """
    words = [{"role": "user", "content": "word " * 20_000}]
    long = says("Well. " * 8_000 + BAD)
    with Mitmdump(backend.url, toolsim_retry=1, proxyauth="me:secret") as proxy, Line(proxy.url) as line:
        backend.play([long, says(GOOD)])
        asked = body("chat/completions", stream=False, messages=words)
        assert line.post("/v1/chat/completions", asked).status == 401
        reply = line.post("/v1/chat/completions", asked, authorization="Basic bWU6c2VjcmV0")
        assert calls_of(reply, "chat/completions", stream=False) == [("forecast", '{"days":3}')]
        assert [len(exchange.transcript) for exchange in backend.exchanges] == [2, 4]
        assert reply.headers["x-toolsim-strict-failures"] == "1"


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("size", [1_000, 1_000_000])
@pytest.mark.parametrize("retry", [0, 1])
def test_unread_data_stops_the_backend(retry: int, size: int) -> None:
    """If a client does not read, the proxy reads from the backend only up to a limit. When the client reads again, it
    receives everything.
    """
    count = 24_000_000 // size
    piece = chat_frame("x" * size)

    async def endless(answer: Answer) -> None:
        await answer.head(Content_Type="text/event-stream")
        for _ in range(count):
            await answer.send(piece)
        await answer.send(chat_frame(finish="stop") + b"data: [DONE]\n\n")
        await answer.end()

    with RawBackend() as backend, Mitmdump(backend.url, toolsim_retry=retry) as proxy:
        backend.play(endless)
        asked = json.dumps(body("chat/completions", stream=True, strict=False)).encode()
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as client:
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(asked), asked)
            )
            sent, end = -1, time.monotonic() + 60
            # On a busy machine, the proxy might not read for a second. So wait until it is idle.
            while sent < 1 or sent != backend.asked[0].sent or is_busy(proxy.pid):
                assert time.monotonic() < end
                sent = backend.asked[0].sent if backend.asked else -1
            # The operating system can buffer 6 to 10 MB between the backend and the proxy.
            assert sent * len(piece) < 16_000_000
            received = 0
            while data := client.recv(1 << 20):
                received += data.count(b"x")
        assert received >= count * size
