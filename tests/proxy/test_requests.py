"""Tests for rewritten requests as received by the backend, with all encodings and framings that clients can use."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import brotli
import pytest
import zstandard
from proxy.conftest import CALL, WEATHER
from support.line import Line
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend, stream_of
from support.wire import DONE, chat_frame, chat_whole

ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
    "identity": bytes,
}


@pytest.fixture(autouse=True)
def _answers(backend: RawBackend) -> None:
    async def behave(answer: Answer) -> None:
        await answer.whole(chat_whole(CALL), Content_Type="application/json")

    backend.play(behave)


def shows_the_manifest(backend: RawBackend) -> bool:
    asked = backend.asked[-1]
    body = json.loads(asked.body)
    assert asked.header("content-length") == str(len(asked.body))
    assert asked.header("accept-encoding") == "identity"
    assert asked.header("transfer-encoding") is asked.header("content-encoding") is None
    assert "tools" not in body
    return "# CLIENT TOOL CATALOG" in asked.body.decode()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_compressed_request_is_decoded(encoding: str, backend: RawBackend, line: Line, ask: Any) -> None:
    """A compressed request is decompressed. It is forwarded without compression and with the correct length."""
    body = ENCODINGS[encoding](json.dumps(ask()).encode())
    reply = line.post("/v1/chat/completions", body, Content_Encoding=encoding, Accept_Encoding="gzip, br, zstd")
    assert reply.json()["choices"][0]["message"]["tool_calls"]
    assert shows_the_manifest(backend)


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "rot13"])
def test_invalid_encoding_is_a_400(encoding: str, backend: RawBackend, line: Line) -> None:
    """If the body of a request does not match its Content-Encoding, the request fails with a 400 in the format of its
    API.
    """
    reply = line.post("/v1/chat/completions", b"plain words", Content_Encoding=encoding)
    assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert backend.asked == []


def test_chunked_request_is_forwarded_with_a_length(backend: RawBackend, proxy: Mitmdump, ask: Any) -> None:
    """A request with chunked transfer encoding is forwarded with a Content-Length."""
    body = json.dumps(ask()).encode()
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        client.sendall(head + b"%x\r\n%s\r\n5\r\n%s\r\n0\r\n\r\n" % (len(body) - 5, body[:-5], body[-5:]))
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert b"tool_calls" in answer
    assert shows_the_manifest(backend)


def test_http_1_0_client(backend: RawBackend, proxy: Mitmdump, ask: Any) -> None:
    """HTTP/1.0 clients do not support chunked transfer encoding. For them, the end of the stream is marked by closing
    the connection.
    """
    backend.play(stream_of("Hi ", CALL))
    body = json.dumps(ask(stream=True)).encode()
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        head, _, answer = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert answer.startswith(b"data: {")
    assert answer.endswith(DONE)


def test_malformed_tool_is_a_400(backend: RawBackend, line: Line, ask: Any) -> None:
    """An invalid tool declaration causes a 400 that names the field. The connection can still be used."""
    reply = line.post("/v1/chat/completions", ask(tools="all"))
    assert (reply.status, reply.json()["error"]["param"]) == (400, "tools")
    assert line.post("/v1/chat/completions", ask()).status == 200


def test_query_and_headers_are_forwarded(backend: RawBackend, line: Line, ask: Any) -> None:
    """The query and the headers of the client are forwarded, except for the header that is meant for toolsim."""
    headers = {"Authorization": "Bearer secret", "X_Mine": "1", "X_Proxy_Output_Mode": "obsidian-xml"}
    reply = line.post("/v1/chat/completions?api-version=2", ask(), **headers)
    asked = backend.asked[-1]
    assert asked.path == "/v1/chat/completions?api-version=2"
    assert (asked.header("authorization"), asked.header("x-mine")) == ("Bearer secret", "1")
    assert asked.header("x-proxy-output-mode") is None
    assert "<use_tool>" in reply.json()["choices"][0]["message"]["content"]


COMPRESSED_ANSWERS = {"whole": False, "stream": True}


@pytest.mark.parametrize("name", COMPRESSED_ANSWERS)
def test_compressed_answer_is_decoded(name: str, backend: RawBackend, line: Line, ask: Any) -> None:
    """A compressed response is decompressed, even if the client did not request compression."""
    stream = COMPRESSED_ANSWERS[name]
    plain = chat_frame(CALL) + chat_frame(finish="stop") + DONE if stream else chat_whole(CALL)

    async def behave(answer: Answer) -> None:
        kind = "text/event-stream" if stream else "application/json"
        await answer.whole(gzip.compress(plain), Content_Type=kind, Content_Encoding="gzip")

    backend.play(behave)
    reply = line.post("/v1/chat/completions", ask(stream=stream))
    assert "Content-Encoding" not in reply.headers
    assert b'"get_weather"' in reply.body
    assert reply.headers["Content-Length"] == str(len(reply.body))


def test_stream_with_a_length_is_chunked(backend: RawBackend, line: Line, ask: Any) -> None:
    """A stream from the backend with a Content-Length is forwarded in chunks, because rewriting it changes its
    length.
    """
    plain = chat_frame("Hi ") + chat_frame(CALL) + chat_frame(finish="stop") + DONE

    async def behave(answer: Answer) -> None:
        await answer.whole(plain, Content_Type="text/event-stream; charset=utf-8")

    backend.play(behave)
    for _ in range(2):
        reply = line.post("/v1/chat/completions", ask(stream=True))
        assert reply.headers["Transfer-Encoding"] == "chunked"
        assert reply.body.endswith(DONE)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_client_receives_the_form_it_requested(stream: bool, backend: RawBackend, line: Line, ask: Any) -> None:
    """If the client requests a stream, it receives a stream, even if the backend's answer is not streamed, and vice
    versa.
    """

    async def streams(answer: Answer) -> None:
        await stream_of("Hi ", CALL)(answer)

    async def answers_whole(answer: Answer) -> None:
        await answer.whole(chat_whole(f"Hi {CALL}"), Content_Type="application/json")

    backend.play(answers_whole if stream else streams)
    reply = line.post("/v1/chat/completions", ask(stream=stream))
    assert reply.headers["Content-Type"].startswith("text/event-stream" if stream else "application/json")
    assert b'"get_weather"' in reply.body


@pytest.fixture(scope="module")
def limited(backend: RawBackend) -> Iterator[Mitmdump]:
    with Mitmdump(backend.url, stream_large_bodies="1k") as proxy:
        yield proxy


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_large_bodies_are_still_rewritten(chunked: bool, backend: RawBackend, limited: Mitmdump, ask: Any) -> None:
    """Large requests and answers are rewritten even if mitmproxy's ``stream_large_bodies`` option is set."""
    text = "word " * 2000 + CALL

    async def behave(answer: Answer) -> None:
        body = chat_whole(text)
        if not chunked:
            await answer.whole(body, Content_Type="application/json")
            return
        await answer.head(Content_Type="application/json")
        for start in range(0, len(body), 500):
            await answer.send(body[start : start + 500])
        await answer.end()

    backend.play(behave)
    with Line(limited.url) as line:
        reply = line.post("/v1/chat/completions", ask(messages=[{"role": "user", "content": "x" * 5000}]))
    assert shows_the_manifest(backend)
    assert reply.json()["choices"][0]["message"]["tool_calls"]


def test_concurrent_flows_share_nothing(backend: RawBackend, proxy: Mitmdump) -> None:
    """In thirty concurrent streams with different tools, each client receives only its own calls and its own text."""
    import asyncio

    async def behave(answer: Answer) -> None:
        name = json.loads(answer.asked.body)["user"]
        await answer.head(Content_Type="text/event-stream")
        call = json.dumps({"name": f"tool_{name}", "arguments": {"n": name}})
        for piece in ("for ", name, f"<tool_call>{call}"[:9], f"<tool_call>{call}"[9:], "</tool_call>"):
            await answer.send(chat_frame(piece))
            await asyncio.sleep(0.02)
        await answer.send(chat_frame(finish="stop"))
        await answer.send(DONE)
        await answer.end()

    backend.play(behave)

    def run(number: int) -> None:
        tool = {"type": "function", "function": WEATHER["function"] | {"name": f"tool_{number}"}}  # type: ignore[operator]
        tool["function"] = {"name": f"tool_{number}"}
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": "m", "user": str(number), "messages": messages, "tools": [tool], "stream": True}
        with Line(proxy.url) as line:
            for _ in range(2):
                events = line.post("/v1/chat/completions", body).events()
                deltas = [event["choices"][0]["delta"] for event in events if event != "[DONE]"]
                fragments = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
                assert "".join(delta.get("content") or "" for delta in deltas) == f"for {number}"
                assert [f["function"]["name"] for f in fragments if "name" in f["function"]] == [f"tool_{number}"]
                assert json.loads("".join(f["function"]["arguments"] for f in fragments)) == {"n": str(number)}

    with ThreadPoolExecutor(30) as pool:
        list(pool.map(run, range(30)))
