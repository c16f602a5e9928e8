"""Encodes and decodes JSON-RPC lines, without I/O.

The Codex app-server uses a variant of JSON-RPC: one message per line, without the ``jsonrpc`` member. The client and
the server can both send requests and notifications.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolsim.wire.json_codec import dump

# Maximum length of a line, in bytes. Any text message is far shorter, but an endless line would exhaust the memory.
MAX_LINE_BYTES = 64 * 1024 * 1024

METHOD_NOT_FOUND = -32601


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification from the app-server."""

    method: str
    params: Mapping[str, Any]


class Peer:
    """The client's side of a JSON-RPC connection: assigns IDs, encodes messages, and splits the input into lines."""

    def __init__(self) -> None:
        self._last_id = 0
        self._chunks: list[bytes] = []
        self._size = 0

    def request(self, method: str, params: Mapping[str, Any]) -> tuple[int, bytes]:
        """Return the ID of a new request, and the line that contains the request."""
        self._last_id += 1
        return self._last_id, _line({"id": self._last_id, "method": method, "params": params})

    def notify(self, method: str) -> bytes:
        """Return the line that contains a notification without parameters."""
        return _line({"method": method})

    def refuse(self, number: int | str, message: str) -> bytes:
        """Return the line that refuses a request from the app-server."""
        return _line({"id": number, "error": {"code": METHOD_NOT_FOUND, "message": message}})

    def feed(self, data: bytes) -> list[bytes]:
        """Add received data, and return the lines that are now complete. Blank and overlong lines are dropped."""
        lines = []
        *complete, rest = data.split(b"\n")
        for part in complete:
            self._buffer(part)
            line = b"".join(self._chunks)
            self._chunks, self._size = [], 0
            if line.strip():
                lines.append(line)
        self._buffer(rest)
        return lines

    def _buffer(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MAX_LINE_BYTES:
            self._chunks = []
        elif part:
            self._chunks.append(part)


def _line(message: Mapping[str, Any]) -> bytes:
    return dump(message).encode() + b"\n"
