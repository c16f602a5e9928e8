"""Decodes content encodings with a limit on the decoded size, because 33 kB of zstd can expand to 2 GB.

Each decoder stops after one byte more than the limit, so it never holds a larger result in memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from io import BytesIO

import brotli
import zstandard

# The largest window that a decoder of HTTP bodies must support (RFC 9659).
_ZSTD_WINDOW = 8 * 1024 * 1024


class BodyTooLarge(ValueError):
    """Raised for a body that is larger than the limit."""


def decoded(data: bytes, encoding: str, limit: int) -> bytes:
    """Return a complete body without its content encoding.

    ``encoding`` is the value of the ``Content-Encoding`` header; "" and "identity" mean that the body is not encoded.
    Raises BodyTooLarge if the decoded body exceeds ``limit`` bytes, and ValueError if the body cannot be decoded.
    """
    encoding = encoding.strip().lower() or "identity"
    decode = _DECODERS.get(encoding)
    if decode is None:
        # For an unknown encoding, mitmproxy's own decoder tries Python's codecs, many of which are unrelated to HTTP.
        raise ValueError(f"got content encoding {encoding!r}, expected one of {', '.join(_DECODERS)}")
    body = decode(data, limit + 1) if data else data
    if len(body) > limit:
        raise BodyTooLarge(f"got more than {limit} bytes")
    return body


def _gzip(data: bytes, size: int) -> bytes:
    return _inflate(data, size, zlib.MAX_WBITS | 32)


def _deflate(data: bytes, size: int) -> bytes:
    try:
        return _inflate(data, size, zlib.MAX_WBITS)
    except ValueError:
        # Some servers send raw deflate data, without the zlib header and checksum.
        return _inflate(data, size, -zlib.MAX_WBITS)


def _inflate(data: bytes, size: int, window: int) -> bytes:
    decoder = zlib.decompressobj(window)
    try:
        body = decoder.decompress(data, size)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    return _whole(body, size, is_finished=decoder.eof)


def _brotli(data: bytes, size: int) -> bytes:
    decoder = brotli.Decompressor()
    try:
        body: bytes = decoder.process(data, output_buffer_limit=size)
    except brotli.error as error:
        raise ValueError(str(error)) from error
    return _whole(body, size, is_finished=decoder.is_finished())


def _whole(body: bytes, size: int, *, is_finished: bool) -> bytes:
    if not is_finished and len(body) < size:
        raise ValueError("the data is truncated")
    return body


def _zstd(data: bytes, size: int) -> bytes:
    decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    try:
        return decoder.stream_reader(BytesIO(data), read_across_frames=True).read(size)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


_DECODERS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "identity": lambda data, size: data,
    "gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
