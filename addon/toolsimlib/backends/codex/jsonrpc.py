"""A JSON-RPC peer over lines of JSON, without I/O: bytes in, messages out; calls in, bytes out.

The Codex app-server's dialect of it leaves the ``jsonrpc`` member out, and each message is one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Far above any message that holds text; a line that never ends must not take all memory.
MAX_LINE_BYTES = 64 * 1024 * 1024

METHOD_NOT_FOUND = -32601


@dataclass(frozen=True, slots=True)
class Reply:
    """The other side's answer to our request ``id``."""

    id: int
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """The other side's error for our request ``id``."""

    id: int
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the other side's, which awaits an answer."""

    id: int | str
    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Notification:
    """News from the other side."""

    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Noise:
    """A line that is no message: not JSON, of no known shape, or over the limit (then without its text)."""

    line: bytes


Message = Reply | Refused | Request | Notification | Noise


class Peer:
    """One side of one connection."""

    def __init__(self) -> None:
        self._last_id = 0
        self._pieces: list[bytes] = []
        self._held = 0
        self._skipping = False

    def request(self, method: str, params: Mapping[str, Any]) -> tuple[int, bytes]:
        """Return a new request's id and its line."""
        self._last_id += 1
        return self._last_id, _line({"id": self._last_id, "method": method, "params": params})

    def notify(self, method: str) -> bytes:
        """Return the line of a notification without parameters."""
        return _line({"method": method})

    def refuse(self, request: Request, message: str) -> bytes:
        """Return the line that refuses a request of the other side's."""
        return _line({"id": request.id, "error": {"code": METHOD_NOT_FOUND, "message": message}})

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that ``data`` completes; any bytes, cut anywhere. Never raises."""
        messages: list[Message] = []
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._hold(part)
            line, skipped = b"".join(self._pieces), self._skipping
            self._pieces, self._held, self._skipping = [], 0, False
            if skipped:
                messages.append(Noise(b""))
            elif line.strip():
                messages.append(_read(line))
        self._hold(rest)
        return messages

    def _hold(self, part: bytes) -> None:
        self._held += len(part)
        if self._held > MAX_LINE_BYTES:
            self._pieces, self._skipping = [], True
        elif part:
            self._pieces.append(part)


def _line(message: Mapping[str, Any]) -> bytes:
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        # A lone surrogate, such as half an emoji: Codex never answers a line that it cannot read, escaped or not.
        return re.sub(r"[\ud800-\udfff]", "\ufffd", text).encode() + b"\n"


def _read(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return Noise(line)
    match message:
        case {"method": str(method), "id": int() | str() as number}:
            return Request(number, method, _mapping(message.get("params")))
        case {"method": str(method)}:
            return Notification(method, _mapping(message.get("params")))
        case {"id": int(number), "error": {"code": int(code), "message": str(text)}}:
            return Refused(number, code, text)
        case {"id": int(number), "result": result}:
            return Reply(number, _mapping(result))
        case _:
            return Noise(line)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
