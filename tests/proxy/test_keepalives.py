"""Tests for the keep-alives that a client receives while the backend is silent."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from proxy.conftest import CALL
from support.line import Line, arrivals
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend
from support.wire import DONE, chat_frame

SSE = "text/event-stream"
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
# The bytes by which clients of each API recognize a keep-alive.
SIGNS = {"chat": b": keepalive\n", "responses": b'"type":"keepalive"', "messages": b"event: ping"}
STARTS = {"chat": b'"role":"assistant"', "responses": b"response.created\n", "messages": b"message_start\n"}
SCRIPT = "from toolsim.proxy.addon import ToolSim\n\naddons = [ToolSim(keepalive=0.3)]\n"
Play = Callable[[Answer], Awaitable[None]]


@pytest.fixture
def impatient(tmp_path: Path) -> Path:
    """A script that loads the addon with a keep-alive interval of 0.3 s instead of 10 s."""
    script = tmp_path / "impatient.py"
    script.write_text(SCRIPT)
    return script


@pytest.fixture
def line(backend: RawBackend, impatient: Path) -> Iterator[Line]:
    with Mitmdump(backend.url, script=impatient, toolsim_backend="chat") as proxy, Line(proxy.url) as line:
        yield line


def body(api: str) -> dict[str, Any]:
    """Return the API-specific fields of a request with one tool."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    messages = [{"role": "user", "content": "Weather?"}]
    match api:
        case "chat":
            function = {"name": "get_weather", "parameters": schema}
            return {"messages": messages, "tools": [{"type": "function", "function": function}]}
        case "responses":
            return {"input": messages, "tools": [{"type": "function", "name": "get_weather", "parameters": schema}]}
    return {"messages": messages, "max_tokens": 100, "tools": [{"name": "get_weather", "input_schema": schema}]}


# ``HEAD`` is set when the client has received the headers, and ``SIGNED`` when it has received two keep-alives. The
# backends wait for these events, so the tests do not depend on the speed of the machine.
HEAD, SIGNED = threading.Event(), threading.Event()


def asked(line: Line, api: str) -> tuple[int, bytes]:
    """Send a streamed request. Return the status and the bytes of the response."""
    HEAD.clear()
    SIGNED.clear()
    response, data = line.begin("POST", PATHS[api], {"model": "m", "stream": True, **body(api)}), b""
    HEAD.set()
    for _, chunk in arrivals(response):
        data += chunk
        if data.count(SIGNS[api]) >= 2:
            SIGNED.set()
    return response.status, data


async def until(event: threading.Event) -> None:
    """Wait for a threading event without blocking the event loop."""
    end = time.monotonic() + 20
    while not event.is_set() and time.monotonic() < end:
        await asyncio.sleep(0.05)


async def late_head(answer: Answer) -> None:
    """Send headers and data only after the client has received two keep-alives."""
    await until(SIGNED)
    await answer.head(Content_Type=SSE)
    await called(answer)


async def late_body(answer: Answer) -> None:
    """Send headers immediately. Send comments until the client has received two keep-alives, and then the answer."""
    await answer.head(Content_Type=SSE)
    while not SIGNED.is_set():
        await answer.send(b": reading the prompt\n\n")
        await asyncio.sleep(0.1)
    await called(answer)


async def late_whole(answer: Answer) -> None:
    """Send a non-streamed answer after the client has received two keep-alives."""
    await until(SIGNED)
    await whole(answer)


async def whole(answer: Answer) -> None:
    message = {"role": "assistant", "content": CALL}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    complete = {"id": "c", "object": "chat.completion", "choices": [choice]}
    await answer.whole(json.dumps(complete).encode(), Content_Type="application/json")


async def called(answer: Answer) -> None:
    for data in (chat_frame(CALL), chat_frame(finish="stop"), DONE):
        await answer.send(data)
    await answer.end()


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("play", [late_head, late_body, late_whole])
def test_keep_alives_while_the_backend_is_silent(api: str, play: Play, backend: RawBackend, line: Line) -> None:
    """While the backend is silent, the client receives keep-alives in the format of its API. It then receives exactly
    one answer.
    """
    backend.play(play)
    status, data = asked(line, api)
    assert status == 200
    assert data.count(SIGNS[api]) >= 2
    assert b"get_weather" in data
    assert data.index(SIGNS[api]) < data.rindex(b"get_weather")
    assert data.count(STARTS[api]) == 1


@pytest.mark.parametrize("api", PATHS)
def test_late_error_becomes_an_event(api: str, backend: RawBackend, line: Line) -> None:
    """If the client has already received status 200, an error from the backend becomes an error event with the same
    message.
    """

    async def fails(answer: Answer) -> None:
        await until(HEAD)
        data = b'{"error": {"message": "the model is on fire", "type": "server_error", "code": "hot"}}'
        await answer.whole(data, 503, Content_Type="application/json")

    backend.play(fails)
    status, data = asked(line, api)
    assert status == 200
    assert b"the model is on fire" in data
    kinds = {"chat": b'{"error":', "responses": b"event: response.failed", "messages": b"event: error"}
    assert kinds[api] in data
    backend.play(sends_call)
    assert b"get_weather" in asked(line, api)[1]


async def sends_call(answer: Answer) -> None:
    await answer.head(Content_Type=SSE)
    await called(answer)


@pytest.mark.parametrize("api", PATHS)
def test_disconnect_before_headers_stops_the_backend(api: str, backend: RawBackend, impatient: Path) -> None:
    """If the client disconnects before the backend has sent headers, the request to the backend is aborted. The next
    turn succeeds.
    """
    left = threading.Event()

    async def late(answer: Answer) -> None:
        await until(left)
        await sends_call(answer)
        await answer.wait_until_gone()

    with Mitmdump(backend.url, script=impatient, toolsim_backend="chat") as proxy, Line(proxy.url) as line:
        backend.play(late)
        with Line(proxy.url) as leaver:
            response = leaver.begin("POST", PATHS[api], {"model": "m", "stream": True, **body(api)})
            assert response.status == 200
            response.close()
        # Wait, because on a busy machine, the answer might be complete before the proxy notices the disconnect.
        proxy.wait_for(r'"error": "aborted"')
        left.set()
        assert backend.asked[0].gone.wait(10)
        backend.play(sends_call)
        status, data = asked(line, api)
        assert (status, data.count(STARTS[api])) == (200, 1)
        assert b"get_weather" in data
        metrics = line.request("GET", "/toolsim/metrics").body.decode()
        assert "toolsim_exchanges_in_progress 0" in metrics
        assert f'client="{api}",backend="chat",stream="true",outcome="aborted"}} 1' in metrics


@pytest.mark.parametrize("api", PATHS)
def test_late_broken_connection_becomes_an_event(api: str, backend: RawBackend, line: Line) -> None:
    """If the client has already received status 200, and the connection to the backend breaks before the backend's
    headers arrive, the stream ends with an error.
    """

    async def dies(answer: Answer) -> None:
        await until(HEAD)
        answer.hang_up()

    backend.play(dies)
    status, data = asked(line, api)
    assert status == 200
    assert b"The backend did not answer" in data


def test_early_error_keeps_its_status(backend: RawBackend, line: Line) -> None:
    """If the backend returns an error before the first keep-alive is sent, the client receives the error's HTTP
    status.
    """

    async def refuses(answer: Answer) -> None:
        await answer.whole(b'{"error": {"message": "no"}}', 429, Content_Type="application/json")

    backend.play(refuses)
    assert asked(line, "chat")[0] == 429


def test_refused_path_after_early_headers(impatient: Path) -> None:
    """If the client has already received status 200, and the backend rejects the path, another API is tried. The answer
    over that API continues the stream.
    """

    async def slow_404(answer: Answer) -> None:
        await until(HEAD)
        await answer.whole(b"{}", 404, Content_Type="application/json")

    with (
        RawBackend() as backend,
        Mitmdump(backend.url, script=impatient) as proxy,
        Line(proxy.url) as line,
    ):
        backend.play(slow_404, "/v1/responses")
        backend.play(sends_call, "/v1/chat")
        status, data = asked(line, "responses")
        assert status == 200
        assert data.count(STARTS["responses"]) == 1
        assert b"get_weather" in data
        assert b"event: response.completed" in data


def test_non_streamed_answer_has_no_early_headers(backend: RawBackend, line: Line) -> None:
    """A non-streamed response cannot contain keep-alives, so its headers are not sent early."""

    async def late(answer: Answer) -> None:
        await asyncio.sleep(1.0)
        await whole(answer)

    backend.play(late)
    reply = line.post(PATHS["chat"], {"model": "m", **body("chat")})
    assert reply.json()["choices"][0]["message"]["tool_calls"]


def test_late_error_of_a_first_round(backend: RawBackend, impatient: Path) -> None:
    """The headers of a stream that can take several rounds are also sent early. If the first round fails, the error
    becomes an error event.
    """
    with (
        Mitmdump(backend.url, script=impatient, toolsim_backend="chat", toolsim_retry=1) as proxy,
        Line(proxy.url) as line,
    ):
        backend.play(late_head)
        status, data = asked(line, "responses")
        assert (status, data.count(SIGNS["responses"]) >= 2) == (200, True)
        assert data.count(STARTS["responses"]) == 1
        assert b"get_weather" in data

        async def fails(answer: Answer) -> None:
            await until(HEAD)
            await answer.whole(b'{"error": {"message": "too hot"}}', 500, Content_Type="application/json")

        backend.play(fails)
        status, data = asked(line, "responses")
        assert (status, b"too hot" in data) == (200, True)


def test_stream_without_tools_passes_byte_for_byte(backend: RawBackend, impatient: Path) -> None:
    """If a request has no tools, its stream is forwarded byte for byte, including comments."""

    async def comments(answer: Answer) -> None:
        await answer.head(Content_Type=SSE)
        await answer.send(b": reading the prompt\n\n")
        await asyncio.sleep(0.8)
        await answer.send(chat_frame("Hi") + DONE)
        await answer.end()

    with Mitmdump(backend.url, script=impatient) as proxy, Line(proxy.url) as line:
        backend.play(comments)
        request = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        response = line.begin("POST", PATHS["chat"], request)
        assert b"".join(data for _, data in arrivals(response)) == b": reading the prompt\n\n" + chat_frame("Hi") + DONE
