"""Represents one WebSocket connection over a TCP stream. wsproto parses and writes the frames.

1. *Pace.* A task is not suspended when it reads data that has already arrived, or when it writes to a stream with free
   space. A client that sends tiny frames could therefore block the event loop indefinitely. After each frame, the time
   slice is checked, and other tasks run once it is used up (``core.time_slice``).
2. *Rate.* Frames and messages share one allowance, which is more than ten times the rate of any real client: 2,000 tiny
   frames or 200 messages per second, in addition to a burst of five times as many. Frames of at least 1 KiB are free,
   because clients split large messages into such frames. A message that cannot be parsed costs as much as ten others. A
   client that has used up its allowance is disconnected with the code 1008.
3. *Memory.* The kernel's buffers are small (``BUFFER_BYTES``), so if the client or toolsim stops reading, the other
   side soon has to stop writing. Messages have a maximum size. If several pings arrive while the client does not read,
   only the last one is answered (RFC 6455, 5.5.3).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Message,
    Ping,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from toolsim.core.rate import TokenBucket
from toolsim.core.tasks import spawn
from toolsim.core.time_slice import TimeSlice
from toolsim.proxy.upgrades import BUFFER_BYTES

READ_BYTES = 16 * 1024
HANDSHAKE_SECONDS = 10.0
"""Timeout for receiving an upgrade request, in seconds. The request is relayed by this process itself."""
CLOSE_SECONDS = 5.0
"""Timeout, in seconds, for the client's reply to a close frame. After that, the connection is aborted."""
DISCARD_SECONDS = 1.0
"""Seconds that the connection stays open after a violation, so that the client can read the close frame. Anything that
the client sends during this time is discarded.
"""

UNITS_PER_SECOND, UNITS_BURST = 2_000, 10_000
FRAME_UNITS, MESSAGE_UNITS, UNREADABLE_UNITS = 1, 10, 100
FREE_FRAME_BYTES = 1024
"""Minimum size, in bytes, of frames that are not rate-limited. Their rate is already limited by their size."""

GOING_AWAY, UNSUPPORTED_DATA, POLICY, TOO_BIG, INTERNAL_ERROR = 1001, 1003, 1008, 1009, 1011


@dataclass(frozen=True, slots=True)
class ProtocolViolation:
    """A violation of a limit or of the protocol by the client, which ends the connection."""

    code: int
    reason: str


class WebSocket:
    """The server side of one WebSocket connection, starting with the upgrade."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = WSConnection(ConnectionType.SERVER)
        self._allowance = TokenBucket(UNITS_PER_SECOND, UNITS_BURST)
        self._writing = asyncio.Lock()
        self._ponging: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._ping: bytes | None = None  # The payload of the last unanswered ping, or None.
        self._violation: ProtocolViolation | None = None
        self.pongs = 0
        """The number of pongs that have been received."""
        self.end: tuple[int, str] | None = None
        """The code and the reason of the first close frame that either side has sent, or None if neither has."""

    # -- the upgrade --

    async def upgrade(self) -> Request | None:
        """Read and return the upgrade request, or None if no valid request arrives. An invalid request is rejected."""
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            while data := await self._reader.read(READ_BYTES):
                try:
                    self._protocol.receive_data(data)
                    for event in self._protocol.events():
                        if isinstance(event, Request):
                            return event
                except RemoteProtocolError as problem:
                    hint = problem.event_hint
                    self.reject(hint if isinstance(hint, RejectConnection) else RejectConnection(status_code=400))
                    return None
                except ValueError:  # The host name in the request is invalid.
                    self.reject(RejectConnection(status_code=400))
                    return None
        return None

    def accept(self) -> None:
        """Accept the upgrade request."""
        self._write(AcceptConnection())

    def reject(self, rejection: RejectConnection) -> None:
        """Reject the upgrade request."""
        with suppress(LocalProtocolError):
            self._write(rejection)

    # -- receiving --

    async def messages(self, max_bytes: int) -> AsyncGenerator[bytes]:
        """Yield each text message as UTF-8, until the connection is closed.

        ``max_bytes`` is the maximum size of one message. If the client violates a limit or the protocol, the connection
        ends. Raises OSError if the client is gone.
        """
        pace = TimeSlice()
        message = bytearray()
        frame_bytes = 0
        data = b""
        while True:
            pace.begin()
            self._protocol.receive_data(data)
            for event in self._protocol.events():
                match event:
                    case Message():
                        part = event.data.encode() if isinstance(event, TextMessage) else event.data
                        frame_bytes += len(part)
                        if self._is_closing:
                            pass
                        elif isinstance(event, BytesMessage):
                            self.violate(UNSUPPORTED_DATA, "expected text messages")
                        elif len(message) + len(part) > max_bytes:
                            self.violate(TOO_BIG, "message too big")
                        else:
                            message += part
                            if event.frame_finished:
                                self._spend(0 if frame_bytes >= FREE_FRAME_BYTES else FRAME_UNITS)
                                frame_bytes = 0
                            if event.message_finished:
                                self._spend(MESSAGE_UNITS)
                                whole, message = bytes(message), bytearray()
                                if not self._is_closing:
                                    yield whole
                    case Ping():
                        self._spend(FRAME_UNITS)
                        self._pong(bytes(event.payload))
                    case Pong():
                        self._spend(FRAME_UNITS)
                        self.pongs += 1
                    case CloseConnection() if self._protocol.state is ConnectionState.OPEN:
                        # wsproto reports this event for a frame that violates the protocol. The connection is still
                        # open, so the client has sent no close frame.
                        self.violate(int(event.code), event.reason or "")
                    case CloseConnection():
                        self._closed_by_client(event)
                        return
                if self._violation is not None:
                    await self._discard()
                    return
                await pace.yield_to_others()
            pace.end()
            if not (data := await self._reader.read(READ_BYTES)):
                return

    def unreadable(self) -> None:
        """Charge the client's allowance for a message that could not be parsed."""
        self._spend(UNREADABLE_UNITS)

    def violate(self, code: int, reason: str) -> None:
        """End the connection because of a violation, without waiting for the client's close frame."""
        if self._violation is None:
            self._violation = ProtocolViolation(code, reason)
            self.close(code, reason)

    def _spend(self, units: float) -> None:
        if units and not self._allowance.take(units):
            self.violate(POLICY, "too many frames or messages")

    def _closed_by_client(self, event: CloseConnection) -> None:
        """Reply to the client's close frame, unless that frame is itself a reply."""
        if self._protocol.state is ConnectionState.REMOTE_CLOSING:
            self.end = int(event.code), event.reason or ""
            self._write(event)

    async def _discard(self) -> None:
        """Discard incoming data before closing, because unread data could make the client lose the close frame."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while await self._reader.read(BUFFER_BYTES):
                    pass

    # -- sending --

    async def send(self, text: str) -> None:
        """Send a message, and wait while the client reads slowly.

        Raises ConnectionError if the client is gone.
        """
        async with self._writing:
            if self._is_closing:
                raise ConnectionError("The connection is closed.")
            self._write(TextMessage(text))
            await self._writer.drain()

    def ping(self) -> None:
        """Send a ping, which shows whether the client is alive."""
        if not self._is_closing:
            self._write(Ping())

    def close(self, code: int, reason: str) -> None:
        """Send a close frame. The connection ends when the client replies, or after ``CLOSE_SECONDS``."""
        if self._is_closing:
            return
        self.end = code, reason
        self._write(CloseConnection(code=code, reason=reason))
        self._break_off_later()

    def shut(self) -> None:
        """End the connection once all data has been sent."""
        self._writer.close()
        self._break_off_later()

    @property
    def _is_closing(self) -> bool:
        return self._protocol.state is not ConnectionState.OPEN or self._writer.is_closing()

    def _pong(self, payload: bytes) -> None:
        is_ponging, self._ping = self._ping is not None, payload
        if not is_ponging:
            spawn(self._send_pong(), self._ponging)

    async def _send_pong(self) -> None:
        with suppress(OSError):
            await self._writer.drain()
            ping, self._ping = self._ping, None
            if ping is not None and not self._is_closing:
                self._write(Pong(ping))

    def _write(self, event: Event) -> None:
        data = self._protocol.send(event)
        if not self._writer.is_closing():
            self._writer.write(data)

    def _break_off_later(self) -> None:
        spawn(self._end_in_time(), self._ending)

    async def _end_in_time(self) -> None:
        # ``abort`` is called only after the timeout, because in asyncio it fails if the connection has already ended.
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()
        except OSError:
            pass  # The client has already ended the connection.
