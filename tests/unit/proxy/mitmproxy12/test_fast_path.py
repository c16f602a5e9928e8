"""Comparison of the fast path with mitmproxy's own layers. For each read from the backend, both must write the same
bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import operator
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, override

import pytest
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import ConnectionState
from mitmproxy.options import Options
from mitmproxy.proxy import layers
from mitmproxy.proxy.commands import OpenConnection, RequestWakeup, StartHook
from mitmproxy.proxy.events import OpenConnectionCompleted, Start
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.proxy.server import ConnectionIO, LiveConnectionHandler
from mitmproxy.test import taddons
from support.effort import some
from support.wire import ApiName, ChatAnswer, ResponsesAnswer, usage
from toolsim.core import time_slice
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy.exchange import Exchange, Exchanges
from toolsim.proxy.guard import Guard
from toolsim.proxy.jobs import run
from toolsim.proxy.mitmproxy12 import chunks, fast_path, guarded, patches, response_pump
from toolsim.proxy.options.settings import Limits
from toolsim.response.rewrite import ResponseRewriter

Installed = tuple[Proxyserver, Options]

CALL = '<tool_call>{"name": "write", "arguments": {"path": "a.py", "text": "print(1 < 2)\\n"}}</tool_call>'
TEXTS = {
    "prose": "If a < b, use the <b>first</b> one; else [look] it up in the table below.\n" * 3,
    "call": f"Let me write it down, in that very file.\n{CALL}",
    "call and more": f"Let me write it down.\n{CALL}\nAnd that is all that there is to say about it.",
    "two calls": f"{CALL}{CALL}",
    "escapes": 'Say "ä" — \\ and \U0001f642\t\n' * 6,
}
EXCHANGES = Exchanges()
TOOL = {"name": "write", "parameters": {"type": "object"}}
ASKED: dict[ApiName, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": TOOL}]},
    ),
    "responses": ("/v1/responses", {"input": "hi", "tools": [{"type": "function", **TOOL}]}),
}
THOUGHT = ("Let", " me", " see", ".", " So", " be", " it", ".")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    guard = Guard()
    patches.install(EXCHANGES, guard)
    guard.stop()  # Otherwise, the guard would reject every flow, because no addon is loaded.
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    monkeypatch.setattr("time.time", lambda: 1_764_967_971.0)
    # With the normal time slices, the fast path and mitmproxy's layers could pause at different points on a busy
    # machine.
    monkeypatch.setattr(time_slice, "SLICE_SECONDS", 60)
    yield
    patches.uninstall()
    EXCHANGES.forget()


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    with taddons.context(proxyserver := Proxyserver()) as context:
        yield proxyserver, context.options


class Pipe(asyncio.Transport):
    """An in-memory substitute for one of the proxy's two connections.

    ``sent`` lists each write with the name of its connection. Closing a connection is recorded as the write "closed".
    """

    def __init__(self, name: str, sent: list[tuple[str, bytes]]) -> None:
        super().__init__({"peername": (name, 1), "sockname": ("p", 2)})
        self._name, self._sent = name, sent
        self.waiting = 0
        self.is_over = False
        self.reader = asyncio.StreamReader()
        self._protocol: Any = asyncio.StreamReaderProtocol(self.reader)
        self.writer = asyncio.StreamWriter(self, self._protocol, self.reader, asyncio.get_running_loop())
        self._protocol.connection_made(self)

    def receive(self, data: bytes) -> None:
        """Deliver data to the protocol in the way that asyncio does."""
        try:
            self._protocol.data_received(data)
        except Exception as problem:
            self.lose(problem)

    def lose(self, problem: Exception | None = None) -> None:
        """Simulate a connection that is lost rather than closed."""
        self.is_over = True
        self._protocol.connection_lost(problem)

    @override
    def write(self, data: Any) -> None:
        self._sent.append((self._name, bytes(data)))

    @override
    def close(self) -> None:
        if not self.is_over:
            self._sent.append(("closed", b""))
            self.lose()

    @override
    def is_closing(self) -> bool:
        return self.is_over

    @override
    def get_write_buffer_size(self) -> int:
        return self.waiting

    @override
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    @override
    def get_protocol(self) -> Any:
        return self._protocol

    @override
    def is_reading(self) -> bool:
        return True

    @override
    def pause_reading(self) -> None: ...

    @override
    def resume_reading(self) -> None: ...


class Proxy(LiveConnectionHandler):
    """mitmproxy's handler for one client connection, with the addon's hooks but without sockets."""

    def __init__(self, proxyserver: Proxyserver, options: Options, api_name: ApiName, policy: Policy) -> None:
        self._dialect: ApiName = api_name
        self._policy = policy
        self.sent: list[tuple[str, bytes]] = []
        self._to_client = Pipe("client", self.sent)
        mode = ProxyMode.parse("reverse:http://b:1")
        super().__init__(self._to_client.reader, self._to_client.writer, options, mode)
        proxyserver.connections[self.client.id] = self  # type: ignore[assignment]
        self.backend: Pipe | None = None
        self.exchange: Exchange | None = None
        self._pauses: list[asyncio.Event] = []
        self.sent_before_watching: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def stream(self) -> Any:
        (http,) = (layer for layer in self.layer.context.layers if isinstance(layer, layers.HttpLayer))
        (stream,) = http.streams.values()
        return stream

    async def ask(self) -> None:
        """Send the client's request, which offers a tool."""
        path, asked = ASKED[self._dialect]
        body = json.dumps({"model": "m", "stream": True, **asked}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        await self.server_event(Start())
        task = asyncio.create_task(self.handle_connection(self.client))
        self.transports[self.client].handler = task
        self._tasks.append(task)
        self._to_client.receive(head.encode() + body)
        await settle()

    async def read(self, data: bytes, *, unread: int = 0) -> list[tuple[str, bytes]]:
        """Deliver data from the backend and return the resulting writes.

        ``unread`` is the number of bytes that the client has not yet read.
        """
        self.sent.clear()
        pauses, self._pauses = self._pauses, []
        assert self.backend is not None
        self._to_client.waiting = unread
        if not self.backend.is_over:
            self.backend.receive(data)
        await settle()
        for pause in pauses:
            pause.set()
            await settle()
        return list(self.sent)

    async def rest(self) -> list[tuple[str, bytes]]:
        """Wait until the stream no longer pauses, and return the resulting writes."""
        self.sent.clear()
        while self._pauses:
            self._pauses.pop(0).set()
            await settle()
        return list(self.sent)

    async def stop(self) -> None:
        """Cancel all tasks of this connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @override
    async def open_connection(self, command: OpenConnection) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        await asyncio.sleep(0)
        self.backend = Pipe("backend", self.sent)
        command.connection.state = ConnectionState.OPEN
        self.transports[command.connection] = ConnectionIO(task, self.backend.reader, self.backend.writer)
        await self.server_event(OpenConnectionCompleted(command, None))
        await self.handle_connection(command.connection)

    @override
    async def wakeup(self, request: RequestWakeup) -> None:
        self.sent_before_watching.append(len(self.sent))

    @override
    async def handle_hook(self, hook: StartHook) -> None:
        (subject,) = hook.args()
        if isinstance(hook, response_pump.ToolsimPauseHook):
            self._pauses.append(asyncio.Event())
            await self._pauses[-1].wait()
        elif isinstance(subject, NextLayer):
            is_first = not subject.context.layers
            http = layers.HttpLayer
            layer = (
                layers.modes.ReverseProxy(subject.context) if is_first else http(subject.context, HTTPMode.transparent)
            )
            subject.layer = layer
        elif hook.name == "request":
            self.exchange = Exchange(Report(), client_id=self.client.id, cors={}, limits=Limits(10))
            EXCHANGES.open(subject, self.exchange)
            job = self.exchange.request_job(subject, self._dialect, self._policy)
            assert job is not None
            self.exchange.take_request(subject, run(job))
        elif hook.name == "responseheaders":
            assert self.exchange is not None
            self.exchange.begin(subject)


async def settle() -> None:
    """Run the event loop until all ready tasks have finished."""
    for _ in range(12):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def asked(
    proxyserver: Proxyserver, options: Options, api_name: ApiName, policy: Policy | None = None
) -> AsyncIterator[Proxy]:
    """Yield a proxy that has forwarded a request to its backend."""
    proxy = Proxy(proxyserver, options, api_name, policy or Policy())
    await proxy.ask()
    try:
        yield proxy
    finally:
        await proxy.stop()


def frames_of(api_name: ApiName, text: str, step: int) -> list[bytes]:
    answer = (ChatAnswer if api_name == "chat" else ResponsesAnswer)(counts=usage(api_name, 3, 4))
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    spoken = [frame for piece in pieces for frame in answer.add_text(piece)]
    thought = [
        frame
        for piece in ("Let", " me", " see", ".", " So", " be", " it", ".")
        for frame in answer.add_reasoning(piece)
    ]
    return [*answer.begin(), *(thought if api_name == "chat" else []), *spoken, *answer.end()]


def chunked(pieces: Sequence[bytes]) -> list[bytes]:
    return [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def sent_by(
    installed: Installed,
    api_name: ApiName,
    policy: Policy,
    reads: Sequence[bytes],
    *,
    long: bool,
    unread: Sequence[int] = (),
    eager: bool = True,
) -> tuple[list[list[tuple[str, bytes]]], int]:
    """Return the writes for each read, and the number of reads that reached mitmproxy's layers.

    ``unread`` lists, for each read, the number of bytes that the client has not yet read. If ``eager`` is true, new
    tasks start immediately, as in mitmproxy 12.2 and later.
    """
    reached = 0
    waiting = [*unread, *[0] * (len(reads) + 2 - len(unread))]

    def reading(*arguments: Any) -> Any:
        nonlocal reached
        reached += 1
        return read_body(*arguments)

    async def play() -> list[list[tuple[str, bytes]]]:
        if eager:
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[arg-type]
        async with asked(*installed, api_name, policy) as proxy:
            usual = proxy.backend and proxy.backend.get_protocol()
            found = [
                await proxy.read(data, unread=size)
                for data, size in zip([HEAD, *reads, b"0\r\n\r\n"], waiting, strict=True)
            ]
            found.append(await proxy.rest())
            # By now, the fast path has restored the original protocol.
            assert proxy.backend is not None
            assert proxy.backend.get_protocol() is usual
            return found

    with pytest.MonkeyPatch.context() as patch:
        read_body = fast_path.Http1Client.read_body
        patch.setattr(fast_path.Http1Client, "read_body", reading)
        if long:
            patch.setattr(response_pump, "open_fast_path", lambda *_: None)
        # Compare the writes separately for each connection. Closing the backend's connection sometimes takes one more
        # step of the event loop, so the order of writes to different connections can differ.
        return [sorted(sent, key=operator.itemgetter(0)) for sent in asyncio.run(play())], reached


def reads_of(frames: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield several ways of delivering the frames: one frame per read, several per read, several per chunk, or split at
    random offsets.
    """
    yield chunked(frames)
    yield [b"".join(chunked(frames[at : at + 5])) for at in range(0, len(frames), 5)]
    yield chunked([b"".join(frames[at : at + 5]) for at in range(0, len(frames), 5)])
    wire = b"".join(chunked(frames))
    for seed in some(range(12)):
        choose = random.Random(seed)
        at, reads = 0, []
        while at < len(wire):
            # About 70% of the reads end at the end of a chunk, and the others at a random offset.
            step = choose.randint(1, 400)
            end = wire.find(b"\n\n\r\n", at + step) + 4 if choose.random() < 0.7 else at + step
            end = end if end > 3 else len(wire)
            reads.append(wire[at:end])
            at = end
        yield reads


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("arguments", ["buffered", "incremental"])
@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("api_name", ["chat", "responses"])
def test_both_paths_send_the_same(
    installed: Installed, api_name: ApiName, case: str, arguments: Any, eager: bool
) -> None:
    """For each read, the fast path sends the same bytes as mitmproxy's layers, regardless of where the stream is
    split.
    """
    policy = Policy(stream_arguments=arguments)
    for reads in reads_of(frames_of(api_name, TEXTS[case], 4)):
        short, _ = sent_by(installed, api_name, policy, reads, long=False, eager=eager)
        assert short == sent_by(installed, api_name, policy, reads, long=True, eager=eager)[0]
        assert any(who == "client" for sent in short for who, _ in sent)


@pytest.mark.parametrize("api_name", ["chat", "responses"])
def test_most_reads_of_prose_bypass_the_layers(installed: Installed, api_name: ApiName) -> None:
    """If each read contains one frame, only the beginning and the end of a stream of prose pass through mitmproxy's
    layers.
    """
    reads = chunked(frames_of(api_name, TEXTS["prose"] * 4, 4))
    _, reached = sent_by(installed, api_name, Policy(), reads, long=False)
    assert reached < 35 < len(reads) / 4


async def test_silence_timer_starts_after_the_request(installed: Installed) -> None:
    """The timer that detects a silent backend is started once, after the request has been sent, so that the request is
    not delayed.
    """
    async with asked(*installed, "chat") as proxy:
        assert {who for who, _ in proxy.sent} == {"backend"}
        assert proxy.sent_before_watching == [len(proxy.sent)]


def one_delta(size: int) -> bytes:
    """Return a frame that is exactly ``size`` bytes long."""
    answer = ChatAnswer(counts=usage("chat", 3, 4))
    (frame,) = answer.add_text("x" * (size - len(answer.add_text("")[0])))
    assert len(frame) == size
    return frame


# Each example is a chunk that arrives in two reads. The data of the chunk contains text that looks like other chunks,
# so the second read by itself looks like a sequence of complete chunks.
CHUNKS_IN_CHUNKS = {
    "within its data": (b"%x\r\n%s" % (655, one_delta(250)), b"190\r\n%s\r\n" % one_delta(400)),
    "within its size": (b"2", b"fa\r\n%s\r\n1f9\r\n%s\r\n" % (one_delta(250), one_delta(505))),
}


@pytest.mark.parametrize("case", CHUNKS_IN_CHUNKS)
def test_rest_of_a_chunk_belongs_to_its_chunk(installed: Installed, case: str) -> None:
    """If a chunk arrives in two reads, the second read is treated as the rest of that chunk, even if it looks like a
    sequence of complete chunks.
    """
    wire, (begun, rest) = chunked(frames_of("chat", TEXTS["prose"], 4)), CHUNKS_IN_CHUNKS[case]
    assert chunks.whole_chunks(begun + rest) is not None
    assert chunks.whole_chunks(rest) is not None
    reads = [*wire[:40], begun, rest, *wire[40:]]
    short, _ = sent_by(installed, "chat", Policy(), reads, long=False)
    assert short == sent_by(installed, "chat", Policy(), reads, long=True)[0]


def test_data_waits_behind_a_pause(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a stream pauses so that other tasks can run, new data from the backend is queued until the earlier data has
    been processed.
    """
    monkeypatch.setattr(time_slice, "SLICE_SECONDS", -1)
    frames = frames_of("chat", TEXTS["prose"], 4)
    reads = chunked([*frames[:30], b"".join(frames[30:34]) + b": \n\n" + frames[34], *frames[35:]])
    short, _ = sent_by(installed, "chat", Policy(), reads, long=False)
    assert short == sent_by(installed, "chat", Policy(), reads, long=True)[0]
    assert [] in short  # After one of the reads, nothing was sent, because the stream paused.


@pytest.mark.parametrize("shortly", [True, False])
async def test_unreportable_bug_closes_both_connections(
    installed: Installed, monkeypatch: pytest.MonkeyPatch, shortly: bool
) -> None:
    """If a bug prevents even the error message from being written, both connections are closed immediately, with or
    without the fast path.
    """

    def bug(*_: Any) -> list[bytes]:
        raise ZeroDivisionError

    if not shortly:
        monkeypatch.setattr(response_pump, "open_fast_path", lambda *_: None)
    reads = chunked(frames_of("chat", TEXTS["prose"], 4))
    async with asked(*installed, "chat") as proxy:
        for data in (HEAD, *reads[:30]):
            await proxy.read(data)
        for name in ("steps", "abandon"):
            monkeypatch.setattr(ResponseRewriter, name, bug)
        assert await proxy.read(reads[30]) == [("closed", b""), ("closed", b"")]


@pytest.mark.parametrize("name", ["data_received", "_is_free", "_wake"])
@pytest.mark.parametrize("eager", [True, False])
async def test_bug_in_the_fast_path_ends_the_stream(
    installed: Installed, monkeypatch: pytest.MonkeyPatch, name: str, eager: bool
) -> None:
    """An exception in the fast path is counted. The stream then ends with an error or, at least, without its final
    chunk.
    """

    def bug(*_: Any) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError

    if eager:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[arg-type]
    frames = frames_of("chat", TEXTS["prose"], 4)
    async with asked(*installed, "chat") as proxy:
        for data in (HEAD, *chunked(frames[:30])):
            await proxy.read(data)
        failures = guarded.GuardedStream.guard.failures.count
        monkeypatch.setattr(fast_path.FastPath, name, bug)
        last = await proxy.read(b"".join(chunked(frames[30:] if name == "_wake" else frames[30:31])))
        is_told = b'"error"' in b"".join(data for who, data in last if who == "client")
        assert is_told or (name == "_wake" and ("client", b"0\r\n\r\n") not in last)
        assert guarded.GuardedStream.guard.failures.count == failures + 1


def test_slow_client_uses_the_layers(installed: Installed) -> None:
    """While the client is slow, mitmproxy's layers process the data instead of the fast path. The client receives the
    same bytes.
    """
    reads = chunked(frames_of("chat", TEXTS["prose"], 4))
    unread = [0, *[10] * (len(reads) // 2)]
    short, reached = sent_by(installed, "chat", Policy(), reads, long=False, unread=unread)
    assert short == sent_by(installed, "chat", Policy(), reads, long=True)[0]
    assert len(reads) / 2 < reached < len(reads) / 2 + 35


async def test_lost_backend_connection_is_an_error(installed: Installed) -> None:
    """If the connection to the backend is lost, the client receives an error."""
    reads = chunked(frames_of("chat", TEXTS["prose"], 4))
    async with asked(*installed, "chat") as proxy:
        for data in (HEAD, *reads[:30]):
            await proxy.read(data)
        assert proxy.stream.fast_path is not None
        proxy.sent.clear()
        assert proxy.backend is not None
        proxy.backend.lose(ConnectionResetError())
        await settle()
        assert b'"error"' in b"".join(data for who, data in proxy.sent if who == "client")


@pytest.mark.parametrize("between", [0, 1])
async def test_other_layers_disable_the_fast_path(installed: Installed, between: int) -> None:
    """The fast path is not used if there is another layer, such as TLS, between the topmost layer and the HTTP
    layer.
    """
    async with asked(*installed, "chat") as proxy:
        await proxy.read(HEAD)
        stream = proxy.stream
        stream.stop_feeding()
        assert stream.fast_path is None
        stream.context.layers[1:1] = [layers.ClientTLSLayer] * between
        assert proxy.exchange is not None
        assert proxy.exchange.streamed is not None
        found = fast_path.open_fast_path(stream, proxy.exchange.streamed, stream.layer, stream.framed)
        assert (found is None) == bool(between)
