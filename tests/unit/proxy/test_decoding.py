"""Decoding of bodies in each content encoding, with a size limit."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from support.each import each
from toolsim.proxy.decoding import BodyTooLarge, decoded


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


ENCODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "identity": ("identity", bytes),
    "another case": ("Identity", bytes),
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate without a header": ("deflate", raw_deflate),
    "br": ("br", brotli.compress),
    "zstd": (" ZSTD", zstandard.compress),
}


@each("name", ENCODERS)
@each("size", [0, 1, 100_000])
def test_body_at_the_limit_is_accepted(name: str, size: int) -> None:
    """A body whose decoded size equals the limit is accepted, and a body that is one byte longer is refused."""
    encoding, encode = ENCODERS[name]
    body = bytes(number % 251 for number in range(size))
    assert decoded(encode(body), encoding, limit=size) == body
    if size:
        with pytest.raises(BodyTooLarge, match=f"more than {size - 1} bytes"):
            decoded(encode(body), encoding, limit=size - 1)
    assert decoded(encode(b""), encoding, limit=0) == b""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gzip", "deflate", "deflate without a header", "br", "zstd"])
def test_compression_bombs_use_little_memory(name: str) -> None:
    """Decoding a compression bomb uses little more memory than the limit."""
    encoding, encode = ENCODERS[name]
    bomb = encode(bytes(50_000_000))
    tracemalloc.start()
    with pytest.raises(BodyTooLarge):
        decoded(bomb, encoding, limit=1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_invalid_body_raises(encoding: str) -> None:
    """Bytes that are not a valid encoded body raise a ValueError."""
    for data in (b"no such data", b"\x00" * 100, b"{}"):
        with pytest.raises(ValueError, match=r"."):
            decoded(data, encoding, limit=1000)


def test_other_codecs_are_refused() -> None:
    """Only the content encodings of HTTP are accepted, and Python's other codecs are refused."""
    with pytest.raises(ValueError, match="rot13"):
        decoded(b"uryyb", "rot13", limit=1000)
