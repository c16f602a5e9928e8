"""Reads chunked HTTP/1 bodies in place of h11's reader, without trailers and with all available chunks joined.

1. Trailers are dropped. mitmproxy's layer does not support trailers: it would crash, and the client would wait forever.
   A proxy is allowed to drop trailers (RFC 9110, 6.5.1), and no known API sends any.
2. Chunks that arrive together are joined. Chunk boundaries have no meaning (RFC 9112, 7.1), but mitmproxy forwards each
   chunk separately, and writing to a socket is its most expensive step. The more streams there are, the more chunks
   arrive together.
3. h11's reader handles everything else: chunk extensions, partial chunks, the last chunk, and errors.

Relies on these internals of ``mitmproxy.proxy.layers.http._http1`` 12.2: it creates the reader of a chunked body
with the class in the module's global variable ``ChunkedReader``, and calls the reader until it returns None. For a last
chunk with trailers, the reader returns an ``EndOfMessage`` with headers. In h11 0.16, between two chunks,
``_bytes_in_chunk`` is 0, ``_reading_trailer`` is false, and ``_bytes_to_discard`` is the missing part of the line break
after the first chunk.
"""

from __future__ import annotations

import re
from typing import Any

from h11 import Data, EndOfMessage
from h11._readers import ChunkedReader

_LINE_END = b"\r\n"
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n").match


class JoiningReader(ChunkedReader):
    """Reads a chunked body in as few pieces as possible, and drops its trailers."""

    @property
    def is_between_chunks(self) -> bool:
        """Whether the next byte is the first byte of a chunk."""
        return not (self._bytes_in_chunk or self._bytes_to_discard or self._reading_trailer)

    def __call__(self, buf: Any) -> Any:
        """Return the body's next event, or None if more data is needed."""
        if not self._bytes_in_chunk and not self._reading_trailer and self._bytes_to_discard in (b"", _LINE_END):
            if not buf:
                return None
            if (data := self._whole_chunks(buf)) is not None:
                return Data(data=data)
        event = super().__call__(buf)
        return EndOfMessage() if isinstance(event, EndOfMessage) else event

    def _whole_chunks(self, buf: Any) -> bytes | None:
        """Consume all complete chunks and return their data, or None if no chunk is complete."""
        raw = bytes(buf)
        pieces, at = _read(raw, follows_chunk=bool(self._bytes_to_discard))
        if not pieces:
            return None
        has_line_end = raw.startswith(_LINE_END, at)
        self._bytes_to_discard = b"" if has_line_end else _LINE_END
        buf._extract(at + 2 * has_line_end)
        return b"".join(pieces)


def whole_chunks(raw: bytes) -> bytes | None:
    """Return the joined data of the chunks in ``raw``, or None if a chunk is incomplete or empty, or has extensions."""
    pieces, end = _read(raw)
    return b"".join(pieces) if raw[end:] == (_LINE_END if pieces else b"") else None


def _read(raw: bytes, *, follows_chunk: bool = False) -> tuple[list[bytes], int]:
    """Return the data of the chunks at the start of ``raw``, and the position where the last chunk's data ends.

    If ``follows_chunk`` is true, ``raw`` starts with the line break that ends the previous chunk.
    """
    pieces = []
    at = 0
    while at + 2 < len(raw):
        start = at + 2 if follows_chunk else at
        size = _SIZE(raw, start)
        if size is None or (follows_chunk and raw[at:start] != _LINE_END):
            break
        end = size.end() + int(size[1], 16)
        if end > len(raw) or end == size.end():
            break
        pieces.append(raw[size.end() : end])
        at, follows_chunk = end, True
    return pieces, at
