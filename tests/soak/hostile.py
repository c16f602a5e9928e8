"""The response times of a client of a proxy with MCP, a store and rounds, while another client attacks the proxy.

The good client has several concurrent conversations, each of which sends large requests or three kinds of small
requests: one whose answer is stored, one that continues that answer, and one that leads to a call to a local MCP
server. Each conversation has a unique mark. Its answers must contain this mark and no other mark.

The hostile client has a different key. It sends bodies of 15 MB to be stored, requests 1,100 calls that need approval,
names an MCP server with different headers each time, and does not read endless streams. Three of its connections send
nested bodies. Over WebSocket, it sends floods of frames and nested messages, and reads 16 endless answers slowly. Where
the proxy shares a resource fairly, the attacks must not affect the good client's times.

1. The good client's times are measured without an attack, during an attack on another proxy on this machine, and
   during an attack on its own proxy. The three measurements alternate every ``_PERIOD`` seconds. The measurement with
   the other proxy shows what the attack costs the machine, whose processors the test programs share with the proxies.
2. The hostile client runs its attacks in parallel, each over one connection. An attack starts again ``_PAUSE`` seconds
   after its last answer. A client that sends as fast as possible over many connections takes processor time from all
   other clients, which a proxy without a rate limit cannot prevent.
3. Every measurement ends: it takes ``_PERIOD`` seconds, and attacks that have not ended ``_GRACE`` seconds later are
   abandoned.
4. The hostile client and the backend, which does not parse large bodies, are separate processes. In reality, the
   hostile client and its MCP server would run on other machines. So both have a lower priority than all other
   processes here. The number of attacks shows whether this left them enough time.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import multiprocessing
import os
import random
import re
import secrets
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from soak.frames import KINDS, flood, frame, upgraded
from soak.sockets import resident
from support.line import Line
from support.mcp_servers import OFFICIAL, over_http
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend
from support.wire import DONE, chat_frame

GOOD, HOSTILE = "good-key", "hostile-key"
CROSSED = "crossed"
"""The outcome of an attack whose answer contains data that belongs to the good client."""
MAX_RATIO = 2.0
MAX_GROWTH = 1.0
"""Maximum growth of memory in MiB per minute, over the second half of a run of at least ten minutes."""
_MAX_CALLS = 1_100
_PERIOD = 10.0
_GRACE = 20.0
_PAUSE = 0.25
_MAX_THOUGHT = 0.4
_LARGE = 15_000_000
_LEVELS = 5_000
_LANES = 16
_MARK = re.compile(rb"good-[0-9a-f]+x")
_NICENESS = 19
_PROCESSES = multiprocessing.get_context("spawn")


@dataclass
class Waits:
    """The good client's response times in seconds and incorrect answers, and the outcomes of the attacks.

    ``memory``: pairs of the minutes under attack and the attacked proxy's memory in MiB.
    """

    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    hostile: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, float]] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Growth of the attacked proxy's memory in MiB per minute, over the second half of the run."""
        late = self.memory[len(self.memory) // 2 :]
        return statistics.linear_regression(*zip(*late, strict=True)).slope if len(late) > 1 else 0.0

    def percentile(self, share: float) -> float:
        """Return a percentile of the response times in seconds, or infinity if there was no request."""
        ordered = sorted(self.seconds)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("inf")

    def __str__(self) -> str:
        p50, p99 = (1000 * self.percentile(share) for share in (0.5, 0.99))
        return f"{len(self.seconds)} requests, p50 {p50:.1f} ms, p99 {p99:.1f} ms, {len(self.wrong)} wrong"


def compare(
    seconds: float, streams: int, attacks: Sequence[str] = (), size: int = 0, say: Callable[[str], None] = print
) -> tuple[Waits, Waits, Waits]:
    """Return the good client's times without an attack, during an attack on another proxy, and during an attack on its
    own proxy.

    ``seconds``: the total duration of each kind of measurement. ``streams``: the number of concurrent conversations.
    ``attacks``: names in ``ATTACKS``, or () for all attacks. ``size``: the size of requests in bytes, or 0 for small
    requests. ``say`` is called with a progress line after each round of measurements.
    """
    with contextlib.ExitStack() as stack:
        backend = stack.enter_context(_backend())
        remote = stack.enter_context(over_http(niceness=_NICENESS))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="toolsim-soak-")))
        never = {"require_approval": "never"}
        servers = {"calc": OFFICIAL | never, "shy": {"url": remote}}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        options: dict[str, Any] = {
            "toolsim_backend": "chat",
            "toolsim_mcp_config": str(folder / "mcp.json"),
            "toolsim_mcp_hosts": remote.split("/")[2],
            "flow_detail": 0,
        }
        proxy, other = [
            stack.enter_context(Mitmdump(backend, **options, toolsim_store=f"sqlite:{folder / name}"))
            for name in ("answers", "others")
        ]
        # The first requests start the MCP servers, so their times do not count.
        for each in (proxy, other):
            _be_good(_Good(each.url, min(seconds, 5), 1, 0), Waits())
        alone, elsewhere, beside = Waits(), Waits(), Waits()
        turns, began = max(round(seconds / _PERIOD), 1), time.monotonic()
        good = _Good(proxy.url, min(seconds, _PERIOD), streams, size)
        for turn in range(turns):
            _be_good(good, alone)
            for attacked, waits in ((other, elsewhere), (proxy, beside)):
                attack = (attacks or list(ATTACKS), attacked.port, remote, good.seconds)
                _be_good_next_to(attack, good, attacked, waits)
            say(f"{time.monotonic() - began:.0f} s: {turn + 1} of {turns}, {beside.memory[-1][1]:.0f} MiB")
    return alone, elsewhere, beside


@dataclass(frozen=True)
class _Good:
    """The good client: its URL, seconds per measurement, number of conversations, and request size (0: small)."""

    url: str
    seconds: float
    streams: int
    size: int


def _be_good_next_to(attack: tuple[Any, ...], good: _Good, attacked: Mitmdump, waits: Waits) -> None:
    """Measure the good client during an attack. ``attack``: the arguments of ``_attack`` except the pipe."""
    ours, theirs = _PROCESSES.Pipe()
    attacker = _PROCESSES.Process(target=_attack, args=(*attack, theirs), daemon=True)
    attacker.start()
    # If this copy of the pipe's end stayed open, the pipe would not report that the attacker's process has ended.
    theirs.close()
    assert ours.recv() == "ready"
    before, began, is_over = waits.memory[-1][0] if waits.memory else 0.0, time.monotonic(), threading.Event()

    def watch() -> None:
        while not is_over.wait(1):
            waits.memory.append((before + (time.monotonic() - began) / 60, resident(attacked)))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        _be_good(good, waits)
        waits.hostile += ours.recv()
    finally:
        is_over.set()
        watching.join()
        attacker.kill()
        attacker.join()


@contextlib.contextmanager
def _backend() -> Iterator[str]:
    """Run the backend in a separate process; yield its URL."""
    ours, theirs = _PROCESSES.Pipe()
    process = _PROCESSES.Process(target=_serve, args=(theirs,))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join()


def _serve(pipe: Connection) -> None:
    with RawBackend() as backend:
        backend.play(_answer)
        pipe.send(backend.url)
        pipe.recv()


async def _answer(answer: Answer) -> None:
    body = answer.asked.body
    if not answer.asked.path.endswith("/chat/completions"):
        await answer.whole(b"{}", 404)
        return
    if b"ENDLESS" in body[:100_000]:
        await answer.head(Content_Type="text/event-stream")
        piece = chat_frame("word " * 2_000)
        for _ in range(500):
            await answer.send(piece)
        await answer.send(chat_frame(finish="stop") + DONE)
        await answer.end()
        return
    text = "Well."
    if len(body) < _LARGE:
        text = " ".join(["Well.", *sorted({mark.decode() for mark in _MARK.findall(body)})])
        if b"APPROVE" in body:
            text = '<tool_call>{"name":"shy__add","arguments":{"a":1,"b":2}}</tool_call>' * _MAX_CALLS
        elif b"ADD" in body and b"[function_call_output " not in body:
            text = '<tool_call>{"name":"calc__add","arguments":{"a":1,"b":2}}</tool_call>'
    message = {"role": "assistant", "content": text}
    await answer.whole(
        json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode(),
        Content_Type="application/json",
    )


def _be_good(good: _Good, waits: Waits) -> None:
    """Run the good client's concurrent conversations for the duration of one measurement."""
    end = time.monotonic() + good.seconds
    with ThreadPoolExecutor(good.streams) as threads:
        for done in [threads.submit(_converse, good, end, waits) for _ in range(good.streams)]:
            done.result()


def _converse(good: _Good, end: float, waits: Waits) -> None:
    """Run a series of conversations over one connection until the end of the measurement."""
    key = {"Authorization": f"Bearer {GOOD}"}
    questions = (" " * good.size,) if good.size else ("Hello", "And then?", "ADD")
    with Line(good.url) as line:
        while time.monotonic() < end:
            previous, mark = None, f"good-{secrets.token_hex(8)}x"
            for question in questions:
                body = {"model": "m", "input": f"{mark} {question}", "previous_response_id": previous}
                start = time.monotonic()
                reply = line.post("/v1/responses", body, **key)
                waits.seconds.append(time.monotonic() - start)
                answer = reply.json()
                last = answer["output"][-1] if reply.status == 200 else {}
                if last.get("type") != "message" or last["content"][0]["text"] != f"Well. {mark}":
                    waits.wrong.append(f"{mark} {question[:10]}: {reply.status} {reply.body[:500]!r}")
                    break
                previous = answer["id"]
                time.sleep(random.random() * _MAX_THOUGHT)


def _attack(attacks: Sequence[str], port: int, remote: str, seconds: float, pipe: Connection) -> None:
    """Run the attacks in parallel for ``seconds``, and send their outcomes through the pipe."""
    done: Counter[str] = Counter()
    os.nice(_NICENESS)
    for prepare in (_stored, _nested, _compressed):
        prepare()
    pipe.send("ready")
    end = time.monotonic() + seconds
    threads = [
        threading.Thread(target=_be_hostile, args=(name, port, remote, end, done), daemon=True)
        for name in attacks
        for _ in range(_CLIENTS.get(name, 1))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(end + _GRACE - time.monotonic(), 0))
    left = sum(thread.is_alive() for thread in threads)
    pipe.send(done + Counter({"left in the middle": left}))


def _be_hostile(name: str, port: int, remote: str, end: float, done: Counter[str]) -> None:
    number = 0
    while time.monotonic() < end:
        number += 1
        try:
            done[f"{name} {ATTACKS[name](port, remote, number)}"] += 1
        except OSError as problem:
            done[f"{name} {type(problem).__name__}"] += 1
        time.sleep(_PAUSE)


def _post(port: int, body: dict[str, Any] | bytes, **headers: str) -> int | str:
    with Line(f"http://127.0.0.1:{port}") as line:
        reply = line.post("/v1/responses", body, Authorization=f"Bearer {HOSTILE}", **headers)
        return CROSSED if _MARK.search(reply.body) else reply.status


@cache
def _stored() -> bytes:
    return b'{"model":"m","input":"' + b"x" * _LARGE + b'"}'


@cache
def _nested() -> bytes:
    return b'{"type":"response.create","model":"m","input":' + b'{"abcde":' * _LEVELS + b"1" + b"}" * (_LEVELS + 1)


@cache
def _compressed() -> bytes:
    return gzip.compress(_nested())


def _store(port: int, remote: str, number: int) -> int | str:
    return _post(port, _stored())


def _ask_for_approval(port: int, remote: str, number: int) -> int | str:
    return _post(port, {"model": "m", "input": "APPROVE"})


def _change_headers(port: int, remote: str, number: int) -> int | str:
    server = {"type": "mcp", "server_label": "mine", "server_url": remote, "headers": {"X-Own": str(number)}}
    return _post(port, {"model": "m", "input": "Hello", "tools": [server]})


def _read_nothing(port: int, remote: str, number: int) -> str:
    body = json.dumps({"model": "m", "input": "ENDLESS", "stream": True}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {HOSTILE}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head.encode() + body)
        time.sleep(2)
    return "left"


def _nest(port: int, remote: str, number: int) -> int | str:
    if number % 2:
        return _post(port, _nested())
    return _post(port, _compressed(), Content_Encoding="gzip")


def _send_frames(port: int, remote: str, number: int) -> str:
    with upgraded(port, HOSTILE) as connection:
        return str(flood(connection, list(KINDS)[number % len(KINDS)]))


def _nest_messages(port: int, remote: str, number: int) -> str:
    with upgraded(port, HOSTILE) as connection:
        for _ in range(10):
            connection.sendall(frame(_nested()))
            received = b""
            while b'"error"' not in received:
                if not (data := connection.recv(1 << 16)):
                    return "closed"
                received += data
            if _MARK.search(received):
                return CROSSED
    return "refused"


def _read_slowly(port: int, remote: str, number: int) -> str:
    with upgraded(port, HOSTILE) as connection:
        for lane in range(_LANES):
            body = {"type": "response.create", "model": "m", "input": "ENDLESS", "stream_id": str(lane)}
            connection.sendall(frame(json.dumps(body).encode()))
        for _ in range(20):
            connection.recv(1024)
            time.sleep(0.1)
    return "left"


ATTACKS: dict[str, Callable[[int, str, int], int | str]] = {
    "store": _store,
    "approvals": _ask_for_approval,
    "headers": _change_headers,
    "unread": _read_nothing,
    "nested": _nest,
    "frames": _send_frames,
    "messages": _nest_messages,
    "slow": _read_slowly,
}
_CLIENTS = {"nested": 3}
"""The number of concurrent clients for each attack that has more than one."""
