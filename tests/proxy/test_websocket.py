"""Tests for WebSocket connections with real processes: the cases of the Open Responses suite, access, limits, and how
connections end.

The client is the ``websockets`` library or, in tests of frames, a plain socket.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.effort import places
from support.line import Line
from support.mcp_servers import OFFICIAL
from support.mitmdump import Mitmdump
from support.open_responses import check_event, check_response, types
from support.raw_backend import Answer, RawBackend
from support.recording import context
from support.text_backend import TextBackend, Turn, refuses, says
from support.wire import DONE, chat_frame
from test_open_responses import REQUESTS
from toolsim.proxy.upgrades import MAX_CONNECTIONS
from toolsim.recordings.replay import replay_file

websockets = pytest.importorskip("websockets.sync.client", reason="needs the extra [clients]: run `make setup`")
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402

pytestmark = pytest.mark.slow

TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}}
CALL = '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Paris\\"}"}</tool_call>'
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
SECONDS = 20


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend() as backend:
        yield backend


@pytest.fixture(scope="module", params=["chat", "responses"])
def proxy(request: pytest.FixtureRequest, backend: TextBackend) -> Iterator[Mitmdump]:
    with Mitmdump(backend.url, toolsim_backend=request.param, toolsim_max_body_bytes=200_000) as proxy:
        yield proxy


class Client:
    """A WebSocket client that checks each message against the published schemas.

    These schemas do not include MCP items, so tests with MCP tools set ``is_strict`` to False.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.is_strict = True

    def send(self, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": "response.create", "model": "m", "store": False, **fields}))

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.connection.recv(timeout=SECONDS))
        if message["type"] == "error" and "status" in message:
            types.WebSocketErrorEvent.model_validate(message)
        elif self.is_strict and message["type"] != "response.steer.failed":
            check_event({key: value for key, value in message.items() if key != "stream_id"})
        return message

    def events(self) -> list[dict[str, Any]]:
        """Return all messages up to and including the last event of the current answer."""
        got = [self.message()]
        while got[-1]["type"] not in ENDS:
            got.append(self.message())
        return got

    def final(self) -> dict[str, Any]:
        last = self.events()[-1]
        assert last["type"] == "response.completed", last
        if self.is_strict:
            check_response(last["response"])
        return dict(last["response"])

    def ask(self, text: Any, **fields: Any) -> dict[str, Any]:
        self.send(input=text, **fields)
        return self.final()

    def error(self) -> dict[str, Any]:
        last = self.events()[-1]
        assert last["type"] == "error", last
        return dict(last["error"])


@contextmanager
def connected(proxy: Mitmdump, path: str = "/v1/responses", **headers: str) -> Iterator[Client]:
    given = {"authorization": "Bearer k", **headers}
    url = proxy.url.replace("http", "ws") + path
    with websockets.connect(url, additional_headers=given, max_size=None) as connection:
        yield Client(connection)


@pytest.fixture
def client(proxy: Mitmdump) -> Iterator[Client]:
    with connected(proxy) as client:
        yield client


def resident_megabytes(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def shown(backend: TextBackend) -> str:
    return "\n".join(text for _, text in backend.exchanges[-1].transcript)


def words(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


# -- cases of the Open Responses suite, with the suite's names


def test_websocket_response_and_sequential_responses(client: Client, backend: TextBackend) -> None:
    """Requests on the same connection are answered in order, with consecutive sequence numbers."""
    backend.play([says("Fir", "st."), says("Second.")])
    client.send(input=[{"type": "message", "role": "user", "content": "Count."}])
    client.send(input="Again.")
    events = client.events()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert words(events[-1]["response"]) == "First."
    assert words(client.final()) == "Second."
    assert [len(exchange.transcript) for exchange in backend.exchanges] == [1, 1]


def test_websocket_continuation(client: Client, backend: TextBackend) -> None:
    """A request can continue a previous response, even if its input is the output of a call. The new response contains
    the ID of the previous one.
    """
    backend.play([says("OK.", CALL), says("Cobalt."), says("Done.")])
    first = client.ask("Remember cobalt.", tools=[TOOL])
    output = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "18"}
    second = client.ask([output], previous_response_id=first["id"], tools=[TOOL])
    assert (second["previous_response_id"], words(second)) == (first["id"], "Cobalt.")
    places = [shown(backend).index(text) for text in ("Remember cobalt.", "OK.", "18")]
    assert places == sorted(places)
    client.ask("And?", previous_response_id=second["id"])
    assert "Cobalt." in shown(backend)


def test_undeclared_call_becomes_text(client: Client, backend: TextBackend) -> None:
    """If the model calls an undeclared tool, text replaces the call, and later prompts contain only that text."""
    backend.play([says('{"name": "greet", "arguments": {}}'), says("Hel", "lo!"), says("Fine.")])
    first = client.ask("Hi!", tools=[TOOL])
    assert words(first) == "Hello!"
    assert words(client.ask("How are you?", previous_response_id=first["id"], tools=[TOOL])) == "Fine."
    assert "Hello!" in shown(backend)
    assert "greet" not in shown(backend)


def test_websocket_reconnect_store_false_recovery(proxy: Mitmdump, backend: TextBackend) -> None:
    """An answer that was not stored is lost when its connection ends. A new conversation can then be started."""
    backend.play([says("OK."), says("Recovered.")])
    with connected(proxy) as client:
        first = client.ask("Remember copper.")
    with connected(proxy) as client:
        client.send(input="Word?", previous_response_id=first["id"])
        assert client.error()["code"] == "previous_response_not_found"
        assert words(client.ask("Start anew.")) == "Recovered."


def test_websocket_failed_continuation_evicts_cache(client: Client, backend: TextBackend) -> None:
    """Send ``data``. If a tunnel is established, send ``then`` as well. Return the responses."""
    backend.play([says("OK."), says("OK."), refuses(500, "Out.")])
    for wrong in ([{"type": "function_call_output", "call_id": "call_missing", "output": "x"}], "Go on."):
        first = client.ask("Remember ember.")
        client.send(input=wrong, previous_response_id=first["id"])
        assert client.error()
        client.send(input="Stale?", previous_response_id=first["id"])
        assert client.error()["code"] == "previous_response_not_found"


def test_websocket_compact_new_chain(client: Client, proxy: Mitmdump, backend: TextBackend) -> None:
    """A WebSocket conversation can begin with the output of the compaction endpoint."""
    backend.play([says("The word is slate."), says("Slate.")])
    with Line(proxy.url) as line:
        items = [{"type": "message", "role": "user", "content": "Remember slate."}]
        compacted = line.post("/v1/responses/compact", {"model": "m", "input": items}).json()
    answer = client.ask([*compacted["output"], {"type": "message", "role": "user", "content": "Word?"}])
    assert "The word is slate." in shown(backend)
    assert answer["previous_response_id"] is None


@pytest.mark.parametrize("name", REQUESTS)
def test_http_cases_over_websocket(client: Client, proxy: Mitmdump, backend: TextBackend, name: str) -> None:
    """The HTTP cases of the Open Responses suite result in the same prompts and answers over WebSocket. All events
    conform to the schemas.
    """
    sent, text = REQUESTS[name]
    backend.play(lambda _: says(text))
    answer = client.ask(sent["input"], **{key: value for key, value in sent.items() if key != "input"})
    with Line(proxy.url) as line:
        other = line.post("/v1/responses", {"model": "m", "store": False, **sent}, Authorization="Bearer k").json()
    for response in answer, other:
        check_response(response)
        for item in response["output"]:
            item.pop("id")
        for key in "id", "created_at", "completed_at":
            response.pop(key)
    assert answer == other
    over_websocket, over_http = (exchange.transcript for exchange in backend.exchanges)
    assert over_websocket == over_http


# -- other behavior of connections


def test_streams_of_one_connection_are_independent(client: Client, backend: TextBackend) -> None:
    """If one of two streams on a connection is canceled, the other continues. Each message contains the ID of its
    stream.
    """
    slow = says(*["word "] * 200, pause=0.05)
    backend.play(lambda exchange: slow if "slow" in str(exchange.transcript) else says("Fast."))
    client.send(input="slow", stream_id="a")
    created = client.message()
    client.send(input="fast", stream_id="b")
    while (message := client.message())["type"] != "response.completed":
        assert message["stream_id"] in ("a", "b")
    assert (message["stream_id"], words(message["response"])) == ("b", "Fast.")
    client.connection.send(json.dumps({"type": "response.cancel", "response_id": created["response"]["id"]}))
    last = client.events()[-1]
    assert (last["stream_id"], last["response"]["status"]) == ("a", "cancelled")
    [asked] = [exchange for exchange in backend.exchanges if "slow" in str(exchange.transcript)]
    assert asked.over.wait(SECONDS)
    assert not asked.whole
    assert words(client.ask("fast", stream_id="a")) == "Fast."


def test_invalid_messages_are_refused(client: Client, backend: TextBackend) -> None:
    """Requests to steer an answer, background requests and invalid messages are refused with an error. The connection
    stays open.
    """
    backend.play([says("OK.")])
    client.connection.send(json.dumps({"type": "response.steer", "previous_response_id": "r", "input": "x"}))
    assert client.message()["error"]["code"] == "steering_not_supported"
    client.send(input="x", background=True)
    assert client.error()["param"] == "background"
    for wrong in ("[", '{"type":"session.update"}', '{"type":"response.create","tools":5}'):
        client.connection.send(wrong)
        assert client.error()["type"] == "invalid_request_error"
    assert words(client.ask("x")) == "OK."


def test_disconnect_stops_the_model(proxy: Mitmdump, backend: TextBackend) -> None:
    """If the client disconnects, with or without a close frame, the request to the backend is aborted."""
    for is_rude in (False, True):
        backend.play([says(*["word "] * 500, pause=0.05)])
        with connected(proxy) as client:
            client.send(input="x")
            client.message()
            if is_rude:
                client.connection.socket.shutdown(socket.SHUT_RDWR)
        assert backend.exchanges[-1].over.wait(SECONDS)
        assert not backend.exchanges[-1].whole


def test_dying_backend_is_an_error(client: Client, backend: TextBackend) -> None:
    """If the backend dies in the middle of an answer, the answer ends as failed. The next request succeeds."""
    backend.play([says("Half", ending="eof"), says("OK.")])
    client.send(input="x", tools=[TOOL])
    assert client.events()[-1]["type"] == "response.failed"
    assert words(client.ask("x")) == "OK."


@pytest.mark.ci
def test_oversized_and_binary_data(proxy: Mitmdump, backend: TextBackend) -> None:
    """A request that is too large fails. Binary data, or too much data, closes the connection, but no other
    connections.
    """
    backend.play(lambda _: says("OK."))
    with connected(proxy) as other:
        with connected(proxy) as client:
            client.send(input="x" * 300_000)
            assert client.error()["code"] == "request_too_large"
            client.connection.send(b"x")
            with pytest.raises(ConnectionClosed, match="1003"):
                client.message()
        with connected(proxy) as client:
            client.connection.send("x" * 500_000)
            with pytest.raises(ConnectionClosed):
                client.message()
        with connected(proxy) as client:
            # 600 messages are fewer than a connection may send in a burst.
            for _ in range(600):
                client.send(input="x")
            ends = [client.events()[-1] for _ in range(600)]
            refused = [end["error"]["code"] for end in ends if end["type"] == "error"]
            assert set(refused) == {"rate_limit_exceeded"}
            assert 0 < len(refused) < 600
        size = resident_megabytes(proxy.pid)
        with connected(proxy) as client:
            with suppress(ConnectionClosed):
                client.connection.send("x" * 100_000_000)
            with pytest.raises(ConnectionClosed):
                client.message()
        assert resident_megabytes(proxy.pid) < size + 20
        assert words(other.ask("x")) == "OK."


@pytest.mark.ci
def test_connections_per_key_are_limited(proxy: Mitmdump, backend: TextBackend) -> None:
    """The number of connections per API key is limited, regardless of the spelling of the Authorization header. Closed
    connections no longer count.
    """
    backend.play(lambda _: says("OK."))
    spellings = ["Bearer many", "bearer many", "BEARER many", "Bearer  many", "many"]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(connected(proxy, authorization=spellings[number % len(spellings)]))
            for number in range(MAX_CONNECTIONS)
        ]
        with pytest.raises(InvalidStatus) as raised, connected(proxy, authorization="bearer  many"):
            pass
        assert raised.value.response.status_code == 429
        with connected(proxy) as other:
            assert words(other.ask("x")) == "OK."
        assert words(clients[-1].ask("x")) == "OK."
        clients[0].connection.close()
        with connected(proxy, authorization="Bearer many") as client:
            assert words(client.ask("x")) == "OK."


def test_stop_closes_connections_with_code_1001(backend: TextBackend) -> None:
    """When the proxy stops, busy and idle connections are closed with code 1001, and the request to the backend is
    aborted.
    """
    backend.play([says(*["word "] * 500, pause=0.05)])
    with Mitmdump(backend.url, toolsim_backend="chat") as proxy, connected(proxy) as idle, connected(proxy) as client:
        client.send(input="x")
        client.message()
        os.kill(proxy.pid, signal.SIGTERM)
        last = client.events()[-1]
        assert last["error"]["message"] == "The proxy was stopped before the response was complete."
        for each in (client, idle):
            with pytest.raises(ConnectionClosed, match="1001"):
                each.message()
        assert backend.exchanges[-1].over.wait(SECONDS)


def frame(payload: bytes, first: int = 0x81) -> bytes:
    """Return a client frame with the given payload, masked with a key of zeros."""
    size = len(payload)
    head = bytes([first, 0x80 | size]) if size < 126 else bytes([first, 0xFE]) + struct.pack(">H", size)
    return head + b"\0\0\0\0" + payload


@contextmanager
def raw(proxy: Mitmdump) -> Iterator[socket.socket]:
    """Open a WebSocket connection, and yield its socket. The caller reads and writes the frames."""
    with closing(socket.create_connection(("127.0.0.1", proxy.port), SECONDS)) as connection:
        head = (
            f"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        connection.sendall(head.encode())
        received = b""
        while not received.endswith(b"\r\n\r\n"):
            received += connection.recv(1)
        assert received.startswith(b"HTTP/1.1 101"), received
        yield connection


@pytest.mark.ci
def test_fragments_and_invalid_frames(proxy: Mitmdump, backend: TextBackend) -> None:
    """A request that is split into fragments is reassembled. Incomplete or invalid frames and random bytes end the
    connection, but no other connections.
    """
    backend.play(lambda _: says("OK."))
    text = json.dumps({"type": "response.create", "model": "m", "store": False, "input": "Grüße 🌞"}).encode()
    with raw(proxy) as connection:
        for place, at in enumerate(text):
            last = place == len(text) - 1
            connection.sendall(frame(bytes([at]), (0x80 if last else 0) | (1 if not place else 0)))
        assert b"response.created" in connection.recv(65536)
    assert backend.exchanges[-1].transcript[-1][1] == "Grüße 🌞"
    whole = frame(text)
    asked = len(backend.exchanges)
    with raw(proxy) as stalled:
        stalled.sendall(whole[:9])
        for at in range(len(whole)):
            with raw(proxy) as connection:
                connection.sendall(whole[:at])
        stalled.sendall(whole[9:])
        assert b"response.created" in stalled.recv(65536)
    assert len(backend.exchanges) == asked + 1
    for bad in (frame(b"\xff\xfe"), frame(b"x", 0xF1), b"\x83\x80\0\0\0\0", bytes(range(256)) * 4):
        with raw(proxy) as connection:
            connection.sendall(bad)
            connection.settimeout(SECONDS)
            while connection.recv(65536):
                pass
    with connected(proxy) as client:
        assert words(client.ask("x")) == "OK."


def test_client_disconnects_after_any_message(proxy: Mitmdump, backend: TextBackend) -> None:
    """If a client disconnects after any number of messages, its answer is aborted. The next client is answered."""
    backend.play(lambda _: says(*["word "] * 8, pause=0.02))
    for count in range(12):
        with connected(proxy) as client:
            client.send(input="x")
            for _ in range(count):
                client.message()
        if count:
            assert backend.exchanges[-1].over.wait(SECONDS)
    with connected(proxy) as client:
        assert words(client.ask("x")) == "word " * 8


@pytest.mark.ci
def test_backend_dies_after_any_byte() -> None:
    """If the backend dies after any byte, the answer ends exactly once. Unless it was already complete, it ends with an
    error.
    """
    frames = [chat_frame("Hel"), chat_frame("lo"), chat_frame(finish="stop"), DONE]
    body = b"".join(b"%x\r\n%s\r\n" % (len(frame), frame) for frame in frames) + b"0\r\n\r\n"
    answer_bytes = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    whole = answer_bytes.index(DONE)
    at_each = sorted({*places(0, len(answer_bytes)), *range(whole - 20, len(answer_bytes) + 1)})
    cuts = iter(at_each)

    async def answer(asked: Answer) -> None:
        if not asked.asked.path.endswith("/chat/completions"):
            await asked.whole(b"{}", 404)
            return
        at = next(cuts)
        await asked.raw(answer_bytes[:at])
        asked.hang_up()

    ends: list[str] = []
    with RawBackend() as raw_backend:
        raw_backend.play(answer)
        with Mitmdump(raw_backend.url, toolsim_backend="chat") as proxy, connected(proxy) as client:
            for _ in at_each:
                client.send(input="x")
                last = client.events()[-1]
                ends.append(last["type"])
                if last["type"] == "response.completed":
                    assert words(last["response"]) == "Hello"
    first_whole = ends.index("response.completed")
    assert set(ends[:first_whole]) == {"error", "response.failed"}
    assert set(ends[first_whole:]) == {"response.completed"}
    assert at_each[first_whole] > answer_bytes.index(b'"lo"')


def test_client_that_does_not_read(proxy: Mitmdump, backend: TextBackend) -> None:
    """If a client does not read, the proxy stops reading from the backend. Other clients are still answered."""
    backend.play(lambda exchange: says(*["x" * 10_000] * 3_000) if "much" in str(exchange.transcript) else says("OK."))
    with raw(proxy) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        much = {"type": "response.create", "model": "m", "store": False, "input": "much"}
        stalled.sendall(frame(json.dumps(much).encode()))
        stalled.recv(100)
        [exchange] = backend.exchanges
        sent = -1
        while sent != (sent := len(exchange.sent)):
            with connected(proxy) as client:
                assert words(client.ask("x")) == "OK."
            time.sleep(0.3)
        assert 0 < sent < 3_000
    assert exchange.over.wait(SECONDS)
    assert not exchange.whole


def test_unread_data_is_bounded_per_connection() -> None:
    """The amount of data that is buffered for a client that does not read is limited per connection, regardless of the
    number of answers.
    """
    streams, piece = 16, chat_frame("x" * 60_000)
    sent = [0]

    async def answer(asked: Answer) -> None:
        if not asked.asked.path.endswith("/chat/completions"):
            await asked.whole(b"{}", 404)
            return
        await asked.head(Content_Type="text/event-stream")
        while True:
            await asked.send(piece)
            sent[0] += len(piece)

    with RawBackend() as raw_backend:
        raw_backend.play(answer)
        with Mitmdump(raw_backend.url, toolsim_backend="chat", toolsim_max_body_bytes=500_000_000) as proxy:
            with connected(proxy) as client:
                client.ask("x", generate=False)
            size = resident_megabytes(proxy.pid)
            with raw(proxy) as stalled:
                stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                for number in range(streams):
                    create = {"type": "response.create", "model": "m", "input": "x", "stream_id": str(number)}
                    stalled.sendall(frame(json.dumps(create).encode()))
                before = -1
                while before != (before := sent[0]):
                    time.sleep(1)
                assert sent[0] > 0
                assert resident_megabytes(proxy.pid) < size + 30


def test_concurrent_streams_stay_separate(proxy: Mitmdump, backend: TextBackend) -> None:
    """With two connections and two streams each, answers and conversations are not mixed up over many turns."""

    def echo(exchange: Any) -> Turn:
        return says("<", exchange.transcript[-1][1], ">")

    backend.play(echo)
    wrong: list[str] = []

    def talk(name: str) -> None:
        with connected(proxy, authorization=f"Bearer {name}") as client:
            previous: dict[str, str] = {}
            for turn in range(15):
                for lane in "ab":
                    more = {"previous_response_id": previous[lane]} if turn % 5 else {}
                    client.send(input=f"{name}-{lane}-{turn}", stream_id=lane, **more)
                for _ in "ab":
                    got, texts = "", {}
                    while got != "response.completed":
                        message = client.message()
                        got, lane = message["type"], message["stream_id"]
                        texts[lane] = texts.get(lane, "") + message.get("delta", "")
                    previous[lane] = message["response"]["id"]
                    if words(message["response"]) != f"<{name}-{lane}-{turn}>":
                        wrong.append(words(message["response"]))

    threads = [threading.Thread(target=talk, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for exchange in backend.exchanges:
        own = exchange.transcript[-1][1].rpartition("-")[0]
        assert all(own in text for _, text in exchange.transcript), exchange.transcript
        assert len(exchange.transcript) == 2 * (int(exchange.transcript[-1][1].rpartition("-")[2]) % 5) + 1


def test_upgrade_requires_the_key(backend: TextBackend) -> None:
    """An upgrade to a WebSocket connection requires the API key, which is not passed on. With ``websocket=false``, all
    upgrades are refused.
    """
    backend.play(lambda _: says("OK."))
    with Mitmdump(backend.url, toolsim_backend="chat", toolsim_api_key="secret") as proxy:
        with pytest.raises(InvalidStatus) as raised, connected(proxy):
            pass
        assert raised.value.response.status_code == 401
        assert json.loads(raised.value.response.body)["error"]["code"] == "invalid_api_key"
        with connected(proxy, authorization="Bearer secret") as client:
            assert words(client.ask("x")) == "OK."
        assert "authorization" not in backend.exchanges[-1].headers
    with Mitmdump(backend.url, arguments=("--set", "websocket=false"), toolsim_backend="chat") as proxy:
        with pytest.raises(InvalidStatus) as raised, connected(proxy):
            pass
        assert raised.value.response.status_code == 426


def test_unlisted_page_is_refused(proxy: Mitmdump) -> None:
    """If a web page requests an upgrade, and its origin is not listed, the upgrade is refused."""
    with pytest.raises(InvalidStatus) as raised, connected(proxy, origin="https://evil.example"):
        pass
    assert raised.value.response.status_code == 403
    with connected(proxy, origin="app://obsidian.md"):
        pass


def test_stored_answer_is_continued_over_http(backend: TextBackend) -> None:
    """With a store, a client whose WebSocket connection has ended can continue the conversation over HTTP. Items are
    stored only once.
    """
    with Mitmdump(backend.url, toolsim_backend="chat", toolsim_store="memory") as proxy:
        backend.play([says("OK."), says("Cobalt."), says("Cobalt."), says("No.")])
        with connected(proxy) as client:
            first = client.ask("Remember cobalt.", store=True)
            second = client.ask("Word?", store=True, previous_response_id=first["id"])
        with Line(proxy.url) as line:
            headers = {"Authorization": "Bearer k"}
            body = {"model": "m", "input": "Again?", "previous_response_id": second["id"]}
            assert line.post("/v1/responses", body, **headers).json()["previous_response_id"] == second["id"]
            assert [text for _, text in backend.exchanges[-1].transcript][::2] == [
                "Remember cobalt.",
                "Word?",
                "Again?",
            ]
            items = line.request("GET", f"/v1/responses/{second['id']}/input_items", **headers).json()["data"]
            assert len(items) == 1


def test_rounds_mcp_tools_and_recordings(backend: TextBackend, tmp_path: Path) -> None:
    """Retries and MCP tools work over WebSocket as they do over HTTP, and each request is recorded."""
    servers = {"calc": OFFICIAL | {"require_approval": "never", "timeout": 15}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    strict = {**TOOL, "strict": True, "parameters": {**TOOL["parameters"], "required": ["city"]}}
    add = '<tool_call>{"name":"calc__add","arguments":"{\\"a\\":1,\\"b\\":2}"}</tool_call>'
    options = {"toolsim_mcp_config": str(tmp_path / "mcp.json"), "toolsim_capture": str(tmp_path / "captured")}
    with Mitmdump(backend.url, toolsim_backend="chat", toolsim_retry=1, **options) as proxy, connected(proxy) as client:
        client.is_strict = False
        backend.play([says(CALL.replace("city", "town")), says(add), says(CALL), says("Three, and rain.")])
        first = client.ask("Weather?", tools=[strict])
        kinds = [item["type"] for item in first["output"] if item["type"] != "mcp_list_tools"]
        assert kinds == ["mcp_call", "function_call"]
        output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "rain"}
        second = client.ask([output], tools=[strict], previous_response_id=first["id"])
        assert words(second) == "Three, and rain."
        places = [shown(backend).rindex(text) for text in ("Weather?", "calc__add", "rain")]
        assert places == sorted(places)
    files = list((tmp_path / "captured").glob("*.flow"))
    assert len(files) == 4
    with context():
        assert [str(result) for result in map(replay_file, files) if not result.same] == []
