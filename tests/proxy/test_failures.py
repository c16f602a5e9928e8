"""Tests for all kinds of backend failures. The client receives a clear error or, if the backend was only slow, an
answer.

In all cases, the client's connection can be used again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from proxy.conftest import CALL
from support.line import Line, Reply, arrivals
from support.mitmdump import Mitmdump
from support.ports import free_port
from support.raw_backend import Answer, Behaviour, RawBackend, stream_of
from support.wire import DONE, chat_frame

SSE = "text/event-stream"
HALF = chat_frame("Hello")


async def stops_without_terminator(answer: Answer) -> None:
    await answer.head(Content_Type=SSE)
    await answer.send(HALF)
    await answer.end()


async def dies_in_a_chunk(answer: Answer) -> None:
    await answer.head(Content_Type=SSE)
    await answer.send(HALF)
    await answer.raw(b"ff\r\ndata: {")
    answer.hang_up()


async def dies_between_chunks(answer: Answer) -> None:
    await answer.head(Content_Type=SSE)
    await answer.send(HALF)
    answer.hang_up()


async def dies_in_a_length(answer: Answer) -> None:
    await answer.head(length=100_000, Content_Type=SSE)
    await answer.send(HALF)
    answer.hang_up()


async def dies_until_eof(answer: Answer) -> None:
    await answer.head(length=-1, Content_Type=SSE, Connection="close")
    await answer.send(HALF)
    answer.hang_up()


async def dies_before_data(answer: Answer) -> None:
    await answer.head(Content_Type=SSE)
    answer.hang_up()


async def sends_an_error(answer: Answer) -> None:
    await answer.head(Content_Type=SSE)
    await answer.send(HALF)
    await answer.send(b'data: {"error":{"message":"out of memory","type":"server_error","code":"oom"}}\n\n')
    await answer.end()


async def dies_in_a_body(answer: Answer) -> None:
    await answer.head(length=100_000, Content_Type="application/json")
    await answer.send(b'{"id":')
    answer.hang_up()


async def dies_immediately(answer: Answer) -> None:
    answer.hang_up()


async def sends_nonsense(answer: Answer) -> None:
    await answer.raw(b"HTTP/1.1 nonsense\r\n\r\n")
    answer.hang_up()


async def answers_html(answer: Answer) -> None:
    await answer.whole(b"<html>Welcome</html>", Content_Type="text/html")


async def answers_nothing(answer: Answer) -> None:
    await answer.whole(b"", Content_Type="application/json")


async def lies_about_gzip(answer: Answer) -> None:
    await answer.whole(b"not gzip", Content_Type="application/json", Content_Encoding="gzip")


async def stalls_in_a_block(answer: Answer) -> None:
    await answer.head(Content_Type=SSE)
    await answer.send(chat_frame("Hello"))
    await answer.send(chat_frame(CALL[:30]))
    await answer.wait_until_gone()


async def stalls_immediately(answer: Answer) -> None:
    await answer.wait_until_gone()


async def stalls_after_the_head(answer: Answer) -> None:
    await answer.head(Content_Type="application/json")
    await answer.send(b"{")
    await answer.wait_until_gone()


# For each name: the backend's behavior, and the expected result for the client (an error code or a status).
STREAMS: dict[str, tuple[Behaviour, str]] = {
    "ends without terminator": (stops_without_terminator, "backend_truncated"),
    "dies in a chunk": (dies_in_a_chunk, "backend_truncated"),
    "dies between chunks": (dies_between_chunks, "backend_truncated"),
    "dies in a length": (dies_in_a_length, "backend_truncated"),
    "dies until EOF": (dies_until_eof, "backend_truncated"),
    "dies before data": (dies_before_data, "backend_truncated"),
    "sends an error": (sends_an_error, "oom"),
    "stalls in a block": (stalls_in_a_block, "backend_timeout"),
}
UNSENT: dict[str, tuple[Behaviour, bool, int]] = {
    "dies in the body": (dies_in_a_body, False, 502),
    "dies at once": (dies_immediately, False, 502),
    "dies at once, streamed": (dies_immediately, True, 502),
    "sends nonsense": (sends_nonsense, True, 502),
    "answers HTML": (answers_html, False, 502),
    "answers nothing": (answers_nothing, False, 502),
    "lies about gzip": (lies_about_gzip, False, 502),
    "stalls at once": (stalls_immediately, False, 504),
    "stalls at once, streamed": (stalls_immediately, True, 504),
    "stalls after the head": (stalls_after_the_head, False, 504),
    "stream ends without terminator": (stops_without_terminator, False, 502),
}


@pytest.fixture(scope="module")
def proxy(backend: RawBackend) -> Iterator[Mitmdump]:
    """A proxy with a short idle timeout."""
    with Mitmdump(backend.url, toolsim_idle_timeout=1) as proxy:
        yield proxy


def works(line: Line, backend: RawBackend, ask: Any) -> bool:
    """Return whether the next request over this connection is answered with a complete call."""
    backend.play(stream_of("Let me look. ", CALL))
    whole = line.post("/v1/chat/completions", ask(stream=True)).body
    return b'"tool_calls"' in whole and whole.endswith(DONE)


def error_of(reply: Reply) -> dict[str, Any]:
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize("name", STREAMS)
def test_stream_reports_failure_and_connection_stays(name: str, backend: RawBackend, line: Line, ask: Any) -> None:
    """A stream that breaks off ends with an error event, so that it does not look successful. The next request over the
    connection succeeds.
    """
    behaviour, code = STREAMS[name]
    backend.play(behaviour)
    started = time.monotonic()
    reply = line.post("/v1/chat/completions", ask(stream=True))
    assert reply.status == 200
    events = reply.events()
    errors = [event["error"] for event in events if isinstance(event, dict) and "error" in event]
    assert [error["code"] for error in errors] == [code]
    assert not any(
        choice["finish_reason"] for event in events if event != "[DONE]" for choice in event.get("choices", [])
    )
    assert time.monotonic() - started < 5
    assert works(line, backend, ask)


@pytest.mark.parametrize("name", UNSENT)
def test_unsent_answer_reports_failure_and_connection_stays(
    name: str, backend: RawBackend, line: Line, ask: Any
) -> None:
    """If an answer fails before any part of it has been sent, the client receives an HTTP error. The next request over
    the connection succeeds.
    """
    behaviour, stream, status = UNSENT[name]
    backend.play(behaviour)
    reply = line.post("/v1/chat/completions", ask(stream=stream))
    assert reply.status == status, reply.body
    error_of(reply)
    assert works(line, backend, ask)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_backend_errors_pass_unchanged(status: int, stream: bool, backend: RawBackend, line: Line, ask: Any) -> None:
    """HTTP errors from the backend reach the client unchanged, including the Retry-After header. The next request
    succeeds.
    """
    body = json.dumps({"error": {"message": f"no: {status}", "type": "t", "param": None, "code": "c"}}).encode()

    async def behave(answer: Answer) -> None:
        await answer.whole(body, status, Content_Type="application/json", Retry_After="3")

    backend.play(behave)
    reply = line.post("/v1/chat/completions", ask(stream=stream))
    assert (reply.status, reply.body, reply.headers["Retry-After"]) == (status, body, "3")
    assert works(line, backend, ask)


def test_backend_down(tmp_path: Path, ask: Any) -> None:
    """If the backend is down, each request fails with a 502 in the format of its API, with or without tools.

    A request for the model list also fails with a 502, but does not count as a turn.
    """
    port = free_port()
    with Mitmdump(f"http://127.0.0.1:{port}", toolsim_capture=str(tmp_path)) as proxy, Line(proxy.url) as line:
        for _ in range(2):
            reply = line.request("GET", "/v1/models")
            assert reply.status == 502
            assert error_of(reply)["code"] == "backend_unavailable"
        assert line.request("HEAD", "/v1/models").body == b""
        assert "toolsim {" not in proxy.log()
        assert not list(tmp_path.iterdir())
        for body in (ask(), {"messages": []}) * 2:
            reply = line.post("/v1/chat/completions", body)
            assert reply.status == 502
            assert error_of(reply)["code"] == "backend_unavailable"


def test_answer_to_head_has_no_body() -> None:
    """The response to a HEAD request has no body. Otherwise, the client would read the body as the next response."""
    backend = f"http://127.0.0.1:{free_port()}"
    with (
        Mitmdump(backend, toolsim_backend="chat", toolsim_store="memory") as proxy,
        httpx.Client(base_url=proxy.url, limits=httpx.Limits(max_connections=1)) as client,
    ):
        for path in ("/toolsim/metrics", "/v1/responses/r", "/v1/conversations/c", "/v1/models") * 2:
            head, whole = client.head(path), client.get(path)
            assert head.content == b""
            assert head.headers["content-type"] == whole.headers["content-type"]
            assert whole.content


def test_disconnect_stops_backend_and_frees_exchange(backend: RawBackend, proxy: Mitmdump, ask: Any) -> None:
    """If the client disconnects in the middle of a stream, the request to the backend is aborted, and the exchange no
    longer counts as in progress.
    """

    async def endless(answer: Answer) -> None:
        await answer.head(Content_Type=SSE)
        while True:
            await answer.send(chat_frame("word "))
            await asyncio.sleep(0.02)

    backend.play(endless)
    line = Line(proxy.url)
    response = line.begin("POST", "/v1/chat/completions", ask(stream=True))
    assert response.read1(10)
    assert in_flight(proxy) == 1
    response.close()
    line.close()
    assert backend.asked[-1].gone.wait(5)
    wait_until_idle(proxy)
    proxy.wait_for('"error": "aborted"')


def test_disconnect_before_an_answer_frees_exchange(backend: RawBackend, proxy: Mitmdump, ask: Any) -> None:
    """If the client disconnects before the backend has answered, the exchange no longer counts as in progress."""
    backend.play(stalls_immediately)
    with Line(proxy.url, timeout=0.2) as line, pytest.raises(TimeoutError):
        line.begin("POST", "/v1/chat/completions", ask())
    wait_until_idle(proxy)


def in_flight(proxy: Mitmdump) -> int:
    with Line(proxy.url) as line:
        text = line.request("GET", "/toolsim/metrics").body.decode()
    return int(text.rsplit("toolsim_exchanges_in_progress ")[-1].split()[0])


def wait_until_idle(proxy: Mitmdump) -> None:
    end = time.monotonic() + 5
    while in_flight(proxy):
        assert time.monotonic() < end, "an exchange was not freed"
        time.sleep(0.05)


SHORT_KEEPALIVE = """
from toolsim.proxy.addon import ToolSim
addons = [ToolSim(keepalive=0.2)]
"""


def test_keep_alives_while_a_call_is_buffered(backend: RawBackend, tmp_path: Path, ask: Any) -> None:
    """While a call is being buffered, the client receives keep-alives, even if data keeps arriving from the backend. It
    then receives the call.
    """
    received = b""

    def keepalives(data: bytes) -> int:
        return data.count(b'"delta":{},"logprobs":null,"finish_reason":null')

    async def slow(answer: Answer) -> None:
        await answer.head(Content_Type=SSE)
        end = time.monotonic() + 20
        for piece, wanted in ((CALL[:20], 2), (CALL[20:40], 4), (CALL[40:], 0)):
            await answer.send(chat_frame(piece))
            while keepalives(received) < wanted and time.monotonic() < end:
                await asyncio.sleep(0.02)
        await answer.send(chat_frame(finish="stop"))
        await answer.send(DONE)
        await answer.end()

    backend.play(slow)
    script = tmp_path / "impatient.py"
    script.write_text(SHORT_KEEPALIVE)
    with Mitmdump(backend.url, script=script) as proxy, Line(proxy.url) as line:
        started = time.monotonic()
        for _, chunk in arrivals(line.begin("POST", "/v1/chat/completions", ask(stream=True))):
            received += chunk
        before, is_called, _ = received.partition(b'"tool_calls":[')
        assert is_called
        assert 4 <= keepalives(before) <= (time.monotonic() - started) / 0.2 + 1
        assert works(line, backend, ask)


def test_slow_backend_is_not_idle(backend: RawBackend, line: Line, ask: Any) -> None:
    """An answer can take longer than the idle timeout, as long as each pause is shorter than the timeout."""

    async def slow(answer: Answer) -> None:
        await answer.head(Content_Type="application/json")
        for piece in (
            b"{",
            b'"choices":[{"index":0,"message":{"role":"assistant",',
            b'"content":"x"},"finish_reason":"stop"}]}',
        ):
            await asyncio.sleep(0.6)
            await answer.send(piece)
        await answer.end()

    backend.play(slow)
    reply = line.post("/v1/chat/completions", ask())
    assert reply.status == 200
    assert reply.json()["choices"][0]["message"]["content"] == "x"


HOLDS_BACK = """
import asyncio
from toolsim.proxy.addon import ToolSim

class HoldsBack:
    async def request(self, flow):
        await asyncio.sleep(1.2)

    async def response(self, flow):
        await asyncio.sleep(1.2)

addons = [ToolSim(), HoldsBack()]
"""


def test_intercepted_flow_is_not_idle(backend: RawBackend, tmp_path: Path, ask: Any) -> None:
    """While a user intercepts a request or an answer in mitmproxy, the idle timeout does not run."""
    backend.play(stream_of("Hi ", CALL))
    script = tmp_path / "holds_back.py"
    script.write_text(HOLDS_BACK)

    def held_back(url: str, stream: bool) -> list[Reply]:
        with Line(url) as line:
            return [line.post("/v1/chat/completions", ask(stream=stream)) for _ in range(2)]

    with Mitmdump(backend.url, script=script, toolsim_idle_timeout=1) as proxy, ThreadPoolExecutor() as threads:
        # The requests run in parallel, because nearly all of the time is spent waiting.
        for replies in threads.map(held_back, [proxy.url] * 2, [False, True]):
            for reply in replies:
                assert reply.status == 200
                assert b'"get_weather"' in reply.body
                assert b"backend_timeout" not in reply.body
