"""Floods of tiny WebSocket frames on one connection, and the delays that they cause for other clients.

For each kind of frame, a client sends ``FLOOD_BYTES`` of such frames as fast as the proxy accepts them, reads all
answers, and disconnects. Meanwhile, one neighbor requests the health page repeatedly. Another neighbor reads a stream
whose backend sends a chunk every ``PIECE_SECONDS``. Before that, both neighbors are measured without a flood.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from support.line import Line, arrivals
from support.mitmdump import MITMDUMP, Mitmdump
from support.raw_backend import Answer, RawBackend
from support.wire import chat_frame

FLOOD_BYTES = 3_000_000
MAX_WAIT = 0.25
"""Maximum wait for a health page during a flood, in seconds."""
PIECE_SECONDS = 0.02
_PROBE_SECONDS = 0.005
_PATIENCE = 120.0
_PROCESSES = multiprocessing.get_context("spawn")

TEXT, CONTINUATION, PING, PONG, CLOSE, FIN = 0x1, 0x0, 0x9, 0xA, 0x8, 0x80


def frame(payload: bytes, head: int = FIN | TEXT) -> bytes:
    """Return a masked frame whose first byte is ``head``. The mask is zero, so the payload is sent unchanged."""
    size = len(payload)
    if size < 126:
        return bytes((head, 0x80 | size)) + bytes(4) + payload
    return struct.pack("!BBH", head, 0x80 | 126, size) + bytes(4) + payload


def _message(**fields: Any) -> bytes:
    return frame(json.dumps(fields, separators=(",", ":")).encode())


KINDS: Mapping[str, tuple[bytes, bytes]] = {
    "empty messages": (b"", frame(b"")),
    "messages of one byte": (b"", frame(b"x")),
    '{"type":"x"}': (b"", _message(type="x")),
    "creates without generation": (b"", _message(type="response.create", model="m", input="x", generate=False)),
    "empty pings": (b"", frame(b"", FIN | PING)),
    "empty pongs": (b"", frame(b"", FIN | PONG)),
    "empty continuations": (frame(b"", TEXT), frame(b"", CONTINUATION)),
    "continuations of one byte": (frame(b"", TEXT), frame(b"x", CONTINUATION)),
    "messages without an answer": (b"", _message(type="response.processed", response_id="r")),
}
"""For each kind of flood: its first frame, or b"" if none is needed, and the frame that is then repeated."""


@dataclass
class Waits:
    """Times that the two neighbors measured, in seconds: the response time of each request for the health page, and
    each gap between the chunks of the stream.
    """

    pages: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    close_code: int | None = None

    @property
    def longest(self) -> float:
        """The longest wait for a health page."""
        return max(self.pages, default=float("inf"))

    @property
    def p99(self) -> float:
        """The 99th percentile of the gaps in the stream, in seconds."""
        gaps = sorted(self.gaps)
        return gaps[int(len(gaps) * 0.99)] if gaps else float("inf")

    def __str__(self) -> str:
        return f"health page at most {self.longest:6.3f} s, stream p99 {1000 * self.p99:6.1f} ms"


def run(say: Callable[[str], None] = print, size: int = FLOOD_BYTES) -> dict[str, Waits]:
    """Return the measurements for each kind of flood; the key "" stands for the measurement without a flood."""
    with RawBackend() as backend:
        backend.play(_endless)
        with Mitmdump(backend.url, command=MITMDUMP, toolsim_backend="chat", flow_detail=0) as proxy:
            found = {}
            for kind in ("", *KINDS):
                found[kind] = _measure(proxy, kind, size)
                say(f"{kind or 'alone':27} {found[kind]}, closed with {found[kind].close_code}")
    return found


async def _endless(answer: Answer) -> None:
    if not answer.asked.path.endswith("/chat/completions"):
        await answer.whole(b"{}", 404)
        return
    await answer.head(Content_Type="text/event-stream")
    while True:
        await answer.send(chat_frame("word "))
        await asyncio.sleep(PIECE_SECONDS)


def _measure(proxy: Mitmdump, kind: str, size: int) -> Waits:
    waits, is_over = Waits(), threading.Event()
    neighbours = [
        threading.Thread(target=neighbour, args=(proxy.url, waits, is_over))
        for neighbour in (_read_pages, _read_stream)
    ]
    for neighbour in neighbours:
        neighbour.start()
    time.sleep(0.5)
    waits.gaps.clear()
    if kind:
        ours, theirs = _PROCESSES.Pipe()
        attacker = _PROCESSES.Process(target=_attack, args=(proxy.port, kind, size, theirs))
        attacker.start()
        assert ours.recv() == "ready"
        waits.pages.clear()
        waits.gaps.clear()
        ours.send("go")
        waits.close_code = ours.recv()
        attacker.join()
    else:
        time.sleep(3)
    is_over.set()
    for neighbour in neighbours:
        neighbour.join()
    return waits


def _read_pages(url: str, waits: Waits, is_over: threading.Event) -> None:
    with Line(url, timeout=_PATIENCE) as line:
        while not is_over.is_set():
            began = time.monotonic()
            assert line.request("GET", "/toolsim/health").status == 200
            waits.pages.append(time.monotonic() - began)
            time.sleep(_PROBE_SECONDS)


def _read_stream(url: str, waits: Waits, is_over: threading.Event) -> None:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Go on."}]}
    with Line(url, timeout=_PATIENCE) as line:
        before = None
        for now, _ in arrivals(line.begin("POST", "/v1/chat/completions", body)):
            if before is not None:
                waits.gaps.append(now - before)
            before = now
            if is_over.is_set():
                return


def _attack(port: int, kind: str, size: int, pipe: Connection) -> None:
    """Send a flood, and report the proxy's close code, or None if the connection ended without one."""
    with upgraded(port) as connection:
        pipe.send("ready")
        pipe.recv()
        pipe.send(flood(connection, kind, size))


def flood(connection: socket.socket, kind: str, size: int = FLOOD_BYTES) -> int | None:
    """Send a flood over a connection; return the proxy's close code, or None if the connection ended without one."""
    received = _Received(connection)
    reader = threading.Thread(target=received.read)
    reader.start()
    first, repeated = KINDS[kind]
    with suppress(OSError):
        connection.sendall(first + repeated * (size // len(repeated)) + frame(b"", FIN | CLOSE))
    reader.join()
    return received.close_code


class _Received:
    """Receives the proxy's data, and keeps only the last bytes, which contain the proxy's close frame."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.close_code: int | None = None

    def read(self) -> None:
        last = b""
        try:
            while data := self._connection.recv(1 << 16):
                last = (last + data)[-200:]
        except OSError:
            pass
        at = last.rfind(bytes((FIN | CLOSE,)))
        if at >= 0 and len(last) >= at + 4 and last[at + 1] == len(last) - at - 2:
            self.close_code = int.from_bytes(last[at + 2 : at + 4])


@contextmanager
def upgraded(port: int, key: str = "hostile") -> Iterator[socket.socket]:
    """Open a WebSocket connection; the caller reads and writes the frames."""
    with socket.create_connection(("127.0.0.1", port), _PATIENCE) as connection:
        head = (
            f"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Authorization: Bearer {key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        connection.sendall(head.encode())
        received = b""
        while not received.endswith(b"\r\n\r\n"):
            received += connection.recv(1)
        assert received.startswith(b"HTTP/1.1 101"), received
        yield connection
