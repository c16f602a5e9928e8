"""The direct path, compared with mitmproxy's own layers: each read of the backend's bytes sends the client the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import Any

import pytest
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import Client, ConnectionState
from mitmproxy.http import HTTPFlow
from mitmproxy.options import Options
from mitmproxy.proxy import layers
from mitmproxy.proxy.commands import Command, OpenConnection, RequestWakeup, SendData, StartHook
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.events import DataReceived, Event, HookCompleted, OpenConnectionCompleted, Start
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import taddons
from support.wire import ApiName, ChatAnswer, ResponsesAnswer, usage
from toolsim.core import pace
from toolsim.core.plan import Policy
from toolsim.core.report import Report
from toolsim.proxy.exchange import Exchange, Exchanges
from toolsim.proxy.guard import Guard
from toolsim.proxy.jobs import run
from toolsim.proxy.mitmproxy12 import chunks, direct, feeding, installing
from toolsim.proxy.options.settings import Limits
from toolsim.response.rewrite import ResponseRewriter

Cut = Callable[[bytes], list[bytes]]

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
    installing.install(EXCHANGES, guard)
    guard.stop()  # There is no addon to give clearance.
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    monkeypatch.setattr("time.time", lambda: 1_764_967_971.0)
    # On a busy machine one path would take two slices, the other one.
    monkeypatch.setattr(pace, "SLICE_SECONDS", 60)
    yield
    installing.uninstall()
    EXCHANGES.forget()


@pytest.fixture(scope="module")
def options() -> Iterator[Options]:
    with taddons.context(Proxyserver()) as context:
        yield context.options


class Proxy:
    """mitmproxy's layers of one client connection, and what the addon's hooks do; no sockets."""

    def __init__(self, options: Options, dialect: ApiName, policy: Policy, *, mode: str = "reverse:http://b:1") -> None:
        self._dialect, self._policy = dialect, policy
        self.client = Client(peername=("c", 1), sockname=("p", 2), state=ConnectionState.OPEN)
        self.client.proxy_mode = ProxyMode.parse(mode)
        self.top = layers.modes.ReverseProxy(Context(self.client, options))
        self.server: Any = None
        self.exchange: Exchange | None = None
        self._pauses: list[StartHook] = []
        self.sent: list[tuple[str, bytes]] = []
        self.sent_before_watching: list[int] = []
        self._give(Start())

    def ask(self) -> None:
        """Send a request that offers a tool."""
        asked: dict[str, Any] = {"model": "m", "stream": True}
        if self._dialect == "chat":
            path = "/v1/chat/completions"
            asked |= {
                "messages": [{"role": "user", "content": "hi"}],
                "tools": [{"type": "function", "function": TOOL}],
            }
        else:
            path = "/v1/responses"
            asked |= {"input": "hi", "tools": [{"type": "function", **TOOL}]}
        body = json.dumps(asked).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._give(DataReceived(self.client, head.encode() + body))

    def read(self, data: bytes) -> list[tuple[str, bytes]]:
        """Pass in data from the backend; return what is sent, and to whom."""
        self.sent = []
        pauses, self._pauses = self._pauses, []
        self._give(DataReceived(self.server, data))
        for pause in pauses:
            self._give(HookCompleted(pause))
        return self.sent

    def rest(self) -> list[tuple[str, bytes]]:
        """End all pauses; return what is sent then, and to whom."""
        self.sent = []
        while self._pauses:
            self._give(HookCompleted(self._pauses.pop(0)))
        return self.sent

    def _give(self, event: Event) -> None:
        for command in list(self.top.handle_event(event)):
            self._do(command)

    def _do(self, command: Command) -> None:
        if isinstance(command, SendData):
            self.sent.append(("client" if command.connection is self.client else "backend", command.data))
        elif isinstance(command, OpenConnection):
            self.server = command.connection
            self.server.state = ConnectionState.OPEN
            self._give(OpenConnectionCompleted(command, None))
        elif isinstance(command, StartHook):
            self._hook(command.name, *command.args())
            if isinstance(command, feeding.ToolsimPauseHook):
                self._pauses.append(command)
            elif command.blocking:
                self._give(HookCompleted(command))
        elif isinstance(command, RequestWakeup):
            self.sent_before_watching.append(len(self.sent))
        elif type(command).__name__ == "CloseConnection":
            self.sent.append(("closed", b""))

    def _hook(self, name: str, subject: Any) -> None:
        if isinstance(subject, NextLayer):
            subject.layer = layers.HttpLayer(subject.context, HTTPMode.transparent)
            return
        flow: HTTPFlow = subject
        if name == "request":
            self.exchange = Exchange(Report(), client_id=self.client.id, cors={}, limits=Limits(10))
            EXCHANGES.open(flow, self.exchange)
            job = self.exchange.request_job(flow, self._dialect, self._policy)
            assert job is not None
            self.exchange.take_request(flow, run(job))
        elif name == "responseheaders":
            assert self.exchange is not None
            self.exchange.begin(flow)


def frames_of(dialect: ApiName, text: str, step: int) -> list[bytes]:
    answer = (ChatAnswer if dialect == "chat" else ResponsesAnswer)(counts=usage(dialect, 3, 4))
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    spoken = [frame for piece in pieces for frame in answer.add_text(piece)]
    thought = [
        frame
        for piece in ("Let", " me", " see", ".", " So", " be", " it", ".")
        for frame in answer.add_reasoning(piece)
    ]
    return [*answer.begin(), *(thought if dialect == "chat" else []), *spoken, *answer.end()]


def chunked(pieces: Sequence[bytes]) -> list[bytes]:
    return [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def sent_by(
    options: Options, dialect: ApiName, policy: Policy, reads: Sequence[bytes], *, long: bool
) -> tuple[list[list[tuple[str, bytes]]], int]:
    """Return what is sent for each read, and how many reads reached the layers."""
    reached = 0

    def reading(*arguments: Any) -> Any:
        nonlocal reached
        reached += 1
        return read_body(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        read_body = direct.Http1Client.read_body
        patch.setattr(direct.Http1Client, "read_body", reading)
        if long:
            patch.setattr(feeding, "direct_way", lambda *_: None)
        proxy = Proxy(options, dialect, policy)
        proxy.ask()
        found = [*(proxy.read(data) for data in [HEAD, *reads, b"0\r\n\r\n"]), proxy.rest()]
        # The handler that was put in front of the layers is gone.
        assert proxy.top.handle_event == MethodType(type(proxy.top).handle_event, proxy.top)
    return found, reached


def reads_of(frames: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield ways in which the frames may arrive: one per read, several, in chunks of any size, cut anywhere."""
    yield chunked(frames)
    yield [b"".join(chunked(frames[at : at + 5])) for at in range(0, len(frames), 5)]
    yield chunked([b"".join(frames[at : at + 5]) for at in range(0, len(frames), 5)])
    wire = b"".join(chunked(frames))
    for seed in range(12):
        choose = random.Random(seed)
        at, reads = 0, []
        while at < len(wire):
            # Mostly a cut at the end of a chunk, now and then one anywhere.
            step = choose.randint(1, 400)
            end = wire.find(b"\n\n\r\n", at + step) + 4 if choose.random() < 0.7 else at + step
            end = end if end > 3 else len(wire)
            reads.append(wire[at:end])
            at = end
        yield reads


@pytest.mark.parametrize("arguments", ["buffered", "incremental"])
@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_both_paths_send_the_same(options: Options, dialect: ApiName, case: str, arguments: Any) -> None:
    """However a stream's bytes arrive, each read sends the same as through the layers, to either side."""
    policy = Policy(stream_arguments=arguments)
    for reads in reads_of(frames_of(dialect, TEXTS[case], 4)):
        short, _ = sent_by(options, dialect, policy, reads, long=False)
        assert short == sent_by(options, dialect, policy, reads, long=True)[0]
        assert any(who == "client" for sent in short for who, _ in sent)


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_most_reads_of_prose_never_reach_the_layers(options: Options, dialect: ApiName) -> None:
    """Of a stream that arrives frame by frame, only the beginning and the end take the long path."""
    reads = chunked(frames_of(dialect, TEXTS["prose"] * 4, 4))
    _, reached = sent_by(options, dialect, Policy(), reads, long=False)
    assert reached < 35 < len(reads) / 4


def test_a_backend_is_watched_once_it_has_its_request(options: Options) -> None:
    """The clock for the backend's silence starts after the request is sent, without delaying it, and starts once."""
    proxy = Proxy(options, "chat", Policy())
    proxy.ask()
    assert {who for who, _ in proxy.sent} == {"backend"}
    assert proxy.sent_before_watching == [len(proxy.sent)]


def one_delta(size: int) -> bytes:
    """Return a frame of this many bytes."""
    answer = ChatAnswer(counts=usage("chat", 3, 4))
    (frame,) = answer.add_text("x" * (size - len(answer.add_text("")[0])))
    assert len(frame) == size
    return frame


# A chunk that contains others, in two reads: the second looks like whole chunks if the first is forgotten.
CHUNKS_IN_CHUNKS = {
    "within its data": (b"%x\r\n%s" % (655, one_delta(250)), b"190\r\n%s\r\n" % one_delta(400)),
    "within its size": (b"2", b"fa\r\n%s\r\n1f9\r\n%s\r\n" % (one_delta(250), one_delta(505))),
}


@pytest.mark.parametrize("case", CHUNKS_IN_CHUNKS)
def test_the_rest_of_a_chunk_is_no_chunk(options: Options, case: str) -> None:
    """The start of a chunk counts with its rest, even if the rest looks like chunks of plain deltas."""
    wire, (begun, rest) = chunked(frames_of("chat", TEXTS["prose"], 4)), CHUNKS_IN_CHUNKS[case]
    assert chunks.whole_chunks(begun + rest) is not None
    assert chunks.whole_chunks(rest) is not None
    reads = [*wire[:40], begun, rest, *wire[40:]]
    short, _ = sent_by(options, "chat", Policy(), reads, long=False)
    assert short == sent_by(options, "chat", Policy(), reads, long=True)[0]


def test_nothing_overtakes_a_pause(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a stream yields to others, the backend's new data queues behind the earlier data."""
    monkeypatch.setattr(pace, "SLICE_SECONDS", -1)
    frames = frames_of("chat", TEXTS["prose"], 4)
    reads = chunked([*frames[:30], b"".join(frames[30:34]) + b": \n\n" + frames[34], *frames[35:]])
    short, _ = sent_by(options, "chat", Policy(), reads, long=False)
    assert short == sent_by(options, "chat", Policy(), reads, long=True)[0]
    assert [] in short  # It yielded once.


@pytest.mark.parametrize("shortly", [True, False])
def test_a_bug_that_cannot_be_reported_ends_the_stream(
    options: Options, monkeypatch: pytest.MonkeyPatch, shortly: bool
) -> None:
    """If even the error cannot be written, the connection is closed at once, whichever path the bytes took."""

    def bug(*_: Any) -> list[bytes]:
        raise ZeroDivisionError

    if not shortly:
        monkeypatch.setattr(feeding, "direct_way", lambda *_: None)
    reads = chunked(frames_of("chat", TEXTS["prose"], 4))
    proxy = Proxy(options, "chat", Policy())
    proxy.ask()
    for data in (HEAD, *reads[:30]):
        proxy.read(data)
    for name in ("steps", "abandon"):
        monkeypatch.setattr(ResponseRewriter, name, bug)
    assert proxy.read(reads[30]) == [("closed", b""), ("closed", b"")]


@pytest.mark.parametrize("between", [0, 1])
def test_there_is_none_around_another_layer(options: Options, between: int) -> None:
    """With a layer between the topmost and HTTP, such as TLS, all bytes go through the layers."""
    proxy = Proxy(options, "chat", Policy())
    proxy.ask()
    proxy.read(HEAD)
    (stream,) = proxy.top.child_layer.layer.streams.values()  # type: ignore[attr-defined]
    stream.stop_feeding()
    assert stream.direct is None
    stream.context.layers[1:1] = [layers.ClientTLSLayer] * between
    found = direct.direct_way(stream, proxy.exchange.streamed, stream.layer, stream.sending)  # type: ignore[arg-type]
    assert (found is None) == bool(between)
