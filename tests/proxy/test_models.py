"""Tests for a models file with two backends behind one listener. Each backend has only one API."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from proxy.conftest import CALL
from proxy.test_api_selection import APIS, BONN, PATHS, call_of, request
from support.line import Line, Reply
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend
from support.text_backend import Exchange, TextBackend, refuses, says

websockets = pytest.importorskip("websockets.sync.client", reason="needs the extra [clients]: run `make setup`")

KEYS = {"authorization": "Bearer clients-own"}
QWEN = "qwen2.5:1.5b"


@pytest.fixture(scope="module")
def small() -> Iterator[TextBackend]:
    with TextBackend(apis=["chat"]) as backend:
        yield backend


@pytest.fixture(scope="module")
def server() -> Iterator[TextBackend]:
    with TextBackend(apis=["responses"]) as backend:
        yield backend


@pytest.fixture
def file(tmp_path: Path, small: TextBackend, server: TextBackend) -> Path:
    """A models file that renames the model of the first backend and keeps the model names of the second."""
    for backend in (small, server):
        backend.play([])
        backend.rejected, backend.models, backend.list_headers = [], ["text-model"], []
    return write(tmp_path / "models.toml", entries(small, server))


def entries(small: TextBackend, server: TextBackend, pattern: str = "haiku*") -> str:
    return f"""
[[models]]
names = ["{pattern}", "claude-haiku-4-5"]
url = "{small.url}/v1"
model = "{QWEN}"
key = "env:SMALL_KEY"

[[models]]
names = "gpt-5*"
url = "{server.url}/v1"
"""


def write(file: Path, text: str) -> Path:
    """Write a new file and rename it over the old one, as text editors do."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)
    return file


@contextmanager
def proxied(file: Path, target: str | None = None, **options: Any) -> Iterator[tuple[Mitmdump, Line]]:
    environment = {"SMALL_KEY": "sk-small"}
    with (
        Mitmdump(target, environment=environment, toolsim_models=str(file), **options) as proxy,
        Line(proxy.url) as line,
    ):
        yield proxy, line


def model_of(client: str, reply: Any) -> str:
    if not reply.headers.get("content-type", "").startswith("text/event-stream"):
        return str(reply.json()["model"])
    events = [event for event in reply.events() if event != "[DONE]"]
    if client == "responses":
        return str(events[-1]["response"]["model"])
    if client == "messages":
        return str(next(event["message"]["model"] for event in events if event["type"] == "message_start"))
    (model,) = {event["model"] for event in events}
    return str(model)


# -- the choice of a backend


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", APIS)
def test_each_model_has_its_backend(
    file: Path, small: TextBackend, server: TextBackend, client: str, stream: bool
) -> None:
    """A request is sent to the backend of its model, with or without tools, and regardless of the client's API."""
    with proxied(file) as (proxy, line):
        for backend, asked, sent, key in (
            (small, "haiku-4.5", QWEN, "Bearer sk-small"),
            (server, "gpt-5.1", "gpt-5.1", "Bearer clients-own"),
        ):
            backend.play([says(CALL), says("Sun", "ny.")])
            with_tool = line.post(PATHS[client], request(client, stream=stream, model=asked), **KEYS)
            assert call_of(client, with_tool) == BONN
            without = line.post(PATHS[client], request(client, has_tool=False, stream=stream, model=asked), **KEYS)
            assert without.status == 200
            assert [model_of(client, reply) for reply in (with_tool, without)] == [asked, asked]
            assert [exchange.body["model"] for exchange in backend.exchanges] == [sent, sent]
            assert {exchange.headers["authorization"] for exchange in backend.exchanges} == {key}
            assert {exchange.headers["host"] for exchange in backend.exchanges} == {f"127.0.0.1:{backend.port}"}
        assert "clients-own" not in str([exchange.headers for exchange in small.exchanges])
        log = proxy.log()
        if client == "responses":
            assert f"the backend at {small.url}/v1: APIs chat" in log
        if client != "responses":
            assert f"the backend at {server.url}/v1: APIs responses" in log
        assert "sk-small" not in log


def test_unrenamed_request_passes_byte_for_byte(file: Path, server: TextBackend) -> None:
    """A request without tools is forwarded byte for byte if its model is not renamed and the backend has the client's
    API.
    """
    server.play([says("Sunny.")])
    body = b'{ "input" : "Hi",\n "model":"gpt-5" , "stream":true}'
    with proxied(file) as (_, line):
        reply = line.post("/v1/responses", body)
    (exchange,) = server.exchanges
    assert exchange.raw == body
    assert reply.body == b"".join(exchange.chunks)


@pytest.mark.parametrize("client", APIS)
def test_unknown_model_is_a_404(file: Path, small: TextBackend, server: TextBackend, client: str) -> None:
    """Without a default backend, an unknown model causes a 404 in the format of the client's API. The error lists the
    models.
    """
    with proxied(file) as (_, line):
        for stream in (False, True):
            reply = line.post(PATHS[client], request(client, model="Haiku", stream=stream), **KEYS)
            error = reply.json()["error"]
            assert reply.status == 404
            words = (
                "The model 'Haiku' does not exist on this proxy. Available models: haiku*, claude-haiku-4-5, gpt-5*."
            )
            assert error["message"] == words
            assert error["type"] == ("not_found_error" if client == "messages" else "invalid_request_error")
            assert error.get("code", "model_not_found") == "model_not_found"
        body = request(client)
        del body["model"]
        reply = line.post(PATHS[client], body)
        assert (reply.status, reply.json()["error"].get("param", "model")) == (400, "model")
        assert line.post(PATHS[client], b"{]").status == 400
        assert line.post("/v1/embeddings", {"model": "haiku", "input": "x"}).status == 404
    assert small.exchanges == server.exchanges == []


@pytest.mark.parametrize("way", ["reverse", "upstream", "scripted"])
def test_default_backend(file: Path, small: TextBackend, server: TextBackend, way: str) -> None:
    """If the model of a request is not in the models file, the request is sent to the default backend. No other backend
    receives the default backend's key.
    """
    options: dict[str, Any] = {"toolsim_upstream_key": "sk-default"}
    options |= {"toolsim_upstream": f"{server.url}/v1"} if way == "upstream" else {}
    options |= {"toolsim_backend": "scripted"} if way == "scripted" else {}
    write(file, f'[[models]]\nnames = "haiku*"\nurl = "{small.url}"\nmodel = "{QWEN}"\n')
    small.play([says(CALL)] * 2)
    server.play([says(CALL)] * 2)
    with proxied(file, server.url if way == "reverse" else None, **options) as (_, line):
        for client in ("chat", "responses"):
            assert call_of(client, line.post(PATHS[client], request(client, model="haiku"), **KEYS)) == BONN
            body = request(client, model="other")
            key = "input" if client == "responses" else "messages"
            body[key][0]["content"] = "What is the weather in Bonn?"
            # The answers of the scripted model contain text in addition to the call.
            assert b"get_weather" in line.post(PATHS[client], body, **KEYS).body
    assert {exchange.headers["authorization"] for exchange in small.exchanges} == {"Bearer clients-own"}
    assert {exchange.body["model"] for exchange in small.exchanges} == {QWEN}
    assert "toolsim-admitted" not in str(small.exchanges)
    if way != "scripted":
        assert {exchange.headers["authorization"] for exchange in server.exchanges} == {"Bearer sk-default"}
        assert {exchange.body["model"] for exchange in server.exchanges} == {"other"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", APIS)
def test_all_rounds_go_to_the_same_backend(
    file: Path, small: TextBackend, server: TextBackend, client: str, stream: bool
) -> None:
    """Retries, requests for second opinions, and second rounds that replace an undeclared call with text are sent to
    the backend of the model, and use the backend's name for the model.
    """
    greeting = '{"name": "greet", "arguments": {"message": "Hello!"}}'
    required = {"type": "any"} if client == "messages" else "required"
    with proxied(file, toolsim_retry=1, toolsim_second_opinion="on") as (_, line):
        for turns, fields in (
            ([says("Sunny."), says(CALL)], {"tool_choice": required}),
            ([says(CALL), says("no"), says("no"), says("Fine.")], {}),
            ([says(greeting), says("Hello.")], {}),
        ):
            small.play(turns)
            reply = line.post(PATHS[client], request(client, stream=stream, model="haiku", **fields), **KEYS)
            assert reply.status == 200, reply.body
            assert model_of(client, reply) == "haiku"
            assert len(small.exchanges) == len(turns)
            assert {exchange.body["model"] for exchange in small.exchanges} == {QWEN}
            assert {exchange.headers["authorization"] for exchange in small.exchanges} == {"Bearer sk-small"}
    assert server.exchanges == []


def test_rejected_features_are_per_backend_and_model(file: Path, small: TextBackend, server: TextBackend) -> None:
    """A rejected feature is remembered for each pair of backend and model, regardless of the name that the client uses
    for the model.
    """

    def rule(exchange: Exchange) -> Any:
        return refuses(400, "tools are not supported") if "tools" in exchange.body else says(CALL)

    write(file, entries(small, server).replace(f'url = "{server.url}/v1"', f'url = "{small.url}/v2"'))
    small.play(rule)
    with proxied(file, toolsim_mode="auto", toolsim_backend="chat") as (proxy, line):
        for name in ("haiku-1", "haiku-2", "claude-haiku-4-5", "gpt-5", "gpt-5"):
            assert call_of("chat", line.post(PATHS["chat"], request("chat", model=name))) == BONN
        asked = [(exchange.path, exchange.body["model"], "tools" in exchange.body) for exchange in small.exchanges]
        one, two = "/v1/chat/completions", "/v2/chat/completions"
        assert asked == [
            *[(one, QWEN, True), (one, QWEN, False)],
            *[(one, QWEN, False)] * 2,
            *[(two, "gpt-5", True), (two, "gpt-5", False)],
            (two, "gpt-5", False),
        ]
        assert f"the backend does not accept tools for {QWEN}" in proxy.log()


@pytest.mark.parametrize("renamed", [False, True])
def test_counts_and_compaction_use_the_models_backend(
    file: Path, small: TextBackend, server: TextBackend, renamed: bool
) -> None:
    """Requests for token counts and compaction are sent to the backend of the requested model."""
    name = f'model = "{QWEN}"' if renamed else ""
    write(file, f'[[models]]\nnames = "big"\nurl = "{server.url}/v1"\n{name}\n')
    server.counted, server.count = [], 4321
    with proxied(file) as (_, line):
        counted = line.post("/v1/responses/input_tokens", request("responses", model="big"))
        assert counted.json()["input_tokens"] == 4321
        server.play([says("It was about weather.")])
        items = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
        compacted = line.post("/v1/responses/compact", {"model": "big", "input": items})
        assert compacted.status == 200, compacted.body
        for path in ("/v1/responses/input_tokens", "/v1/responses/compact", "/v1/messages/count_tokens"):
            client = "messages" if "messages" in path else "responses"
            assert line.post(path, request(client, model="other")).status == 404
    server.count = None
    asked = [*server.counted, *(exchange.body for exchange in server.exchanges)]
    assert [body["model"] for body in asked] == [QWEN if renamed else "big"] * 2


def test_profile_follows_the_backends_model_name(file: Path, small: TextBackend, tmp_path: Path) -> None:
    """The profile depends on the backend's name for the model, not on the client's name."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "q.toml").write_text('models = ["qwen2.5*"]\n[options]\ntoolsim_manifest = "typescript"\n')
    (folder / "h.toml").write_text('models = ["haiku*"]\n[options]\ntoolsim_manifest = "hermes"\n')
    small.play([says(CALL)])
    with proxied(file, toolsim_profiles=str(folder)) as (_, line):
        line.post(PATHS["chat"], request("chat", model="haiku"))
    assert "```typescript" in str(small.exchanges[0].transcript)


def test_model_of_a_large_body_is_found(file: Path, small: TextBackend, server: TextBackend) -> None:
    """A worker finds the model in a large body, even if the body is compressed, or if nested objects also contain a
    ``model``.
    """
    small.play([says(CALL)] * 2)
    body = request("chat", model="haiku")
    del body["model"]
    body["messages"].insert(0, {"role": "user", "content": "x" * 100_000, "model": "gpt-5"})
    body["model"] = "haiku"
    with proxied(file, toolsim_max_body_bytes=200_000) as (_, line):
        assert call_of("chat", line.post(PATHS["chat"], body)) == BONN
        packed = gzip.compress(json.dumps(body).encode())
        assert call_of("chat", line.post(PATHS["chat"], packed, content_encoding="gzip")) == BONN
        assert line.post(PATHS["chat"], b"no gzip", content_encoding="gzip").status == 400
        body["messages"].append({"role": "user", "content": "x" * 200_000})
        assert line.post(PATHS["chat"], body).status == 413
    assert len(small.exchanges) == 2
    assert server.exchanges == []


# -- one client, several models


def ended(line: Line, id: str, **headers: str) -> Any:
    """Poll a background answer until it ends, and return it."""
    end = time.monotonic() + 20
    while (answer := line.request("GET", f"/v1/responses/{id}", **headers).json())["status"] not in (
        "completed",
        "failed",
    ):
        assert time.monotonic() < end
        time.sleep(0.05)
    return answer


def test_stored_answer_belongs_to_its_key(file: Path, small: TextBackend, server: TextBackend) -> None:
    """A stored answer can be continued with another model, but not with another API key."""
    other = {"authorization": "Bearer others"}
    with proxied(file, toolsim_store="memory") as (_, line):
        small.play([says("My word is KIWI.")])
        first = line.post("/v1/responses", {"model": "haiku", "input": "Say a word."}, **KEYS).json()
        server.play([says("It was KIWI.")])
        follow = {"model": "gpt-5", "input": "Which one?", "previous_response_id": first["id"]}
        second = line.post("/v1/responses", follow, **KEYS).json()
        assert (first["model"], second["model"]) == ("haiku", "gpt-5")
        assert "KIWI" in str(server.exchanges[0].transcript)
        for model in ("gpt-5", "haiku"):
            refused = line.post("/v1/responses", follow | {"model": model}, **other)
            assert refused.json()["error"]["code"] == "previous_response_not_found"
        assert line.request("GET", f"/v1/responses/{first['id']}", **other).status == 404
        small.play([says("Slowly.", pause=0.2)])
        queued = line.post("/v1/responses", {"model": "haiku", "input": "Go.", "background": True}, **KEYS).json()
        assert line.request("GET", f"/v1/responses/{queued['id']}", **other).status == 404
        assert ended(line, queued["id"], **KEYS)["output"][0]["content"][0]["text"] == "Slowly."
        assert small.exchanges[0].body["model"] == QWEN
        unknown = line.post("/v1/responses", {"model": "other", "input": "Go.", "background": True}, **KEYS)
        assert unknown.json()["error"]["code"] == "model_not_found"
    assert len(server.exchanges) == 1


def test_websocket_requests_reach_their_backends(file: Path, small: TextBackend, server: TextBackend) -> None:
    """Each request on a WebSocket connection is sent to the backend of its model. An unknown model causes an error."""
    small.play([says(CALL)])
    server.play([says("Sunny.")])
    with proxied(file) as (proxy, _):
        url = proxy.url.replace("http", "ws") + "/v1/responses"
        with websockets.connect(url, proxy=None, additional_headers=KEYS) as connection:

            def ask(**fields: Any) -> Any:
                connection.send(json.dumps({"type": "response.create", "store": False, **fields}))
                while True:
                    event = json.loads(connection.recv(timeout=20))
                    if event["type"] in ("response.completed", "response.failed", "error"):
                        return event

            first = ask(**request("responses", model="haiku"))["response"]
            assert first["output"][0]["name"] == "get_weather"
            output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "18 degrees"}
            unknown = ask(**request("responses", model="other"))
            assert (unknown["status"], unknown["error"]["code"]) == (404, "model_not_found")
            second = ask(model="gpt-5", input=[output], previous_response_id=first["id"])["response"]
            assert (first["model"], second["model"]) == ("haiku", "gpt-5")
    assert [exchange.headers["authorization"] for exchange in (*small.exchanges, *server.exchanges)] == [
        "Bearer sk-small",
        "Bearer clients-own",
    ]
    assert "18 degrees" in str(server.exchanges[0].transcript)


# -- the model list


def listed(line: Line, **headers: str) -> list[str]:
    return [model["id"] for model in line.request("GET", "/v1/models", **headers).json()["data"]]


def test_model_list(file: Path, small: TextBackend, server: TextBackend) -> None:
    """The model list contains the literal names in the models file. For each pattern, it contains the matching models
    of the backend.
    """
    small.models, server.models = [QWEN, "haiku-x", "gpt-5-small"], ["gpt-5", "gpt-4", "haiku-y", "gpt-5-mini"]
    with proxied(file) as (_, line):
        assert listed(line, **KEYS) == ["claude-haiku-4-5", "gpt-5", "gpt-5-mini"]
        # To print the startup banner, the proxy can also request the model lists, without a client's key.
        assert {headers.get("authorization") for headers in small.list_headers} == {"Bearer sk-small"}
        assert {headers.get("authorization") for headers in server.list_headers} - {None} == {"Bearer clients-own"}
        one = line.request("GET", "/v1/models/claude-haiku-4-5").json()
        assert (one["id"], one["object"]) == ("claude-haiku-4-5", "model")
        assert line.request("GET", "/v1/models/haiku-z").json()["id"] == "haiku-z"
        missing = line.request("GET", "/v1/models/other")
        assert (missing.status, missing.json()["error"]["code"]) == (404, "model_not_found")
        for_messages = line.request("GET", "/v1/models", anthropic_version="2023-06-01").json()
        assert [model["type"] for model in for_messages["data"]] == ["model"] * 3
        reply = line.request("GET", "/v1/models", origin="app://obsidian.md")
        assert reply.headers["access-control-allow-origin"] == "app://obsidian.md"
    with proxied(file, small.url) as (_, line):
        small.models = ["gpt-5-small", "text-model"]
        assert listed(line) == ["claude-haiku-4-5", "gpt-5", "gpt-5-mini", "text-model"]


def test_model_list_with_silent_backends(file: Path, small: TextBackend) -> None:
    """A backend that is silent or down delays the model list only for a limited time. Only the models of that backend
    can be missing.
    """
    small.models = ["big-1"]
    with RawBackend() as silent:
        silent.behaviour = lambda request: Answer(pause=30)
        text = "".join(
            f'[[models]]\nnames = ["{name}"]\nurl = "{url}"\n'
            for name, url in (("gone", "http://127.0.0.1:9"), ("slow", silent.url))
        )
        write(file, f'{text}[[models]]\nnames = "big*"\nurl = "{small.url}"\n')
        with proxied(file) as (_, line):
            start = time.monotonic()
            assert listed(line) == ["gone", "slow", "big-1"]
            assert time.monotonic() - start < 6


def test_model_list_does_not_loop(file: Path) -> None:
    """If the models file names the proxy itself as a backend, requesting the model list does not cause an endless
    loop.
    """
    with proxied(file) as (proxy, line):
        write(file, f'[[models]]\nnames = "a"\nurl = "{proxy.url}/v1"\n')
        assert listed(line) == ["a"]
        # mitmproxy itself refuses to connect to its own listener.
        assert line.post(PATHS["chat"], request("chat", model="a")).status == 502


# -- changes to the file


def test_broken_file_leaves_the_old_one_in_use(file: Path, small: TextBackend, server: TextBackend) -> None:
    """If the models file becomes invalid while the proxy is running, its last valid content remains in use. The log
    reports the problem only once.
    """
    small.play([says(*"Slowly, but surely.", pause=0.1), says(CALL), says(CALL)])
    with proxied(file) as (proxy, line), Line(proxy.url) as other:
        response = line.begin("POST", PATHS["chat"], request("chat", has_tool=False, model="haiku", stream=True))
        response.read1(100)
        for _ in range(2):
            file.write_text("[[models]]\nnames = 5\n")
            assert call_of("chat", other.post(PATHS["chat"], request("chat", model="haiku"))) == BONN
        assert b"[DONE]" in response.read()
        assert proxy.log().count(f"{file}:2: names: got 5") == 1
        assert "the previous version stays in use" in proxy.log()
        write(file, entries(small, server, "mouse*"))
        small.play([says(CALL)])
        assert call_of("chat", other.post(PATHS["chat"], request("chat", model="mouse"))) == BONN
        assert other.post(PATHS["chat"], request("chat", model="haiku")).status == 404
        file.unlink()
        small.play([says(CALL)])
        assert call_of("chat", other.post(PATHS["chat"], request("chat", model="mouse"))) == BONN


@pytest.mark.parametrize("client", APIS)
def test_turn_continues_after_pattern_is_removed(
    file: Path, small: TextBackend, server: TextBackend, client: str
) -> None:
    """If the pattern for a model is removed from the models file, a turn in progress still completes its rounds at the
    backend of that model.
    """
    greeting = '{"name": "greet", "arguments": {"message": "Hello!"}}'
    small.play([says(*greeting, pause=0.02), says("Hel", "lo.")])
    with proxied(file, toolsim_store="memory") as (proxy, line), Line(proxy.url) as other:
        line.send("POST", PATHS[client], request(client, model="haiku", stream=True), **KEYS)
        small.wait_for(1)
        write(file, f'[[models]]\nnames = "gpt*"\nurl = "{server.url}"\n')
        assert other.post(PATHS[client], request(client, model="haiku")).status == 404
        response = line._connection.getresponse()
        body = response.read()
        assert response.status == 200
        assert b"lo." in body
        assert b"greet" not in body
    assert [exchange.body["model"] for exchange in small.exchanges] == [QWEN, QWEN]
    assert server.exchanges == []


def test_streams_continue_while_the_file_changes(file: Path, small: TextBackend, server: TextBackend) -> None:
    """If the models file is changed repeatedly, each request is answered completely by one of the backends that the
    file contained.
    """
    small.play(lambda exchange: says(*"small one", pause=0.01))
    server.play(lambda exchange: says(*"large one", pause=0.01))
    versions = [
        f'[[models]]\nnames = "m"\nurl = "{small.url}"\nmodel = "{QWEN}"\n',
        f'[[models]]\nnames = "m"\nurl = "{server.url}"\n',
        "broken =",
        "",
    ]
    write(file, versions[0])
    bodies: list[bytes] = []

    def ask(url: str) -> None:
        with Line(url) as line:
            bodies.extend(line.post(PATHS[client], request(client, model="m", stream=True)).body for client in APIS * 3)

    with proxied(file) as (proxy, _):
        threads = [threading.Thread(target=ask, args=(proxy.url,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        turn = 0
        while any(thread.is_alive() for thread in threads):
            write(file, versions[turn % 4])
            turn += 1
            time.sleep(0.02)
    assert len(bodies) == 36
    for body in bodies:
        text = "".join(
            event.get("delta", "") if isinstance(event.get("delta"), str) else event.get("delta", {}).get("text", "")
            for event in Reply(200, {}, body).events()
            if isinstance(event, dict) and "choices" not in event
        )
        text += "".join(
            choice["delta"].get("content") or ""
            for event in Reply(200, {}, body).events()
            if isinstance(event, dict)
            for choice in event.get("choices", ())
        )
        assert text in ("small one", "large one"), body
    assert small.exchanges
    assert server.exchanges
    assert {exchange.body["model"] for exchange in small.exchanges} == {QWEN}
    assert {exchange.body["model"] for exchange in server.exchanges} == {"m"}


def test_invalid_file_stops_the_start(tmp_path: Path) -> None:
    """If the models file is invalid, mitmdump does not start, and the log names the file and the line."""
    file = write(tmp_path / "models.toml", '[[models]]\nnames = "a"\nurl = "localhost:1"\n')
    proxy = Mitmdump(None, toolsim_models=str(file))
    assert proxy.exit_code() == 1
    line = f"toolsim_models: {file}:3: url: got 'localhost:1', expected a URL such as http://127.0.0.1:11434/v1"
    assert line in proxy.log()


def test_recording_replays_without_the_file(file: Path, small: TextBackend, tmp_path: Path) -> None:
    """A recording of a renamed model can be replayed without the models file."""
    small.play([says(CALL), says("Sunny.")] * 2)
    with proxied(file, toolsim_capture=str(tmp_path / "flows")) as (proxy, line):
        for stream in (False, True):
            for has_tool in (True, False):
                line.post(PATHS["chat"], request("chat", model="haiku", stream=stream, has_tool=has_tool), **KEYS)
        proxy.wait_for('"finish"', count=4)
    command = [sys.executable, "-m", "toolsim.recordings.replay", str(tmp_path / "flows")]
    replayed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert replayed.stdout.endswith("4 recorded exchanges, none differ\n"), replayed.stdout + replayed.stderr
    recorded = b"".join(file.read_bytes() for file in (tmp_path / "flows").iterdir())
    assert b"sk-small" not in recorded
    assert b"clients-own" not in recorded


def test_sdks_use_one_base_url(file: Path, small: TextBackend, server: TextBackend) -> None:
    """The SDKs reach all models with a single base URL. For an unknown model, they raise their own exceptions."""
    openai, anthropic = pytest.importorskip("openai"), pytest.importorskip("anthropic")
    small.play([says("Small.")] * 2)
    server.play([says("Large.")] * 2)
    question: Any = [{"role": "user", "content": "Hi"}]
    with (
        proxied(file) as (proxy, _),
        openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0) as client,
        anthropic.Anthropic(base_url=proxy.url, api_key="k", max_retries=0) as claude,
    ):
        for model, words in (("haiku", "Small."), ("gpt-5", "Large.")):
            assert client.responses.create(model=model, input="Hi").output_text == words
            assert claude.messages.create(model=model, max_tokens=9, messages=question).content[0].text == words
        with pytest.raises(openai.NotFoundError, match="Available models: haiku"):
            client.chat.completions.create(model="x", messages=question)
        with pytest.raises(anthropic.NotFoundError, match="Available models: haiku"):
            claude.messages.create(model="x", max_tokens=9, messages=question)
        assert [model.id for model in client.models.list()] == ["claude-haiku-4-5"]
        assert [model.id for model in claude.models.list()] == ["claude-haiku-4-5"]


def test_overview_lists_the_models(file: Path, small: TextBackend) -> None:
    """The overview page names the models file and lists its models."""
    with proxied(file, small.url) as (_, line):
        page = line.request("GET", "/toolsim/", accept="application/json").json()
    assert page["models"] == ["claude-haiku-4-5", "text-model"]
    assert page["backend"].startswith("the backends of models.toml (haiku*, claude-haiku-4-5, gpt-5*) and http://127")
