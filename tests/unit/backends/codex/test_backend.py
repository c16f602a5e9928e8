"""Tests for the Codex backend with a stand-in for Codex's app-server. ``tests/codex`` uses the real program."""

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest
from toolsim.backends.codex import backend
from toolsim.backends.codex.backend import CodexBackend
from toolsim.core.events import BackendEvent, Closed, Failed, Finished, Opened, TextDelta
from toolsim.wire.apis import RESPONSES

SERVER = """
import json, sys, time
LOGIN, THINKS = json.loads(sys.argv[1])
def say(**message): print(json.dumps(message), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, params, number = message["method"], message.get("params"), message.get("id")
    if method == "initialize": say(id=number, result={"userAgent": "toolsim/0.160.0 (x)"})
    elif method == "account/read":
        say(id=99, method="item/tool/call", params={})
        refused = json.loads(sys.stdin.readline())
        assert refused["id"] == 99 and "error" in refused
        say(id=number, result={"requiresOpenaiAuth": not LOGIN, "account": None})
    elif method == "thread/start": say(id=number, result={"thread": {"id": "t"}, "model": "old"})
    elif method == "turn/start":
        say(id=number, result={"turn": {"id": "u"}})
        time.sleep(THINKS)
        text = json.dumps(params["input"])
        say(method="item/agentMessage/delta", params={"threadId": "t", "itemId": "i", "delta": text})
        say(method="item/agentMessage/delta", params={"threadId": "other", "itemId": "i", "delta": "not ours"})
        say(method="turn/completed", params={"threadId": "t", "turn": {"status": "completed"}})
    elif method == "thread/inject_items": say(id=number, result={})
    elif number is not None:
        say(id=number, error={"code": -32600, "message": f"Invalid request: unknown variant `{method}`, expected"})
"""


async def ask(
    path: Path, *, login: bool = True, thinks: float = 0, times: list[float] | None = None
) -> list[BackendEvent]:
    script = path / "server.py"
    script.write_text(SERVER)
    codex = CodexBackend((sys.executable, str(script), json.dumps([login, thinks])))
    await codex.start()
    request = RESPONSES.read({"instructions": "I", "input": "hi"})
    try:
        async with asyncio.timeout(20):
            events = []
            async for event in codex.answer(request):
                events.append(event)
                if times is not None:
                    times.append(time.monotonic())
            return events
    finally:
        await codex.stop()


async def test_conversation_is_injected_instead_of_sent_as_input(tmp_path: Path) -> None:
    """The client's conversation is injected into the Codex thread instead of being sent as input. Notifications for
    other threads are ignored.
    """
    assert await ask(tmp_path) == [Opened(model="old"), TextDelta("[]"), Finished("stop"), Closed()]


@pytest.mark.slow
async def test_long_reasoning_does_not_delay_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the model reasons for a long time, the backend opens the answer before the first text arrives. This way, the
    client receives the headers in time.
    """
    monkeypatch.setattr(backend, "_HEADERS_TIMEOUT", 0.1)
    times: list[float] = []
    events = await ask(tmp_path, thinks=1.0, times=times)
    assert [type(event) for event in events[:2]] == [Opened, TextDelta]
    assert times[1] - times[0] > 0.5


async def test_missing_login_is_503(tmp_path: Path) -> None:
    """If the user is not logged in to Codex, requests fail with status 503, and the message gives the login command."""
    [event] = await ask(tmp_path, login=False)
    assert isinstance(event, Failed)
    assert event.error.status == 503
    assert "codex login" in event.error.message
