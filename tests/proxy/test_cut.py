"""Tests for turns that toolsim ends early. The request to the backend is aborted, and the client's connection stays
open, with HTTP/1 and HTTP/2.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
from proxy.conftest import CALL
from support.line import Line, arrivals
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend, stream_of
from support.wire import DONE, chat_frame, chat_whole

PIECE = 0.05  # Seconds between two chunks from a backend that does not stop by itself.
TALK = 60
ENDLESS = 32  # Number of repetitions of a call after which the turn is ended, as stated in the README.
ITEM = CALL.removeprefix("<tool_call>").removesuffix("</tool_call>")


async def talks_on(answer: Answer) -> None:
    await answer.head(Content_Type="text/event-stream")
    await answer.send(chat_frame("Let me look. "))
    await answer.send(chat_frame(CALL))
    for _ in range(TALK):
        await answer.send(chat_frame(" and the weather is fine"))
        await asyncio.sleep(PIECE)
    await answer.end()


@pytest.fixture(scope="module")
def proxy(backend: RawBackend) -> Iterator[Mitmdump]:
    with Mitmdump(backend.url, toolsim_stop_after_tools="on") as proxy:
        yield proxy


def deltas(events: list[Any]) -> list[Any]:
    return [choice["delta"] for event in events if event != "[DONE]" for choice in event["choices"]]


def test_text_after_a_call_stops_the_backend(backend: RawBackend, line: Line, ask: Any) -> None:
    """The first text after a call ends the turn and aborts the request to the backend. The client can reuse its
    connection.
    """
    backend.play(talks_on)
    for _ in range(3):
        reply = line.post("/v1/chat/completions", ask(stream=True))
        assert reply.body.endswith(DONE)
        assert "".join(delta.get("content") or "" for delta in deltas(reply.events())) == "Let me look. "
        assert b'"get_weather"' in reply.body
        asked = backend.asked[-1]
        assert asked.gone.wait(5)
        # At most five chunks are sent: the preamble, the call, the text that ends the turn, and two more that are
        # already on their way.
        assert asked.sent <= 5
    assert len({asked.connection for asked in backend.asked}) == 3


def test_turn_that_ends_after_its_call_is_not_cut(backend: RawBackend, line: Line, ask: Any) -> None:
    """If the backend's answer ends right after a call, the connection to the backend is kept open and reused."""
    backend.play(stream_of("Let me look. ", CALL))
    for _ in range(3):
        assert line.post("/v1/chat/completions", ask(stream=True)).body.endswith(DONE)
    assert len({asked.connection for asked in backend.asked}) == 1
    assert not any(asked.gone.is_set() for asked in backend.asked)


def test_non_streamed_answer_is_cut_too(backend: RawBackend, line: Line, ask: Any) -> None:
    """A non-streamed answer is cut off after its calls as well, so it does not contain the text that followed them."""

    async def behave(answer: Answer) -> None:
        await answer.whole(chat_whole(f"Let me look. {CALL} and it is fine"), Content_Type="application/json")

    backend.play(behave)
    message = line.post("/v1/chat/completions", ask()).json()["choices"][0]["message"]
    assert (message["content"], len(message["tool_calls"])) == ("Let me look. ", 1)


def test_model_in_a_loop_is_stopped(backend: RawBackend, line: Line, ask: Any) -> None:
    """If the model repeats a call endlessly, the turn ends with a single call, and the request to the backend is
    aborted.
    """

    async def goes_round(answer: Answer) -> None:
        await answer.head(Content_Type="text/event-stream")
        for number in range(3 * ENDLESS):
            await answer.send(chat_frame(f"{', ' if number else '['}{ITEM}"))
            await asyncio.sleep(PIECE / 5)
        await answer.end()

    backend.play(goes_round)
    reply = line.post("/v1/chat/completions", ask(stream=True))
    assert reply.body.endswith(DONE)
    assert reply.body.count(b'"get_weather"') == 1
    assert not any(delta.get("content") for delta in deltas(reply.events()))
    assert backend.asked[-1].gone.wait(5)
    assert backend.asked[-1].sent < 2 * ENDLESS


def test_backend_that_does_not_hang_up(backend: RawBackend, line: Line, ask: Any) -> None:
    """Even if the backend does not end the response body after a complete stream, the client's stream ends promptly."""

    async def clings(answer: Answer) -> None:
        await answer.head(Content_Type="text/event-stream")
        await answer.send(chat_frame(CALL))
        await answer.send(chat_frame(finish="stop"))
        await answer.send(DONE)
        await answer.wait_until_gone()

    backend.play(clings)
    for _ in range(2):
        start = time.monotonic()
        assert line.post("/v1/chat/completions", ask(stream=True)).body.endswith(DONE)
        assert backend.asked[-1].gone.wait(5)
        # The client's stream ends before the next keep-alive, which would be sent after ten seconds.
        assert time.monotonic() - start < 5


def test_events_are_not_buffered(backend: RawBackend, line: Line, ask: Any) -> None:
    """When a stream is rewritten, each delta reaches the client before the backend sends the next one."""
    pieces = [f"word{number} " for number in range(6)]
    times: list[float] = []

    async def slow(answer: Answer) -> None:
        await answer.head(Content_Type="text/event-stream", Content_Length_Hint="none")
        for piece in pieces:
            times.append(asyncio.get_running_loop().time())
            await answer.send(chat_frame(piece))
            await asyncio.sleep(0.1)
        await answer.send(chat_frame(finish="stop"))
        await answer.send(DONE)
        await answer.end()

    backend.play(slow)
    response = line.begin("POST", "/v1/chat/completions", ask(stream=True))
    seen = [(when, data) for when, data in arrivals(response) if b"word" in data]
    assert len(seen) == len(pieces)
    assert all(abs(when - sent) < 0.09 for (when, _), sent in zip(seen, times, strict=True))


# -- HTTP/2 --


class H2Backend:
    """An HTTP/2 backend that continues after its call. It uses TLS, because mitmproxy does not support HTTP/2 without
    TLS.
    """

    def __init__(self, certificate: Path) -> None:
        self.sent: list[int] = []
        self.reset = threading.Event()
        self.connections = 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._context.set_alpn_protocols(["h2"])
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> H2Backend:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._context)
        self.port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        connection.initiate_connection()
        talks: dict[int, asyncio.Task[None]] = {}
        try:
            writer.write(connection.data_to_send())
            while data := await reader.read(65536):
                for event in connection.receive_data(data):
                    match event:
                        case h2.events.StreamEnded(stream_id=number):
                            talks[number] = asyncio.create_task(self._talk(connection, writer, number))
                        case h2.events.StreamReset(stream_id=number):
                            talks[number].cancel()
                            self.reset.set()
                writer.write(connection.data_to_send())
        finally:
            for talk in talks.values():
                talk.cancel()
            writer.close()

    async def _talk(self, connection: h2.connection.H2Connection, writer: asyncio.StreamWriter, number: int) -> None:
        index = len(self.sent)
        self.sent.append(0)
        connection.send_headers(number, [(":status", "200"), ("content-type", "text/event-stream")])
        for text in ("Let me look. ", "", CALL, *[" and the weather is fine"] * TALK):
            # The empty string becomes an empty DATA frame. It must not be mistaken for the end of the stream.
            connection.send_data(number, chat_frame(text) if text else b"")
            writer.write(connection.data_to_send())
            self.sent[index] += 1
            await asyncio.sleep(PIECE)
        connection.end_stream(number)
        writer.write(connection.data_to_send())


@pytest.fixture(scope="module")
def h2_backend(proxy: Mitmdump) -> Iterator[H2Backend]:
    # Any certificate works, because this mitmproxy does not verify certificates.
    with H2Backend(proxy.authority.with_name("mitmproxy-ca.pem")) as backend:
        yield backend


def curl(proxy: Mitmdump, body: object, count: int) -> list[bytes]:
    """Send ``count`` requests one after another over a single HTTP/2 connection, and return the responses."""
    command = ["curl", "-sS", "--http2", "-k", "--max-time", "20"]
    for number in range(count):
        command += ["--next"] * bool(number)
        command += [
            "-H",
            "content-type: application/json",
            "-d",
            json.dumps(body),
            "-w",
            "\n%{num_connects} %{http_version}\x1e",
        ]
        command += ["-sS", "--http2", "-k", "--max-time", "20", f"https://127.0.0.1:{proxy.port}/v1/chat/completions"]
    answers = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.split(b"\x1e")[:-1]
    assert [answer.rsplit(b"\n", 1)[1].split()[0] for answer in answers] == [b"1"] + [b"0"] * (count - 1)
    assert all(answer.endswith(b" 2") for answer in answers)
    return answers


def test_http2_client_connection_stays_open(backend: RawBackend, proxy: Mitmdump, ask: Any) -> None:
    """If a turn is ended after its call, the client's HTTP/2 connection stays open."""
    backend.play(talks_on)
    for answer in curl(proxy, ask(stream=True), 3):
        assert answer.count(DONE) == 1
        assert b'"get_weather"' in answer
        assert b"weather is fine" not in answer
    assert all(asked.gone.wait(5) for asked in backend.asked)
    assert all(asked.sent <= 5 for asked in backend.asked)


def test_http2_backend_connection_stays_open(h2_backend: H2Backend, ask: Any) -> None:
    """If a turn is ended early and the backend uses HTTP/2, only the turn's stream is reset. The connection to the
    backend stays open.

    mitmproxy uses HTTP/2 with a backend only if the client uses HTTP/2 as well.
    """
    target = f"https://127.0.0.1:{h2_backend.port}"
    with Mitmdump(target, ssl_insecure=True, toolsim_stop_after_tools="on", toolsim_engine="unknown") as proxy:
        for answer in curl(proxy, ask(stream=True), 3):
            assert answer.count(DONE) == 1
            assert b'"get_weather"' in answer
            assert b"weather is fine" not in answer
        assert h2_backend.reset.wait(5)
        assert max(h2_backend.sent) <= 6
        assert h2_backend.connections == 1
