"""Server-sent events: converts bytes to events and back.

Source: WHATWG HTML, section 9.2 "Server-sent events". The fields ``id`` and ``retry`` are ignored, because no API uses
them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from toolsim.core.errors import ApiError
from toolsim.wire.json_codec import TOO_DEEP, as_read, too_deep

UNBUFFERED = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
"""Headers that keep proxies from delaying a stream by filling a buffer first (nginx) or compressing the stream."""

_BOM = b"\xef\xbb\xbf"
# Maximum size of an event. The largest real events contain a complete Response with images; only a broken backend sends
# larger events.
MAX_EVENT_BYTES = 256 * 1024 * 1024
# Maximum number of values in the JSON of one event. Parsed lists and objects take twenty times as much memory as their
# text, and parsing them takes a hundred times as long as parsing a string. Values are counted only in large events.
MAX_EVENT_VALUES = 50_000
_COUNTED_BYTES = 64 * 1024
_decode = json.JSONDecoder(parse_float=as_read).decode
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One complete event of a stream."""

    event: str
    """Name of the event; "" if the stream did not name it."""
    data: str
    whole: bool = True
    """False if the stream ended without the blank line after the event. In this case, the event's data may be
    truncated.
    """
    has_too_many: bool = False
    """Whether the event has more than ``MAX_EVENT_VALUES`` values. If so, its data is truncated."""
    document: dict[str, Any] | None = None
    """The parsed data, or None if it has not been parsed yet. The reader must not store it (see ``frame_template``)."""

    def parsed(self) -> dict[str, Any] | ApiError | None:
        """Return the event's data as an object, or None if the data was truncated or is JSON but not an object.
        Return an error if the data is not JSON or has too many values.
        """
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

    An event of more than ``limit`` bytes is returned early, with the data received so far. An event of more than
    ``MAX_EVENT_VALUES`` values is truncated, and the reader reports an error.
    """

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        # Number of bytes since the last blank line.
        self._held = 0
        # The chunks of an unfinished line. A list is fast even if one line arrives in thousands of chunks.
        self._tail: list[bytes] = []
        self._after_cr = False
        self._first_line = True
        self._event = b""
        self._data: list[bytes] = []

    @property
    def between_frames(self) -> bool:
        """Whether the input so far ends with a complete frame. If so, the next frame can be decoded by itself."""
        return not (self._held or self._tail or self._data or self._event or self._after_cr or self._first_line)

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Return the events that ``data`` completes.

        ``b""`` marks the end of input. According to WHATWG, an event that is not followed by a blank line is dropped.
        This decoder returns such an event, because many backends end with a bare ``data: [DONE]``.
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
        # bytes.splitlines splits only at the three line ends of SSE: LF, CR and CR LF. str.splitlines would also split
        # at other characters.
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
    """Return the approximate number of values in JSON text, by counting separators.

    Separators within strings are excluded only if the number would otherwise exceed ``MAX_EVENT_VALUES``.
    """
    marks = (b",", b"[", b"{")
    if sum(map(data.count, marks)) > MAX_EVENT_VALUES:
        data = _STRING.sub(b"", data)
    return sum(map(data.count, marks))


def encode(data: str, event: str = "") -> bytes:
    """Return one frame, including the blank line. ``data`` must be a single line, such as compact JSON."""
    return f"event: {event}\ndata: {data}\n\n".encode() if event else f"data: {data}\n\n".encode()


def comment(text: str) -> bytes:
    """Return a comment frame. Clients ignore it. ``text`` must be one line."""
    return f": {text}\n\n".encode()
