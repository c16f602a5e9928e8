"""Server-sent events: bytes to events and back.

Source: WHATWG HTML, section 9.2 "Server-sent events". ``id`` and ``retry`` fields are ignored: neither API uses them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from toolsim.core.errors import ApiError
from toolsim.wire.json_codec import TOO_DEEP, as_read, too_deep

UNBUFFERED = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
"""Headers that keep proxies from buffering a stream: nginx until its buffer is full, others to compress it."""

_BOM = b"\xef\xbb\xbf"
# The largest real events hold a whole Response, images included; anything beyond this is a broken backend.
MAX_EVENT_BYTES = 256 * 1024 * 1024
# Maximum number of values in the JSON of one event: lists and objects take twenty times the memory of their text, and
# a hundred times as long to parse as a string. Only large events are counted.
MAX_EVENT_VALUES = 50_000
_COUNTED_BYTES = 64 * 1024
_decode = json.JSONDecoder(parse_float=as_read).decode
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One dispatched event."""

    event: str
    """Its name; "" if the stream gave it none."""
    data: str
    whole: bool = True
    """False if the stream ended without the blank line, so that the data can be truncated."""
    has_too_many: bool = False
    """Whether it has more values than are parsed; its data is truncated."""
    document: dict[str, Any] | None = None
    """The data already parsed as JSON, if available; the reader must not store it (see ``frame_template``)."""

    def parsed(self) -> dict[str, Any] | ApiError | None:
        """Return the data as an object; None if it is not an object or was truncated; an error if it is not JSON."""
        if self.document is not None:
            return self.document
        if self.has_too_many:
            message = f"The backend sent an event of more than {MAX_EVENT_VALUES} values."
            return ApiError(message, code="backend_bad_event", status=502)
        problem = "is not JSON"
        try:
            if not too_deep(self.data):
                value = _decode(self.data)
                return value if isinstance(value, dict) else None
            problem = f"cannot be read. {TOO_DEEP}"
        except (ValueError, RecursionError):
            pass
        if not self.whole:
            return None
        return ApiError(f"The backend sent an event that {problem}.", code="backend_bad_event", status=502)


class SSEDecoder:
    """Decodes a byte stream into events. Never raises: invalid UTF-8 becomes U+FFFD, as WHATWG requires.

    An event of more than ``limit`` bytes is dispatched with the data received so far. An event of more than
    ``MAX_EVENT_VALUES`` values is truncated; the reader fails on it.
    """

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._held = 0  # Bytes since the last blank line.
        self._tail: list[bytes] = []  # An unfinished line; a list, since one line can arrive in thousands of pieces.
        self._after_cr = False
        self._first_line = True
        self._event = b""
        self._data: list[bytes] = []

    @property
    def between_frames(self) -> bool:
        """Whether the last byte ended a frame's blank line, so that nothing before it affects further input."""
        return not (self._held or self._tail or self._data or self._event or self._after_cr or self._first_line)

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Return the events that ``data`` completes.

        ``b""`` is the end of input. WHATWG drops an event that is not followed by a blank line. Since many backends end
        with a bare ``data: [DONE]``, it is dispatched here. The reader decides how to treat a truncated line.
        """
        if not data:
            return self._rest(whole=False)
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        self._after_cr = False
        self._held += len(data)
        if b"\n" not in data and b"\r" not in data:
            if data:
                self._tail.append(data)
            return self._rest() if self._held > self._limit else []
        self._tail.append(data)
        text = b"".join(self._tail)
        self._tail = []
        # bytes.splitlines splits only at the three line ends of SSE: LF, CR, CR LF. (str.splitlines splits at more.)
        lines = text.splitlines()
        if text.endswith(b"\r"):
            self._after_cr = True
        elif not text.endswith(b"\n"):
            self._tail.append(lines.pop())
        events = self._lines(lines)
        return events + self._rest() if self._held > self._limit else events

    def _rest(self, *, whole: bool = True) -> list[ServerSentEvent]:
        rest, self._tail = b"".join(self._tail), []
        return self._lines([rest, b""], whole=whole)

    def _lines(self, lines: list[bytes], whole: bool = True) -> list[ServerSentEvent]:
        events: list[ServerSentEvent] = []
        for line in lines:
            if self._first_line:
                self._first_line = False
                line = line.removeprefix(_BOM)
            if not line:
                self._held = 0
                if self._data:
                    data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    has_too_many = len(data) > _COUNTED_BYTES and _values(data) > MAX_EVENT_VALUES
                    text = (data[:_COUNTED_BYTES] if has_too_many else data).decode(errors="replace")
                    event = self._event.decode(errors="replace")
                    events.append(ServerSentEvent(event, text, whole and not has_too_many, has_too_many))
                    self._data = []
                self._event = b""
                continue
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value[1:] if value.startswith(b" ") else value)
            elif field == b"event":
                self._event = value[1:] if value.startswith(b" ") else value
        return events


def _values(data: bytes) -> int:
    """Return the approximate number of values in a JSON text; separators in strings count only below the limit."""
    marks = (b",", b"[", b"{")
    if sum(map(data.count, marks)) > MAX_EVENT_VALUES:
        data = _STRING.sub(b"", data)
    return sum(map(data.count, marks))


def encode(data: str, event: str = "") -> bytes:
    """Return one frame, blank line included. ``data`` must be one line, as JSON is."""
    return f"event: {event}\ndata: {data}\n\n".encode() if event else f"data: {data}\n\n".encode()


def comment(text: str) -> bytes:
    """Return a comment frame, which clients skip. ``text`` must be one line."""
    return f": {text}\n\n".encode()
