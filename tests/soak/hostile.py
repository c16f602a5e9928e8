"""Two keys at one proxy with MCP, store and rounds on; one of them is hostile. How long does the other wait?

The good client has several conversations at once. Each asks one small thing after another: an answer that is stored,
one that continues it, and one with a call of a local MCP server. The hostile one sends bodies of 15 MB to be stored,
asks for 1,100 calls that need an approval, names an MCP server with other headers each time, and reads nothing of
endless streams. What the proxy shares fairly must not show in the good client's times.

1. The good client's time alone is measured, beside an attack on another proxy of this machine, and beside one on its
   own, in turns of ``_PERIOD`` seconds. The second has all that the attack costs the machine, where the programs that
   play the world share the processors with the proxy.
2. The hostile client makes its attacks side by side, each over one connection, ``_PAUSE`` seconds after
   the answer to the last one. Who sends as fast as it can over many connections takes its part of the
   processor from everybody, which a proxy without a limit of rates cannot help.
3. It is a process of its own, and so is the backend, which does not parse large bodies. The hostile one would be
   elsewhere, and so would the MCP server that it names: both give way to all other processes, and the attacks are
   counted, so that it shows if that left no time for them.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import socket
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

from support.line import Line
from support.mcp_servers import OFFICIAL, over_http
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, RawBackend
from support.wire import DONE, chat_frame

GOOD, HOSTILE = "good-key", "hostile-key"
MAX_RATIO = 2.0
_MAX_CALLS = 1_100
_PERIOD = 10.0
_PAUSE = 0.25
_MAX_THOUGHT = 0.4
_LARGE = 15_000_000
_NICENESS = 19
_PROCESSES = multiprocessing.get_context("spawn")


@dataclass
class Waits:
    """Seconds of the good client's requests, and what came of the hostile one's."""

    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    hostile: Counter[str] = field(default_factory=Counter)

    def percentile(self, share: float) -> float:
        """Return a percentile in seconds; infinite without any request."""
        ordered = sorted(self.seconds)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("inf")

    def __str__(self) -> str:
        p50, p99 = (1000 * self.percentile(share) for share in (0.5, 0.99))
        return f"{len(self.seconds)} requests, p50 {p50:.1f} ms, p99 {p99:.1f} ms, {len(self.wrong)} wrong"


def compare(seconds: float, streams: int, attacks: Sequence[str] = ()) -> tuple[Waits, Waits, Waits]:
    """Return the good client's times alone, beside a hostile client elsewhere and beside one of its own proxy.

    Each over this many seconds, with this many conversations at once. ``attacks``: names in ``ATTACKS``; none = all.
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
        # The servers start with the first requests, which is not what is measured.
        for each in (proxy, other):
            _be_good(each.url, min(seconds, 5), 1, Waits())
        alone, elsewhere, beside = Waits(), Waits(), Waits()
        for _ in range(max(round(seconds / _PERIOD), 1)):
            period = min(seconds, _PERIOD)
            _be_good(proxy.url, period, streams, alone)
            for attacked, waits in ((other, elsewhere), (proxy, beside)):
                attack = (attacks or list(ATTACKS), attacked.port, remote, period)
                _be_good_beside(attack, proxy, period, streams, waits)
    return alone, elsewhere, beside


def _be_good_beside(attack: tuple[Any, ...], proxy: Mitmdump, seconds: float, streams: int, waits: Waits) -> None:
    """As ``_be_good``, while the hostile client makes an ``attack``, the arguments of ``_attack``."""
    ours, theirs = _PROCESSES.Pipe()
    attacker = _PROCESSES.Process(target=_attack, args=(*attack, theirs))
    attacker.start()
    assert ours.recv() == "ready"
    _be_good(proxy.url, seconds, streams, waits)
    waits.hostile += ours.recv()
    attacker.join()


@contextlib.contextmanager
def _backend() -> Iterator[str]:
    """Serve the backend in a process of its own; yield its URL."""
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
        if b"APPROVE" in body:
            text = '<tool_call>{"name":"shy__add","arguments":{"a":1,"b":2}}</tool_call>' * _MAX_CALLS
        elif b"ADD" in body and b"[function_call_output " not in body:
            text = '<tool_call>{"name":"calc__add","arguments":{"a":1,"b":2}}</tool_call>'
    message = {"role": "assistant", "content": text}
    await answer.whole(
        json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode(),
        Content_Type="application/json",
    )


def _be_good(url: str, seconds: float, streams: int, waits: Waits) -> None:
    """Have this many conversations at once for this many seconds."""
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(streams) as threads:
        for done in [threads.submit(_converse, url, end, waits) for _ in range(streams)]:
            done.result()


def _converse(url: str, end: float, waits: Waits) -> None:
    """One request after another, over one connection."""
    key = {"Authorization": f"Bearer {GOOD}"}
    with Line(url) as line:
        while time.monotonic() < end:
            previous = None
            for question in ("Hello", "And then?", "ADD"):
                body = {"model": "m", "input": question, "previous_response_id": previous}
                start = time.monotonic()
                reply = line.post("/v1/responses", body, **key)
                waits.seconds.append(time.monotonic() - start)
                answer = reply.json()
                if reply.status != 200 or answer["output"][-1]["type"] != "message":
                    waits.wrong.append(f"{question}: {reply.status} {reply.body[:300]!r}")
                    break
                previous = answer["id"]
                time.sleep(random.random() * _MAX_THOUGHT)


def _attack(attacks: Sequence[str], port: int, remote: str, seconds: float, pipe: Connection) -> None:
    """These attacks at once for this many seconds; send what came of them."""
    done: Counter[str] = Counter()
    os.nice(_NICENESS)
    _stored()
    pipe.send("ready")
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=_be_hostile, args=(name, port, remote, end, done)) for name in attacks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(done)


def _be_hostile(name: str, port: int, remote: str, end: float, done: Counter[str]) -> None:
    number = 0
    while time.monotonic() < end:
        number += 1
        try:
            done[f"{name} {ATTACKS[name](port, remote, number)}"] += 1
        except OSError as problem:
            done[f"{name} {type(problem).__name__}"] += 1
        time.sleep(_PAUSE)


def _post(port: int, body: dict[str, Any] | bytes) -> int:
    with Line(f"http://127.0.0.1:{port}") as line:
        return line.post("/v1/responses", body, Authorization=f"Bearer {HOSTILE}").status


@cache
def _stored() -> bytes:
    return b'{"model":"m","input":"' + b"x" * _LARGE + b'"}'


def _store(port: int, remote: str, number: int) -> int:
    return _post(port, _stored())


def _ask_for_approval(port: int, remote: str, number: int) -> int:
    return _post(port, {"model": "m", "input": "APPROVE"})


def _change_headers(port: int, remote: str, number: int) -> int:
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


ATTACKS: dict[str, Callable[[int, str, int], int | str]] = {
    "store": _store,
    "approvals": _ask_for_approval,
    "headers": _change_headers,
    "unread": _read_nothing,
}
