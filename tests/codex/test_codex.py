"""Tests for the real Codex app-server as a text-only Responses backend."""

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import aconnect_sse
from support.each import each
from support.stub_model import Reply, StubModel, last_text, texts
from toolsim.backends.codex import backend as codex_backend
from toolsim.backends.codex.backend import CodexBackend
from toolsim.backends.loopback import Loopback

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def stream(stage: Any, **body: Any) -> list[dict[str, Any]]:
    sent = {"stream": True, **body}
    async with aconnect_sse(stage.client, "POST", "/v1/responses", json=sent) as source:
        return [json.loads(sse.data) async for sse in source.aiter_sse() if sse.data != "[DONE]"]


def tools_of(body: dict[str, Any]) -> list[Any]:
    extra = [item["tools"] for item in body["input"] if item["type"] == "additional_tools"]
    return [*body.get("tools", []), *extra]


async def test_text_reasoning_and_usage_arrive_streamed_or_not(stage: Any) -> None:
    """A streamed answer has the deltas and token counts from the model's server. A non-streamed answer has the same
    content and counts.
    """
    stage.stub.reply = lambda body: Reply(["Hel", "lo"], reasoning=["thin", "king"])
    events = await stream(stage, input="hi", reasoning={"effort": "high", "summary": "auto"})
    assert [e["delta"] for e in events if e["type"] == "response.output_text.delta"] == ["Hel", "lo"]
    assert events[-1]["type"] == "response.completed"
    final = events[-1]["response"]
    whole = (await stage.post(input="hi")).json()
    for answer in (final, whole):
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
        assert answer["output"][0]["summary"][0]["text"] == "thinking"
        assert answer["output"][1]["content"][0]["text"] == "Hello"
        assert answer["usage"]["input_tokens"] == 11
        assert answer["usage"]["output_tokens"] == 7
        assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 3
        assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == 2
    assert stage.stub.requests[0]["reasoning"] == {"effort": "high", "summary": "auto"}


@pytest.mark.parametrize("model", ["stub-1", "gpt-6.1-sol", "gpt-5.5", None])
async def test_codex_adds_nothing_to_the_prompt(
    stage: Any, model: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """For any model, Codex preserves roles, order and images, and adds neither tools nor instructions."""
    body: dict[str, Any] = {
        "instructions": "I am the instructions.",
        "input": [
            {"role": "system", "content": "I am the system."},
            {"role": "developer", "content": "# CLIENT TOOL CATALOG"},
            {"role": "user", "content": "First question"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "First answer"}]},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "See $this /file @here"},
                    {"type": "input_image", "image_url": PIXEL, "detail": "high"},
                ],
            },
        ],
    }
    await stage.text(**{"prompt": body.pop("input"), **body, **({"model": model} if model else {})})
    [seen] = stage.stub.requests
    with capsys.disabled():
        print(f"\nprompt of {seen['model']}: tools={tools_of(seen)}")
        for item in seen["input"]:
            print("  ", item.get("role"), json.dumps(item.get("content"))[:120])
    assert seen["model"] == (model or "stub-1")
    assert not any(tools_of(seen))
    assert not seen.get("instructions")
    messages = [item for item in seen["input"] if item["type"] == "message"]
    assert [(item["role"], texts(item)) for item in messages] == [
        ("developer", "I am the instructions."),
        ("developer", "I am the system."),
        ("developer", "# CLIENT TOOL CATALOG"),
        ("user", "First question"),
        ("assistant", "First answer"),
        ("user", "See $this /file @here"),
    ]
    assert messages[-1]["content"][1]["image_url"] == PIXEL


async def test_users_codex_configuration_has_no_effect(
    codex: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instructions and programs (MCP servers, notify) in the user's Codex configuration have no effect on requests.

    The configuration file is not changed.
    """
    stub = StubModel()
    await stub.start()
    home = tmp_path / "home"
    marks = [tmp_path / "mcp", tmp_path / "notified"]
    stub.write_config(home, f'[mcp_servers.mark]\ncommand = "touch"\nargs = ["{marks[0]}"]\n')
    config = home / "config.toml"
    head = f'notify = ["touch", "{marks[1]}"]\ndeveloper_instructions = "Mine."\npersonality = "friendly"\n'
    config.write_text(head + config.read_text())
    before = config.read_text()
    monkeypatch.setenv("CODEX_HOME", str(home))
    loopback = Loopback(CodexBackend((codex, "app-server")), is_open=True)
    await loopback.start()
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        answer = await client.post(f"http://127.0.0.1:{loopback.port}/v1/responses", json={"input": "hi"})
    assert answer.status_code == 200
    await asyncio.sleep(0.3)
    await loopback.stop()
    await stub.stop()
    assert [(item["role"], texts(item)) for item in stub.requests[0]["input"]] == [("user", "hi")]
    assert not any(tools_of(stub.requests[0]))
    assert not any(mark.exists() for mark in marks)
    assert config.read_text() == before


async def test_global_agents_file_is_reported_once(stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A global AGENTS.md causes exactly one warning, since no setting of Codex excludes the file from the prompt."""
    (stage.home / "AGENTS.md").write_text("Speak like a pirate.")
    await stage.text("one")
    await stage.text("two")
    lines = [record.getMessage() for record in caplog.records if "AGENTS.md" in record.getMessage()]
    assert len(lines) == 1
    # Once Codex can exclude AGENTS.md, the warning and this test can be removed.
    assert any("pirate" in texts(item) for item in stage.stub.requests[0]["input"])


async def test_output_schema_reaches_the_model_server(stage: Any) -> None:
    """A JSON schema in text.format reaches the model's server unchanged."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    await stage.text("hi", text={"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}})
    assert stage.stub.requests[0]["text"]["format"]["schema"] == schema


async def test_half_an_emoji_does_not_hang(stage: Any) -> None:
    """Half a surrogate pair, as editors produce when they cut an emoji in two, reaches the model as U+FFFD."""
    answer = await stage.client.post("/v1/responses", content=b'{"input":"half \\ud83d"}', timeout=10)
    assert answer.status_code == 200
    assert last_text(stage.stub.requests[0]) == "half \ufffd"


async def test_unanswered_request_times_out(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Codex never accepts a request, the request times out and leaves no thread. Other requests are served."""
    monkeypatch.setattr(codex_backend, "_ACCEPT_TIMEOUT", 1.0)
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(200):
        schema = {"properties": {"a": schema}}
    form = {"type": "json_schema", "name": "n", "schema": schema}
    deep = asyncio.create_task(stage.post(input="x", text={"format": form}))
    assert await stage.text("y") == "echo y "
    assert (await deep).status_code == 504
    await asyncio.sleep(0.2)
    assert (await stage.child.request("thread/loaded/list", {}))["data"] == []


async def test_refused_request_leaves_no_thread(stage: Any) -> None:
    """If Codex refuses a request after starting a thread for it, the thread is removed."""
    answer = await stage.post(input="x", reasoning={"summary": "nonsense"})
    assert answer.status_code == 400, answer.text
    await asyncio.sleep(0.2)
    assert (await stage.child.request("thread/loaded/list", {}))["data"] == []


async def test_concurrent_turns_stay_separate(stage: Any) -> None:
    """One child process runs twenty turns concurrently with a slow turn, and each answer is correct."""
    stage.stub.reply = lambda body: Reply(
        [f"<{last_text(body)}> "] * 5, delay=1.0 if last_text(body) == "slow" else 0.02
    )
    slow = asyncio.create_task(stage.text("slow"))
    began = time.monotonic()
    answers = await asyncio.gather(*(stage.text(f"number {n}") for n in range(20)))
    took = time.monotonic() - began
    assert answers == [f"<number {n}> " * 5 for n in range(20)]
    assert not slow.done()
    assert await slow == "<slow> " * 5
    print(f"20 answers in {took:.2f} s")


async def test_disconnect_interrupts_the_turn(stage: Any) -> None:
    """If a client disconnects, the connection to the model's server is closed long before the end of the answer."""
    stage.stub.reply = lambda body: Reply(["word "] * 200, delay=0.05)
    async with stage.client.stream("POST", "/v1/responses", json={"input": "long", "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if "output_text.delta" in line:
                break
    left = time.monotonic()
    await asyncio.wait_for(stage.stub.someone_left.wait(), 5)
    assert stage.stub.left == ["long"]
    assert stage.stub.written < 100
    print(f"closed after {time.monotonic() - left:.3f} s")
    stage.stub.reply = lambda body: Reply(["ok"])
    assert await stage.text("next") == "ok"


async def test_disconnect_during_thread_start_abandons_request(stage: Any) -> None:
    """If a client disconnects during thread/start, any request that has reached the model is canceled."""
    await stage.text("warm up")
    stage.stub.reply = lambda body: Reply(["word "] * 200, delay=0.05)
    with pytest.raises(httpx.ReadTimeout):
        await stage.client.post("/v1/responses", json={"input": "hasty"}, timeout=0.002)
    # Wait long enough for a busy machine, but less than the 10 s that a complete answer takes.
    async with asyncio.timeout(8):
        await asyncio.sleep(1)
        while len(stage.stub.requests) - 1 != len(stage.stub.left):
            await asyncio.sleep(0.1)
    assert all(text == "hasty" for text in stage.stub.left)


async def test_killed_child_fails_its_requests_only(stage: Any) -> None:
    """If the child process is killed, its streamed request ends with response.failed, and its non-streamed request
    fails with status 502.

    The next request succeeds.
    """
    stage.stub.reply = lambda body: Reply(["word "] * 200, delay=0.05)
    streamed = asyncio.create_task(stream(stage, input="a"))
    whole = asyncio.create_task(stage.post(input="b"))
    while stage.stub.written < 8:
        await asyncio.sleep(0.02)
    os.kill(stage.pid, signal.SIGKILL)
    events = await asyncio.wait_for(streamed, 10)
    assert events[-1]["type"] == "response.failed"
    assert "killed by signal 9" in events[-1]["response"]["error"]["message"]
    answer = await asyncio.wait_for(whole, 10)
    assert answer.status_code == 502
    assert int(answer.headers["retry-after"]) >= 1
    stage.stub.reply = lambda body: Reply(["back"])
    began = time.monotonic()
    assert await stage.text("c") == "back"
    print(f"back after {time.monotonic() - began:.2f} s")


def _living(group: int) -> list[str]:
    """Return the running processes in a process group, except zombies."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            stats.append(path.read_text())
    fields = ((stat, stat.rpartition(")")[2].split()) for stat in stats)
    return [stat for stat, (state, _, member_of, *_) in fields if int(member_of) == group and state != "Z"]


async def test_stop_ends_the_child(stage: Any) -> None:
    """Stopping the backend ends its process group, even in the middle of a turn, and removes its folder."""
    stage.stub.reply = lambda body: Reply(["word "] * 200, delay=0.05)
    asking = asyncio.create_task(stage.post(input="a"))
    while stage.stub.written < 2:
        await asyncio.sleep(0.02)
    group = stage.pid
    folder = stage.child.workdir
    began = time.monotonic()
    await stage.loopback.stop()
    print(f"stopped in {time.monotonic() - began:.2f} s")
    with pytest.raises(httpx.HTTPError):
        await asking
    assert _living(group) == []
    assert not folder.exists()


def error(message: str, code: str | None = None, kind: str = "x") -> dict[str, Any]:
    return {"error": {"message": message, "code": code, "type": kind, "param": None}}


@each(
    ("reply", "status", "code"),
    [
        (Reply(status=401, body=error("expired")), 401, "invalid_api_key"),
        (Reply(status=429, body=error("limit", kind="usage_limit_reached")), 429, "insufficient_quota"),
        (Reply(status=429, body=error("limit", "insufficient_quota")), 429, "insufficient_quota"),
        (Reply(status=429, body=error("slow down", "rate_limit_exceeded")), 429, "rate_limit_exceeded"),
        (Reply(status=404, body=error("no model", "model_not_found")), 404, "model_not_found"),
        (Reply(status=400, body=error("bad thing", "bad")), 400, "bad"),
        (Reply(status=500, body=error("boom")), 502, "server_error"),
        (Reply(status=503, body=error("full", "server_is_overloaded")), 503, "server_is_overloaded"),
        (
            Reply([], end="failed", error={"code": "context_length_exceeded", "message": "too long"}),
            400,
            "context_length_exceeded",
        ),
        (Reply(["x"], end="failed", error={"code": "insufficient_quota", "message": "q"}), 429, "insufficient_quota"),
        (Reply(["x"], end=""), 502, "server_error"),
    ],
)
async def test_turn_errors_have_openais_format(stage: Any, reply: Reply, status: int, code: str) -> None:
    """An error before the first text is returned as an HTTP error status, and a later error as response.failed."""
    stage.stub.reply = lambda body: reply
    answer = await stage.post(input="x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    if reply.pieces and reply.status == 200:
        events = await stream(stage, input="x")
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["code"] == code
    else:
        streamed = await stage.post(input="x", stream=True)
        assert streamed.status_code == status


@each("pieces", [["half"], []], ids=["half", "nothing"])
@each(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_truncated_answer_is_incomplete(stage: Any, pieces: list[str], finish: Any, reason: str) -> None:
    """A truncated answer is marked incomplete and keeps its text, even empty text, so clients do not retry it."""
    stage.stub.reply = lambda body: Reply(pieces, end="incomplete", reason=finish)
    answer = (await stage.post(input="x")).json()
    assert answer["status"] == "incomplete", answer
    assert answer["incomplete_details"] == {"reason": reason}
    assert [part["text"] for item in answer["output"] for part in item["content"]] == pieces


@pytest.mark.parametrize("model", ["stub-1", "gpt-5.5"])
async def test_long_conversation_is_never_summarized(stage: Any, model: str) -> None:
    """Codex never summarizes a long conversation: either the request fails, or the model receives all its messages."""
    prompt = [
        {"role": "user", "content": "word " * 300_000},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": "END"},
    ]
    answer = await stage.post(model=model, input=prompt)
    if answer.status_code == 200:
        assert len(stage.stub.requests) == 1
        assert len(texts(stage.stub.requests[0]["input"][0])) == 1_500_000
    else:
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    print(model, answer.status_code)


async def test_unknown_tool_calls_do_not_loop_endlessly(stage: Any) -> None:
    """If the model calls an unknown tool, Codex queries the model again, but only until the model writes text or a
    limit on queries is reached.
    """
    call = {"type": "function_call", "name": "shell", "call_id": "c1", "arguments": "{}"}
    stage.stub.reply = lambda body: Reply(["said"], calls=[call])
    assert await stage.text("x") == "said"
    stage.stub.requests.clear()
    stage.stub.reply = lambda body: Reply([], calls=[call])
    answer = await asyncio.wait_for(stage.post(input="x"), 20)
    assert answer.status_code == 502
    assert len(stage.stub.requests) < 10


async def test_model_list_begins_with_configured_model(stage: Any) -> None:
    listed = (await stage.client.get("/v1/models")).json()["data"]
    assert listed[0]["id"] == "stub-1"
    assert len(listed) > 1


async def test_threads_are_unloaded_after_requests(stage: Any) -> None:
    """Each thread is unloaded after its request."""
    await asyncio.gather(*(stage.text(f"{n}") for n in range(5)))
    child = stage.child
    for _ in range(50):
        loaded = (await child.request("thread/loaded/list", {}))["data"]
        if not loaded:
            break
        await asyncio.sleep(0.1)
    assert loaded == []


async def failing(command: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> tuple[httpx.Response, str]:
    loopback = Loopback(CodexBackend(command), is_open=True)
    await loopback.start()
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        answer = await client.post(f"http://127.0.0.1:{loopback.port}/v1/responses", json={"input": "hi"})
        await asyncio.sleep(1)
    await loopback.stop()
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == 1, lines
    assert "\n" not in lines[0]
    return answer, lines[0]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("no-such-binary", "app-server"), "install Codex"),
        (("sh", "-c", "echo unrecognized subcommand >&2; exit 2"), "exited with status 2: unrecognized subcommand"),
    ],
)
async def test_codex_that_cannot_start_is_a_503(
    command: tuple[str, ...], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If Codex cannot start, one line is logged, and the request fails with status 503, the logged message and a
    Retry-After header.
    """
    answer, line = await failing(command, caplog)
    assert words in line
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert words in answer.json()["error"]["message"]


async def test_codex_without_login_is_a_503(
    codex: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If Codex is not logged in, requests fail with 503, and the log recommends ``codex login``."""
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    answer, line = await failing((codex, "app-server"), caplog)
    assert "codex login" in line
    assert answer.status_code == 503
