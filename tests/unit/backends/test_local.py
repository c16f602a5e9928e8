"""Tests for running a model file as a backend, with a stand-in for the llama.cpp library. Real models are tested
manually.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toolsim.backends.local import LocalBackend, chat_body
from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.events import BackendEvent, Closed, Failed, TextDelta
from toolsim.wire.apis import CHAT, RESPONSES

HELLO: dict[str, Any] = {"model": "any", "input": "Hello", "temperature": 0.5, "max_output_tokens": 9}


def chunk(content: str | None = None, finish: str | None = None) -> str:
    delta = {"content": content} if content is not None else {}
    return json.dumps({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


class Server:
    """A stand-in for llama.cpp's server. It generates ``words`` until it is stopped, and stores the last request."""

    def __init__(self, words: list[str], problem: Exception | None = None) -> None:
        self.words, self.problem = words, problem
        self.asked: dict[str, Any] = {}
        self.was_stopped = threading.Event()

    def handle_chat_completions(self, body: str, tell: Callable[[str], bool]) -> None:
        self.asked = json.loads(body)
        if self.problem is not None:
            raise self.problem
        for word in self.words:
            if tell(chunk(word)):
                self.was_stopped.set()
                return
        tell(chunk(finish="stop"))


def library(monkeypatch: pytest.MonkeyPatch, make: Callable[[Any], object]) -> None:
    """Replace the ``xllamacpp`` package with a stand-in in which ``make`` takes the place of the ``Server`` class."""
    module = types.ModuleType("xllamacpp")
    params = {"model": types.SimpleNamespace(), "cpuparams": types.SimpleNamespace()}
    module.CommonParams = lambda: types.SimpleNamespace(**params)  # type: ignore[attr-defined]
    module.Server = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "xllamacpp", module)


async def loaded(monkeypatch: pytest.MonkeyPatch, server: Server) -> LocalBackend:
    library(monkeypatch, lambda params: server)
    backend = LocalBackend(Path("some/model-3b.gguf"))
    await backend.start()
    return backend


async def answered(backend: LocalBackend, body: dict[str, Any] = HELLO) -> list[BackendEvent]:
    return [event async for event in backend.answer(RESPONSES.read(body))]


async def test_request_is_sent_as_chat_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Responses API request is sent to the model in the chat completions format with the client's settings, and the
    model's text is returned.
    """
    server = Server(["Hel", "lo"])
    backend = await loaded(monkeypatch, server)
    assert await backend.models() == ["model-3b"]
    events = await answered(backend)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello"
    assert isinstance(events[-1], Closed)
    assert server.asked["messages"] == [{"role": "user", "content": "Hello"}]
    assert (server.asked["stream"], server.asked["temperature"]) == (True, 0.5)
    assert "input" not in server.asked
    await backend.stop()
    assert await backend.models() == ApiError(
        "The model is not loaded.", code="backend_unavailable", status=503, retry_after=5
    )


async def test_port_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp listens only on the loopback interface, on a free port, and requires an API key."""
    made: list[Any] = []
    library(monkeypatch, lambda params: made.append(params) or Server([]))
    await LocalBackend(Path("m.gguf")).start()
    [params] = made
    assert params.model.path == "m.gguf"
    assert (params.hostnames, params.port, params.ui) == (["127.0.0.1"], 0, False)
    assert len(params.api_keys[0]) == 32


async def test_client_disconnect_stops_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the client disconnects, generation stops at the next token, before ``answer`` returns."""
    server = Server(["word "] * 1_000_000)
    backend = await loaded(monkeypatch, server)
    answer = backend.answer(RESPONSES.read(HELLO))
    async for event in answer:
        if isinstance(event, TextDelta):
            break
    await answer.aclose()
    assert server.was_stopped.is_set()


async def test_rejected_request_is_a_client_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If llama.cpp rejects a request, the client receives status 400 with llama.cpp's message."""
    backend = await loaded(monkeypatch, Server([], ValueError("the prompt is too long")))
    [event] = await answered(backend)
    assert isinstance(event, Failed)
    assert (event.error.status, event.error.message) == (400, "llama.cpp: the prompt is too long")


async def test_missing_extra_is_logged_and_requests_fail_with_503(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the optional package for llama.cpp is missing, one log line gives the command to install it, and requests fail
    with status 503.
    """
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    backend = LocalBackend(Path("m.gguf"))
    await backend.start()
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert f"{sys.executable} -m pip install 'xllamacpp" in record.getMessage()
    [event] = await answered(backend)
    assert isinstance(event, Failed)
    assert event.error.status == 503
    await backend.stop()


async def test_invalid_model_file_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """If the model file is not valid, the log states llama.cpp's reason in one line."""

    def refuse(params: Any) -> object:
        raise RuntimeError("failed to\nload model")

    library(monkeypatch, refuse)
    await LocalBackend(Path("m.gguf")).start()
    assert "llama.cpp cannot load m.gguf: failed to load model" in caplog.text


def test_body_contains_the_schema() -> None:
    """The body for llama.cpp contains the JSON schema that the client requested for the answer. A request that consists
    only of an item reference is refused.
    """
    form = {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}}
    body = chat_body(RESPONSES.read({"input": "x", "text": form}))
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    chat = chat_body(CHAT.read({"model": "m", "messages": [{"role": "user", "content": "x"}]}))
    assert chat["stream_options"] == {"include_usage": True}
    with pytest.raises(BadRequest):
        chat_body(RESPONSES.read({"input": [{"type": "item_reference", "id": "x"}]}))


def test_event_loop_is_not_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model runs in a separate thread, so the event loop can serve other requests."""

    async def both() -> int:
        go_on = threading.Event()

        class Slow(Server):
            def handle_chat_completions(self, body: str, tell: Callable[[str], bool]) -> None:
                go_on.wait(10)
                super().handle_chat_completions(body, tell)

        backend = await loaded(monkeypatch, Slow(["x"]))
        work = asyncio.create_task(answered(backend))
        await asyncio.sleep(0.05)
        assert not work.done()
        go_on.set()
        return len(await work)

    assert asyncio.run(both())
