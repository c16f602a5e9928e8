"""Tests for requests that toolsim does not rewrite. They are forwarded byte for byte, and the responses are
streamed.
"""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import pytest
from support.line import Line, arrivals
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend
from support.wire import DONE, chat_frame

NO_TOOLS = b'{"model":"m", "messages":[{"role":"user","content":"Say <use_tool><name>x</name></use_tool>"}] }'

# The method, path, body and headers of each request, by name.
REQUESTS: dict[str, tuple[str, str, bytes | None, dict[str, str]]] = {
    "models": ("GET", "/v1/models?limit=3", None, {}),
    "head": ("HEAD", "/v1/models", None, {}),
    "embeddings": ("POST", "/v1/embeddings", b'{ "input":"x" }', {}),
    "embeddings with tools": ("POST", "/v1/embeddings", b'{"tools":[{"type":"function","name":"f"}]}', {}),
    "chat without tools": ("POST", "/v1/chat/completions", NO_TOOLS, {}),
    "chat with no tool": ("POST", "/v1/chat/completions", b'{"messages":[],"tools":[]}', {}),
    "responses without tools": ("POST", "/v1/responses?x=1", b'{"input":"hi"}', {}),
    "not JSON": ("POST", "/v1/chat/completions", b"\x00\xff not JSON {", {}),
    "not an object": ("POST", "/v1/responses", b'[{"tools":[1]}]', {}),
    "gzip without tools": (
        "POST",
        "/v1/chat/completions",
        gzip.compress(NO_TOOLS, mtime=0),
        {"Content_Encoding": "gzip"},
    ),
    "empty": ("POST", "/v1/chat/completions", b"", {}),
    "stored response": ("GET", "/v1/responses/resp_1?include[]=x", None, {}),
    "put": ("PUT", "/v1/responses", b'{"tools":[{"type":"function","name":"f"}]}', {}),
}


async def echo_headers(answer: Answer) -> None:
    body = b"" if answer.asked.method == "HEAD" else bytes(range(256))
    await answer.head(200, 256, Content_Type="application/octet-stream", X_Odd="  a  b", Set_Cookie="a=1")
    if body:
        await answer.send(body)


@pytest.mark.parametrize("name", REQUESTS)
def test_request_and_answer_pass_byte_for_byte(name: str, backend: RawBackend, line: Line) -> None:
    """The backend receives the method, path, body and headers of a request unchanged. The client receives the backend's
    response unchanged.
    """
    method, path, body, headers = REQUESTS[name]
    backend.play(echo_headers)
    reply = line.request(method, path, body, Accept_Encoding="gzip, br", X_Odd="a,  b", **headers)
    asked = backend.asked[-1]
    assert (asked.method, asked.path, asked.body) == (method, path, body or b"")
    assert asked.header("accept-encoding") == "gzip, br"
    assert asked.header("x-odd") == "a,  b"
    assert reply.status == 200
    assert reply.body == (b"" if method == "HEAD" else bytes(range(256)))
    assert set(reply.headers) == {"Content-Type", "X-Odd", "Set-Cookie", "Content-Length"}


@pytest.mark.parametrize(
    ("path", "body"),
    [("/events", None), ("/v1/chat/completions", NO_TOOLS), ("/v1/responses", b'{"input":"hi","stream":true}')],
)
def test_stream_passes_in_chunks(path: str, body: bytes | None, backend: RawBackend, line: Line) -> None:
    """If a stream is not rewritten, the client receives its first event before the last is sent, and the chunks are
    unchanged.
    """
    frames = [b": ping\r\n\r\n", chat_frame("<tool_call>"), b"data: \xf0\x9f", b"\x98\x80\n\n", DONE]

    async def behave(answer: Answer) -> None:
        await answer.head(Content_Type="text/event-stream")
        for frame in frames:
            await answer.send(frame)
            time.sleep(0.05)
        answer.asked.headers.append(("last-sent", str(time.monotonic())))
        await answer.end()

    backend.play(behave)
    response = line.begin("POST" if body else "GET", path, body)
    arrived = list(arrivals(response))
    assert [data for _, data in arrived] == frames
    assert arrived[0][0] < float(backend.asked[-1].header("last-sent") or 0) - 0.1


def test_uploads_are_streamed(backend: RawBackend) -> None:
    """A large upload to a path that does not belong to an API is streamed instead of buffered."""
    import socket

    seen: list[float] = []

    async def behave(answer: Answer) -> None:
        seen.append(time.monotonic())
        await answer.whole(b"ok")

    backend.play(behave)
    # mitmproxy's own log is needed here, because only it reports that a request is streamed.
    with Mitmdump(backend.url, toolsim_log="off") as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.sendall(b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\n1234")
            time.sleep(0.3)
            before = len(backend.asked)
            client.sendall(b"5678")
            assert b"200" in client.recv(100)
        assert before == 0  # The raw backend records only complete requests.
        assert backend.asked[-1].body == b"12345678"
        proxy.wait_for("Streaming request to 127.0.0.1")


def test_errors_pass_unchanged(backend: RawBackend, line: Line, ask: Any) -> None:
    """If the backend refuses a rewritten request, the client receives the HTTP error unchanged."""
    body = json.dumps({"error": {"message": "slow down", "odd": [1.0]}}, indent=3).encode()

    async def behave(answer: Answer) -> None:
        await answer.whole(body, 429, Content_Type="application/json", Retry_After="7", X_Request_Id="r")

    backend.play(behave)
    for stream in (False, True):
        reply = line.post("/v1/chat/completions", ask(stream=stream))
        assert (reply.status, reply.body) == (429, body)
        assert (reply.headers["retry-after"], reply.headers["x-request-id"]) == ("7", "r")
