"""Tests for a file with API keys: names, owners, limits, wrong keys, and changes to the file."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from memory.test_background import ended
from proxy.test_websocket import connected, words
from support.line import Line
from support.mitmdump import MITMDUMP, Mitmdump
from support.raw_backend import Answer, Behaviour, RawBackend
from support.text_backend import TextBackend, says
from support.wire import DONE, chat_frame
from toolsim.proxy.refusals import SOURCE_LINES
from toolsim.proxy.wrong_keys import ATTEMPTS, SECONDS_PER_ATTEMPT

ALICE, BOB, KARL = "key-of-alice", "key-of-bob", "key-of-karl"
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"model": "m", "input": "Hi"},
    "/v1/messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
}
pytestmark = pytest.mark.slow


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def written(folder: Path, text: str) -> Path:
    file = folder / "keys"
    file.write_text(text)
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def text_backend() -> Iterator[TextBackend]:
    with TextBackend() as backend:
        yield backend


def held_while(is_held: Callable[[], bool], *texts: str) -> Behaviour:
    """Return a backend that streams the given texts. It holds the last one back while ``is_held`` returns True."""

    async def behave(answer: Answer) -> None:
        await answer.head(Content_Type="text/event-stream")
        for text in texts[:-1]:
            await answer.send(chat_frame(text))
        while is_held():
            await asyncio.sleep(0.02)
        for data in (chat_frame(texts[-1]), chat_frame(finish="stop"), DONE):
            await answer.send(data)
        await answer.end()

    return behave


def rows(proxy: Mitmdump) -> list[dict[str, Any]]:
    return [json.loads(line) for line in proxy.log().splitlines() if line.startswith("{")]


def test_user_is_in_log_and_metrics(text_backend: TextBackend, tmp_path: Path) -> None:
    """The log and the metrics name the user. Stored answers belong to the user, even if the user's key changes. The
    backend does not receive the key.
    """
    keys = written(tmp_path, f"alice {ALICE}\nbob {BOB}\n")
    text_backend.play(lambda _: says("Hello."))
    with Mitmdump(
        text_backend.url, toolsim_backend="chat", toolsim_api_key=f"file:{keys}", toolsim_store="memory"
    ) as proxy:
        with Line(proxy.url) as line:
            for path, body in BODIES.items():
                for headers in (bearer(ALICE), {"x-api-key": BOB}):
                    assert line.post(path, body, **headers).status == 200
                    assert not {"authorization", "x-api-key"} & set(text_backend.exchanges[-1].headers)
                assert line.post(path, body, **bearer("key")).status == 401
            stored = line.post("/v1/responses", BODIES["/v1/responses"], **bearer(ALICE)).json()["id"]
            keys.write_text(f"bob {BOB}\nalice {KARL}\n")
            assert line.request("GET", f"/v1/responses/{stored}", **bearer(BOB)).status == 404
            assert line.request("GET", f"/v1/responses/{stored}", **bearer(ALICE)).status == 401
            assert line.request("GET", f"/v1/responses/{stored}", **bearer(KARL)).json()["id"] == stored
            metrics = line.request("GET", "/toolsim/metrics", **bearer(BOB)).body.decode()
        turns = [row["user"] for row in rows(proxy) if row.get("client")]
    assert turns == ["alice", "bob"] * 3 + ["alice"]
    assert 'toolsim_user_exchanges_total{user="alice",outcome="ok"} 4' in metrics
    assert 'toolsim_user_exchanges_total{user="bob",outcome="ok"} 3' in metrics
    assert 'toolsim_user_tokens_total{user="bob",kind="input"}' in metrics


def test_user_removed_while_serving(backend: RawBackend, tmp_path: Path) -> None:
    """If a user is removed from the file, the current stream continues, but an existing WebSocket connection accepts no
    more turns.
    """
    keys = written(tmp_path, f"alice {ALICE}\nbob {BOB}\n")
    backend.play(held_while(lambda: keys.read_text().startswith("alice"), "Hel", "lo."))
    body = BODIES["/v1/chat/completions"] | {"stream": True}
    with (
        Mitmdump(backend.url, toolsim_backend="chat", toolsim_api_key=f"file:{keys}") as proxy,
        Line(proxy.url) as line,
        Line(proxy.url) as other,
        connected(proxy, authorization=f"Bearer {ALICE}") as client,
    ):
        stream = line.begin("POST", "/v1/chat/completions", body, **bearer(ALICE))
        assert b"Hel" in stream.readline()
        assert other.request("GET", "/v1/models", **bearer(KARL)).status == 401
        keys.write_text(f"karl {KARL}\nbob {BOB}\n")
        assert stream.read().endswith(DONE)
        assert line.post("/v1/chat/completions", body, **bearer(ALICE)).status == 401
        assert other.post("/v1/chat/completions", body, **bearer(KARL)).status == 200
        client.send(input="Hi")
        assert client.message()["error"]["code"] == "invalid_api_key"
        # The file is now invalid, so its last valid content remains in use.
        keys.write_text(f"karl {KARL} concurent=1\n")
        assert other.post("/v1/chat/completions", body, **bearer(BOB)).status == 200
        proxy.wait_for(r"keys:1: karl: .*; the previous version stays in use")


def test_concurrent_turns_are_limited(backend: RawBackend, tmp_path: Path) -> None:
    """If a user has too many concurrent turns, further turns are refused with a Retry-After header.

    An existing WebSocket connection stays open.
    """
    silent = tmp_path / "silent"
    silent.touch()
    backend.play(held_while(silent.exists, "Hel", "lo."))
    keys = written(tmp_path, f"alice {ALICE} concurrent=1\nbob {BOB}\n")
    body = BODIES["/v1/chat/completions"] | {"stream": True}
    with (
        Mitmdump(backend.url, toolsim_backend="chat", toolsim_api_key=f"file:{keys}") as proxy,
        Line(proxy.url) as line,
        Line(proxy.url) as other,
        connected(proxy, authorization=f"Bearer {ALICE}") as client,
    ):
        stream = line.begin("POST", "/v1/chat/completions", body, **bearer(ALICE))
        assert b"Hel" in stream.readline()
        for path, request in BODIES.items():
            reply = other.post(path, request, **bearer(ALICE))
            assert (reply.status, reply.headers["retry-after"]) == (429, "1")
            error = reply.json()["error"]
            assert (error["type"], error["message"]) == (
                "rate_limit_error",
                "Too many turns with this key: expected at most 1 at the same time.",
            )
        client.send(input="Hi")
        message = client.message()
        assert (message["status"], message["error"]["code"]) == (429, "rate_limit_exceeded")
        second = other.begin("POST", "/v1/chat/completions", body, **bearer(BOB))
        assert b"Hel" in second.readline()
        silent.unlink()
        assert stream.read().endswith(DONE)
        assert second.read().endswith(DONE)
        assert words(client.ask("Hi")) == "Hello."
        metrics = other.request("GET", "/toolsim/metrics", **bearer(BOB)).body.decode()
        assert 'toolsim_refused_requests_total{reason="user_limit"} 4' in metrics


def test_turns_per_minute_are_limited(text_backend: TextBackend, tmp_path: Path) -> None:
    """If a user starts too many turns per minute, the SDKs raise their own exceptions.

    Token counts, model lists and further rounds of a turn do not count as turns.
    """
    keys = written(tmp_path, f"alice {ALICE} per_minute=2\n")
    tool: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "required": ["a"]}}
    text_backend.play(lambda _: says("Hello."))
    with Mitmdump(text_backend.url, toolsim_backend="chat", toolsim_api_key=f"file:{keys}", toolsim_retry=1) as proxy:
        with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=ALICE, max_retries=0) as sdk:
            for _ in range(3):
                assert sdk.responses.input_tokens.count(model="m", input="Hi").input_tokens
            text_backend.play([says('<tool_call>{"name":"add","arguments":{"a" 1}}</tool_call>'), says("Sorry.")])
            assert sdk.responses.create(model="m", input="Hi", tools=[tool]).output_text == "Sorry."
            text_backend.play(lambda _: says("Hello."))
            assert sdk.responses.create(model="m", input="Hi").output_text == "Hello."
            with pytest.raises(openai.RateLimitError, match="at most 2 per minute") as raised:
                sdk.responses.create(model="m", input="Hi")
            assert 1 <= int(raised.value.response.headers["retry-after"]) <= 30
        client = anthropic.Anthropic(base_url=proxy.url, api_key=ALICE, max_retries=0)
        with client, pytest.raises(anthropic.RateLimitError, match="at most 2 per minute"):
            client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "Hi"}])


def test_background_answer_is_a_turn_until_it_ends(backend: RawBackend, tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.touch()
    backend.play(held_while(silent.exists, "Hello."))
    keys = written(tmp_path, f"alice {ALICE} concurrent=1\n")
    options: dict[str, Any] = {"toolsim_api_key": f"file:{keys}", "toolsim_store": "memory"}
    with Mitmdump(backend.url, toolsim_backend="chat", **options) as proxy:
        with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=ALICE, max_retries=0) as sdk:
            queued = sdk.responses.create(model="m", input="Hi", background=True)
            for _ in range(2):
                with pytest.raises(openai.RateLimitError, match="at most 1 at the same time"):
                    sdk.responses.create(model="m", input="Hi", background=True)
            sdk.responses.cancel(queued.id)
            queued = sdk.responses.create(model="m", input="Hi", background=True)
            silent.unlink()
            assert ended(sdk, queued.id).output_text == "Hello."
            assert sdk.responses.create(model="m", input="Hi").output_text == "Hello."
        (row,) = [row for row in rows(proxy) if row.get("status") == 200 and row.get("rounds")]
        assert row["user"] == "alice"


@pytest.mark.ci
def test_wrong_keys_are_throttled(text_backend: TextBackend, tmp_path: Path) -> None:
    """After many requests with wrong keys, the status is 429 instead of 401. The log stays short, and users with a
    valid key are still served.
    """
    text_backend.play(lambda _: says("Hello."))
    keys = written(tmp_path, f"alice {ALICE}\nbob {BOB}\n")
    with (
        Mitmdump(text_backend.url, toolsim_backend="chat", toolsim_api_key=f"file:{keys}") as proxy,
        Line(proxy.url) as line,
    ):
        path, body = "/v1/chat/completions", BODIES["/v1/chat/completions"]
        assert line.post(path, body, **bearer(ALICE)).status == 200
        # Requests without a key do not count as attempts.
        assert {line.request("GET", "/toolsim/health").status for _ in range(ATTEMPTS * 2)} == {200}
        assert {line.request("GET", "/toolsim/metrics").status for _ in range(ATTEMPTS * 2)} == {401}
        started = time.monotonic()
        statuses = [line.request("GET", "/v1/models", **bearer(f"wrong-{n}")).status for n in range(1_000)]
        passed = time.monotonic() - started
        assert statuses[:ATTEMPTS] == [401] * ATTEMPTS
        assert statuses.count(401) <= ATTEMPTS + passed / SECONDS_PER_ATTEMPT + 1
        reply = line.post("/v1/messages", BODIES["/v1/messages"], **{"x-api-key": BOB})
        assert (reply.status, reply.json()["error"]["type"]) == (429, "rate_limit_error")
        assert reply.headers["retry-after"] == str(SECONDS_PER_ATTEMPT)
        assert line.post(path, body, **bearer(ALICE)).status == 200
        refused = [row for row in rows(proxy) if row.get("message") == "refused"]
        passed = time.monotonic() - started
        assert len(refused) <= SOURCE_LINES * (1 + passed / 60) + 1
        assert "wrong-" not in proxy.log()


def test_removed_user_is_refused_by_forward_proxy(tmp_path: Path, text_backend: TextBackend) -> None:
    """A forward proxy checks the key of each request. A user who has been removed is refused, even on an existing
    connection.
    """
    keys = written(tmp_path, f"alice {ALICE}\n")
    target = f"{text_backend.url}/other"
    with Mitmdump(toolsim_api_key=f"file:{keys}") as proxy, Line(proxy.url) as line:
        assert line.request("GET", target, Proxy_Authorization="Bearer x").status == 407
        assert line.request("GET", target, Proxy_Authorization=f"Bearer {ALICE}").status not in (401, 407)
        keys.write_text(f"karl {KARL}\n")
        assert line.request("GET", target, Proxy_Authorization=f"Bearer {ALICE}").status == 407


@pytest.mark.parametrize("text", [None, "", "alice\n"])
def test_missing_or_broken_file_stops_the_start(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    if text is not None:
        written(tmp_path, text)
    arguments = ["-s", "addon/toolsim.py", "--set", f"toolsim_api_key=file:{file}", "--listen-port", "0"]
    found = subprocess.run([*MITMDUMP, *arguments], capture_output=True, text=True, timeout=60, check=False)
    said = found.stdout + found.stderr
    assert found.returncode != 0
    assert f"toolsim_api_key: {file}:" in said
    assert "Traceback" not in said
