"""A JSON-RPC peer without I/O: bytes in, messages out; requests in, bytes out.

This is the variant of the Codex app-server: one message per line, without the ``jsonrpc`` member. Either side may send
requests and notifications. Lines that cannot be parsed are returned as ``Unparsable``: some versions and wrappers print
log lines among the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolsimlib.wire.json_codec import dump, parse_object
from toolsimlib.wire.json_fields import mapping

# Far above any message that holds text; a line that never ends must not use up all memory.
MAX_LINE_BYTES = 64 * 1024 * 1024

METHOD_NOT_FOUND = -32601


@dataclass(frozen=True, slots=True)
class Response:
    """The result of our request ``id``."""

    id: int
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """The error that our request ``id`` got."""

    id: int
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Request:
    """A request from the other side, which awaits a response."""

    id: int | str
    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification from the other side."""

    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unparsable:
    """A line that is not a message: not JSON, of no known shape, or over the limit (then without its text)."""

    line: bytes


Message = Response | ErrorResponse | Request | Notification | Unparsable


class Peer:
    """One side of one connection."""

    def __init__(self) -> None:
        self._last_id = 0
        self._chunks: list[bytes] = []
        self._size = 0
        self._oversized = False

    def request(self, method: str, params: Mapping[str, Any]) -> tuple[int, bytes]:
        """Return the id of a new request, and its line."""
        self._last_id += 1
        return self._last_id, _line({"id": self._last_id, "method": method, "params": params})

    def notify(self, method: str) -> bytes:
        """Return the line of a notification without parameters."""
        return _line({"method": method})

    def refuse(self, request: Request, message: str) -> bytes:
        """Return the line that refuses a request from the other side."""
        return _line({"id": request.id, "error": {"code": METHOD_NOT_FOUND, "message": message}})

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that ``data`` completes; any bytes, cut anywhere. Never raises."""
        messages: list[Message] = []
        *complete, rest = data.split(b"\n")
        for part in complete:
            self._buffer(part)
            line, oversized = b"".join(self._chunks), self._oversized
            self._chunks, self._size, self._oversized = [], 0, False
            if oversized:
                messages.append(Unparsable(b""))
            elif line.strip():
                messages.append(_read(line))
        self._buffer(rest)
        return messages

    def _buffer(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MAX_LINE_BYTES:
            self._chunks, self._oversized = [], True
        elif part:
            self._chunks.append(part)


def _line(message: Mapping[str, Any]) -> bytes:
    return dump(message).encode() + b"\n"


def _read(line: bytes) -> Message:
    message = parse_object(line) or {}
    match message:
        case {"method": str(method), "id": int() | str() as number}:
            return Request(number, method, mapping(message.get("params")))
        case {"method": str(method)}:
            return Notification(method, mapping(message.get("params")))
        case {"id": int(number), "error": {"code": int(code), "message": str(text)}}:
            return ErrorResponse(number, code, text)
        case {"id": int(number), "result": result}:
            return Response(number, mapping(result))
        case _:
            return Unparsable(line)
