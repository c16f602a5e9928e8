"""Tests for the drain after SIGTERM or SIGINT. Answers in progress are completed, or end with an error that states the
reason.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.io import read_flows_from_paths
from support.line import Line, Reply
from support.mitmdump import Mitmdump
from support.text_backend import Exchange, TextBackend, Turn, says
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

SCHEMA = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
CALL = '<tool_call>{"name":"forecast","arguments":{"days":3}}</tool_call>'
BAD = CALL.replace(":3", " 3")
FUNCTION = {"name": "forecast", "parameters": SCHEMA}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
RESPONSES_TOOL = {"type": "function", "strict": False, **FUNCTION}
MESSAGES_TOOL = {"name": "forecast", "input_schema": SCHEMA}

Body = dict[str, Any]
# For each API: its path, and a function that returns a request body for a user message.
APIS: dict[str, tuple[str, Callable[[str], Body]]] = {
    "chat": (
        "/v1/chat/completions",
        lambda words: {"model": "m", "messages": [{"role": "user", "content": words}], "tools": [CHAT_TOOL]},
    ),
    "responses": ("/v1/responses", lambda words: {"model": "m", "input": words, "tools": [RESPONSES_TOOL]}),
    "messages": (
        "/v1/messages",
        lambda words: {
            "model": "m",
            "max_tokens": 100,
            "messages": [{"role": "user", "content": words}],
            "tools": [MESSAGES_TOOL],
        },
    ),
}
ENDS = {"chat": b"data: [DONE]\n\n", "responses": b"event: response.completed\n", "messages": b"event: message_stop\n"}
FAILURES = {
    "chat": b'"code":"proxy_stopped"',
    "responses": b"event: response.failed\n",
    "messages": b"event: error\n",
}
WHY = b"The proxy was stopped before the response was complete."


def model(exchange: Exchange) -> Turn:
    """Answer slowly. If the question contains "hang", never complete the answer. If it contains "rounds", make an
    invalid call at first.
    """
    words = next(text for role, text in exchange.transcript if role == "user")
    if "hang" in words:
        return says("Let me ", "see", ending="hang")
    if "rounds" in words and "MALFORMED_JSON" not in str(exchange.transcript):
        return says("", "", BAD, pause=0.5)
    return says("Let ", "me ", "see. ", CALL, pause=0.5)


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend(model) as backend:
        yield backend


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def asked(pool: ThreadPoolExecutor, proxy: Mitmdump, api: str, words: str, **more: Any) -> Future[Reply]:
    """Send a request in another thread, over a new connection."""
    path, body = APIS[api]

    def ask() -> Reply:
        with Line(proxy.url) as line:
            return line.post(path, body(words) | more)

    return pool.submit(ask)


def by_socket(proxy: Mitmdump, words: str) -> list[str]:
    """Send a request over a WebSocket connection, and return the types of the events in the answer."""
    with connect(f"ws://127.0.0.1:{proxy.port}/v1/responses") as socket:
        socket.send(json.dumps({"type": "response.create", **APIS["responses"][1](words)}))
        return [str(json.loads(message)["type"]) for message in socket]


def test_answers_in_progress_are_finished(backend: TextBackend, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    """During a drain, streamed, non-streamed, WebSocket and background answers in progress are completed.

    New connections are refused. On an existing connection, one more request is served. The status pages report the
    drain.
    """
    backend.play(model)
    store, written = tmp_path / "store.sqlite", tmp_path / "flows"
    with Mitmdump(
        backend.url,
        toolsim_backend="chat",
        toolsim_drain_timeout=30,
        toolsim_store=f"sqlite:{store}",
        arguments=["-w", str(written)],
    ) as proxy:
        with Line(proxy.url) as line, Line(proxy.url) as monitor:
            assert monitor.request("GET", "/toolsim/health").json() == {"status": "ok"}
            streams = {api: asked(pool, proxy, api, "slowly", stream=True) for api in APIS}
            whole = asked(pool, proxy, "chat", "slowly")
            messages = pool.submit(by_socket, proxy, "slowly")
            path, body = APIS["responses"]
            queued = line.post(path, body("slowly") | {"background": True}).json()
            backend.wait_for(6)
            proxy.signal()
            proxy.wait_for("toolsim: stopping; waiting up to 30 s for 6 exchanges in progress")
            proxy.wait_for(r"at \S+ stopped")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", proxy.port))
            # This request is sent over an existing connection after the listener has been closed.
            assert monitor.request("GET", "/toolsim/ready").status == 503
            page = monitor.request("GET", "/toolsim/ready")
            assert page.json() == {"ready": False, "backend": "reachable", "store": "reachable", "draining": True}
            assert b"\ntoolsim_draining 1\n" in monitor.request("GET", "/toolsim/metrics").body
            assert monitor.request("GET", "/toolsim/health").status == 200
            last = line.request("GET", f"/v1/responses/{queued['id']}")
            assert (last.json()["status"], last.headers["connection"]) == ("in_progress", "close")
        for api, answer in streams.items():
            assert ENDS[api] in answer.result().body
            assert b"forecast" in answer.result().body
        assert whole.result().json()["choices"][0]["finish_reason"] == "tool_calls"
        # During a drain, the connection is closed after each response.
        assert whole.result().headers["connection"] == "close"
        assert messages.result()[-1] == "response.completed"
        assert proxy.ended() == 0
        assert re.search(r"toolsim: stopped after \d\.\d s", proxy.log())
        assert "proxy_stopped" not in proxy.log()
    flows = [flow for flow in read_flows_from_paths([str(written)]) if isinstance(flow, HTTPFlow)]
    finished = [flow for flow in flows if flow.metadata.get("toolsim", {}).get("calls") == ["forecast"]]
    assert len(finished) == 6
    with Mitmdump(backend.url, toolsim_store=f"sqlite:{store}") as proxy, Line(proxy.url) as line:
        assert line.request("GET", f"/v1/responses/{queued['id']}").json()["status"] == "completed"


def test_websocket_connections_are_closed(backend: TextBackend, pool: ThreadPoolExecutor) -> None:
    """During a drain, idle WebSocket connections are closed immediately, and busy ones after their answer. The close
    code is 1001.
    """
    with Mitmdump(backend.url, toolsim_backend="chat", toolsim_drain_timeout=30) as proxy:
        url = f"ws://127.0.0.1:{proxy.port}/v1/responses"
        with connect(url) as idle, connect(url) as busy:
            busy.send(json.dumps({"type": "response.create", **APIS["responses"][1]("slowly")}))
            busy.recv()
            proxy.signal()
            with pytest.raises(ConnectionClosed) as raised:
                idle.recv(timeout=20)
            assert raised.value.rcvd is not None
            assert (raised.value.rcvd.code, raised.value.rcvd.reason) == (1001, "the proxy is stopping")
            # If the connection is closed with code 1001, the iteration ends without an exception.
            types = [json.loads(message)["type"] for message in busy]
            assert (busy.close_code, types[-1]) == (1001, "response.completed")
        assert proxy.ended() == 0


def test_answer_beyond_drain_timeout_ends_with_an_error(
    backend: TextBackend, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """If an answer exceeds the drain timeout, it ends with an error in the format of its API. The error does not blame
    the backend.
    """
    backend.play(model)
    store = f"sqlite:{tmp_path / 'store.sqlite'}"
    with Mitmdump(backend.url, toolsim_backend="chat", toolsim_drain_timeout=1, toolsim_store=store) as proxy:
        streams = {api: asked(pool, proxy, api, "hang", stream=True) for api in APIS}
        whole = {api: asked(pool, proxy, api, "hang") for api in APIS}
        messages = pool.submit(by_socket, proxy, "hang")
        with Line(proxy.url) as line:
            path, body = APIS["responses"]
            queued = line.post(path, body("hang") | {"background": True}).json()
        backend.wait_for(8)
        began = time.monotonic()
        proxy.signal(signal.SIGINT)
        for api, answer in streams.items():
            assert answer.result().status == 200
            assert FAILURES[api] in answer.result().body
            assert WHY in answer.result().body
        for answer in whole.values():
            assert answer.result().status == 503
            assert WHY in answer.result().body
            assert answer.result().headers["retry-after"] == "1"
        assert "response.failed" in messages.result()
        assert proxy.ended() == 0
        assert time.monotonic() - began < 8
        assert "8 exchanges did not end within 1 s" in proxy.log()
        assert "backend_" not in proxy.log()
        # Eight exchanges fail: the answers to seven clients, and the round for the background answer.
        assert len(re.findall(r'"error": "proxy_stopped"', proxy.log())) == 8
    with Mitmdump(backend.url, toolsim_store=store) as proxy, Line(proxy.url) as line:
        assert line.request("GET", f"/v1/responses/{queued['id']}").json()["status"] == "failed"


def test_answer_in_rounds_is_finished(backend: TextBackend, pool: ThreadPoolExecutor) -> None:
    """During a drain, an answer that takes several rounds is completed. If it exceeds the drain timeout, it ends with
    an error.
    """
    backend.play(model)
    with Mitmdump(backend.url, toolsim_backend="chat", toolsim_drain_timeout=6, toolsim_retry=1) as proxy:
        finished = asked(pool, proxy, "responses", "rounds", stream=True)
        hanging = {api: asked(pool, proxy, api, "hang", stream=True) for api in APIS}
        whole = asked(pool, proxy, "messages", "hang")
        backend.wait_for(5)
        proxy.signal()
        body = finished.result().body
        assert b"event: response.completed\n" in body
        assert b'{\\"days\\":3}' in body
        for api, answer in hanging.items():
            assert FAILURES[api] in answer.result().body
            assert WHY in answer.result().body
        assert (whole.result().status, whole.result().json()["type"]) == (503, "error")
        assert proxy.ended() == 0
        assert "backend_" not in proxy.log()


def test_second_signal_ends_the_proxy_immediately(backend: TextBackend, pool: ThreadPoolExecutor) -> None:
    """A second signal ends the proxy immediately. The log states how many exchanges were interrupted."""
    backend.play(model)
    with Mitmdump(backend.url, toolsim_backend="chat", toolsim_drain_timeout=60) as proxy:
        answer = asked(pool, proxy, "chat", "hang", stream=True)
        backend.wait_for(1)
        proxy.signal()
        proxy.wait_for("toolsim: stopping; waiting up to 60 s for 1 exchange in progress")
        began = time.monotonic()
        proxy.signal(signal.SIGINT)
        assert proxy.ended() == 0
        assert time.monotonic() - began < 3
        assert answer.exception() is not None
        assert "toolsim: stopped immediately, with 1 exchange in progress" in proxy.log()
        assert "backend_" not in proxy.log()
