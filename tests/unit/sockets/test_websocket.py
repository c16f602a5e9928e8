"""Tests for the frames of a WebSocket connection: pauses, rate limits, close codes, and clients that do not read."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
from soak.frames import CLOSE, CONTINUATION, FIN, KINDS, PING, PONG, TEXT, frame
from support.each import each
from toolsim.core import rate, time_slice
from toolsim.proxy.mitmproxy12.backpressure import bound_buffers
from toolsim.proxy.upgrades import BUFFER_BYTES
from toolsim.sockets import websocket as module
from toolsim.sockets.websocket import FREE_FRAME_BYTES, UNITS_BURST, UNITS_PER_SECOND, WebSocket

MAX_BYTES = 100_000
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Clock:
    """A clock for the rate limit. Its time changes only when a test sets it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def a_short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait before a connection is closed, because the test clients read the close code immediately."""
    monkeypatch.setattr(module, "DISCARD_SECONDS", 0.05)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rate, "time", clock)
    return clock


class Ends:
    """Both ends of a WebSocket connection: the server's ``websocket`` and the client's socket."""

    def __init__(self, websocket: WebSocket, client: socket.socket) -> None:
        self.websocket = websocket
        self.client = client
        self.messages: list[bytes] = []

    async def serve(self) -> None:
        """Collect the messages from the client until the connection ends."""
        with suppress(OSError):
            async with aclosing(self.websocket.messages(MAX_BYTES)) as messages:
                async for message in messages:
                    self.messages.append(message)
        self.websocket.shut()

    async def send(self, data: bytes) -> None:
        with suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self.client, data)

    async def read(self, size: int = 1 << 20) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.client, size)

    async def close_code(self) -> int:
        """Read from the server until the connection ends. Return the code in the last close frame, or 0 if there is
        none.
        """
        received = b""
        with suppress(OSError):
            while data := await self.read():
                received += data
        at = received.rfind(bytes((FIN | CLOSE,)))
        return int.from_bytes(received[at + 2 : at + 4]) if at >= 0 else 0


@asynccontextmanager
async def opened() -> AsyncIterator[Ends]:
    server_end, client = socket.socketpair()
    for end in server_end, client:
        end.setblocking(False)
    bound_buffers(server_end, BUFFER_BYTES)
    reader, writer = await asyncio.open_connection(sock=server_end)
    websocket = WebSocket(reader, writer)
    ends = Ends(websocket, client)
    await ends.send(UPGRADE)
    assert await websocket.upgrade() is not None
    websocket.accept()
    assert (await ends.read()).startswith(b"HTTP/1.1 101")
    serving = asyncio.create_task(ends.serve())
    try:
        yield ends
    finally:
        client.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        with suppress(AttributeError):  # The transport no longer exists if the connection has already ended.
            writer.transport.abort()


async def test_other_tasks_run_between_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """If time slices have zero length, other tasks run after each frame, even if many frames have arrived together."""
    monkeypatch.setattr(time_slice, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(time_slice, "PAUSE_SECONDS", 0.0)
    frames = 500
    async with opened() as ends:
        seen = [0]
        await ends.send(frame(b"", FIN | PONG) * frames)
        while seen[-1] < frames:
            await asyncio.sleep(0)
            seen.append(ends.websocket.pongs)
    assert max(after - before for before, after in pairwise(seen)) <= 1


@each("first, repeated", KINDS.values(), KINDS.keys())
async def test_flood_closes_its_connection(
    first: bytes, repeated: bytes, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a client sends more tiny frames of any kind than a burst may contain, its connection is closed."""
    monkeypatch.setattr(module, "UNITS_BURST", 1_000)
    async with opened() as ends:
        receiving = asyncio.create_task(ends.close_code())
        await ends.send(first + repeated * 1_002)
        assert await receiving == 1008
        assert ends.websocket.end == (1008, "too many frames or messages")


@each("first, repeated", KINDS.values(), KINDS.keys())
async def test_cost_of_a_frame(first: bytes, repeated: bytes, clock: Clock) -> None:
    """Each frame costs one unit of the rate allowance, and each message ten more. Units are refilled over time, up to
    the maximum for a burst.
    """
    is_message = repeated[0] == FIN | TEXT
    async with opened() as ends:
        allowance = ends.websocket._allowance
        await ends.send(first + repeated * 50 + frame(b"", FIN | CLOSE))
        assert await ends.close_code() == 0
        assert ends.websocket.end == (1005, "")
        spent = 50 * (1 + module.MESSAGE_UNITS * is_message) + bool(first)
        assert allowance.take(UNITS_BURST - spent)
        assert not allowance.take()
        assert allowance.wait() == 1 / UNITS_PER_SECOND
        clock.now += 1
        assert allowance.take(UNITS_PER_SECOND)
        assert not allowance.take()
        clock.now += 1_000
        assert allowance.is_full
        assert not allowance.take(UNITS_BURST + 1)


async def test_large_message_in_many_frames(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of at least 1 KiB are free, so a client can split a large message into many frames."""
    monkeypatch.setattr(module, "UNITS_BURST", 50)
    part = frame(b"x" * FREE_FRAME_BYTES, CONTINUATION)
    async with opened() as ends:
        await ends.send(frame(b"", TEXT) + part * 80 + frame(b"", FIN | CONTINUATION) + frame(b"last"))
        await settled(lambda: len(ends.messages) == 2)
        assert ends.messages == [b"x" * FREE_FRAME_BYTES * 80, b"last"]


BAD = {
    "a reserved opcode": (frame(b"", 0x83), 1002),
    "a reserved bit": (frame(b"x", 0xF1), 1002),
    "no mask": (b"\x81\x01x", 1002),
    "a continuation of nothing": (frame(b"", CONTINUATION), 1002),
    "a message inside another": (frame(b"x", TEXT) + frame(b"x", FIN | TEXT), 1002),
    "a long ping": (frame(b"x" * 126, FIN | PING), 1002),
    "bytes that are not UTF-8": (frame(b"\xff"), 1007),
    "binary data": (frame(b"x", FIN | 0x2), 1003),
    "a message that is too large": (frame(b"x" * 65_535, TEXT) + frame(b"x" * 65_535, CONTINUATION), 1009),
    "the beginning of a huge one": (struct.pack("!BBQ", 0x81, 0xFF, 1 << 40) + bytes(4) + b"x" * 150_000, 1009),
}


@each("data, code", BAD.values(), BAD.keys())
async def test_protocol_violations_close_the_connection(data: bytes, code: int) -> None:
    """A protocol violation immediately closes the connection with the corresponding close code. Later messages are not
    read.
    """
    async with opened() as ends:
        await ends.send(data + frame(b"never read") * 10)
        assert await ends.close_code() == code
        assert ends.messages == []


async def test_close_frame_is_answered() -> None:
    """A close frame is answered with the same close code. The code and the reason are recorded."""
    async with opened() as ends:
        await ends.send(frame(b"a") + frame(struct.pack("!H", 3000) + b"bye", FIN | CLOSE))
        assert await ends.close_code() == 3000
        assert (ends.messages, ends.websocket.end) == ([b"a"], (3000, "bye"))


async def test_pings_without_reading_get_one_pong() -> None:
    """If a client sends many pings without reading, only the last one is answered, so that pongs do not accumulate."""
    async with opened() as ends:
        sending = asyncio.create_task(ends.websocket.send("x" * 5_000_000))
        for number in range(500):
            await ends.send(frame(str(number).encode(), FIN | PING))
        await settled(lambda: ends.websocket._ping == b"499")
        assert len(ends.websocket._ponging) == 1
        received = b""
        while not received.endswith(b"499"):
            received += await ends.read()
        await sending
        assert len(received) < 5_000_000 + 100


async def test_connection_that_ends_after_its_last_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server ends the connection and the client then reads all remaining data, the connection is not aborted,
    and no exception is reported.
    """
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.05)
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    async with opened() as ends:
        ends.websocket._write(module.TextMessage("x" * 1_000_000))
        ends.websocket.shut()
        with suppress(OSError):
            while await ends.read():
                pass
        await asyncio.sleep(0.1)
    assert reports == []


async def test_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.05)
    async with opened() as ends:
        ends.websocket._write(module.TextMessage("x" * 1_000_000))
        ends.websocket.shut()
        await asyncio.sleep(0.1)
        received = 0
        with suppress(OSError):
            while data := await ends.read():
                received += len(data)
        assert received < 1_000_000


async def test_each_ping_of_a_reading_client_is_answered() -> None:
    """For a client that keeps reading, every ping is answered, even a ping that arrives just after the previous pong
    was sent.
    """
    async with opened() as ends:
        for turns in (1, 2, 3) * 20:
            ends.websocket._pong(b"x")
            for _ in range(turns):
                await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        assert (await ends.read()).count(b"x") == 60


async def test_messages_wait_for_a_client_that_does_not_read() -> None:
    """While a client is not reading, only one message is buffered, even if several tasks send messages. The other tasks
    wait.
    """
    async with opened() as ends:
        sending = [asyncio.create_task(ends.websocket.send("x" * 1_000_000)) for _ in range(16)]
        transport: Any = ends.websocket._writer.transport
        await settled(lambda: transport.get_write_buffer_size() > 0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert transport.get_write_buffer_size() <= 1_000_100
        reading = asyncio.create_task(ends.close_code())
        await asyncio.gather(*sending)
        ends.websocket.close(1001, "")
        await ends.send(frame(b"", FIN | CLOSE))
        await reading


async def test_sending_after_a_disconnect_raises() -> None:
    """Sending to a client that has disconnected raises ConnectionError. No exception is left for the event loop to
    report.
    """
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    async with opened() as ends:
        sending = asyncio.create_task(ends.websocket.send("x" * 5_000_000))
        await asyncio.sleep(0)
        ends.client.close()
        with pytest.raises(ConnectionError):
            await sending
        with pytest.raises(ConnectionError):
            await ends.websocket.send("x")
        ends.websocket.ping()
        ends.websocket.close(1001, "")
    assert reports == []


async def settled(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


def test_rates_match_the_security_page() -> None:
    """The rate limits that the security page states equal the limits in the code."""
    assert (UNITS_PER_SECOND, UNITS_BURST / module.MESSAGE_UNITS) == (2_000, 1_000)
