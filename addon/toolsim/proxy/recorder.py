"""Records bodies for people to inspect, because mitmproxy itself does not store streamed bodies."""

from __future__ import annotations

import zlib

from mitmproxy.http import HTTPFlow, Response

from toolsim.proxy.mitmproxy12 import backup

MAX_BYTES = 4 * 1024 * 1024
"""Maximum number of recorded bytes for each side of an answer.

The limit is larger than any turn that a person would read, but small enough for a proxy that runs indefinitely.
"""


_BLOCK_BYTES = 8 * 1024
"""Number of bytes above which the pending chunks are combined into a block and compressed.

Compression takes about 10 µs, and reduces the size by a factor of 20, because the frames of a stream are similar.
"""
_MOST_BYTES = 16 * _BLOCK_BYTES
"""Maximum size, in bytes, of a block that is compressed. Compressing a larger block would stall all other streams."""


class BoundedBuffer:
    """A compressed copy of a stream, with a limited size.

    It contains complete chunks, up to the first chunk that does not fit.
    """

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self._limit = limit
        self._blocks: list[tuple[bytes, bool]] = []  # The data of each block, and whether the block is compressed.
        self._chunks: list[bytes] = []  # The chunks that have not been combined into a block yet.
        self._chunk_bytes = 0
        self._size = 0
        self.missing = 0
        """The number of bytes that were not stored."""

    def __repr__(self) -> str:
        return f"BoundedBuffer({self._size} bytes stored, {self.missing} not)"

    def add(self, chunk: bytes) -> None:
        """Store another chunk if it fits."""
        size = len(chunk)
        if self.missing or self._size + size > self._limit:
            self.missing += size
            return
        self._chunks.append(chunk)
        self._size += size
        self._chunk_bytes += size
        if self._chunk_bytes > _BLOCK_BYTES:
            is_small = self._chunk_bytes <= _MOST_BYTES
            block = b"".join(self._chunks)
            self._blocks.append((zlib.compress(block, 1) if is_small else block, is_small))
            self._chunks, self._chunk_bytes = [], 0

    def content(self) -> bytes:
        """Return all stored bytes."""
        blocks = (zlib.decompress(block) if is_compressed else block for block, is_compressed in self._blocks)
        return b"".join((*blocks, *self._chunks))


class BodyRecorder:
    """Records both sides of an answer.

    ``received`` contains the bytes received from the backend, and ``sent`` the bytes sent to the client.
    """

    def __init__(self) -> None:
        self.sent = BoundedBuffer()
        self.received = BoundedBuffer()
        self._response: Response | None = None

    def begin(self, response: Response) -> None:
        """Store the headers of the backend's response. The caller must not change ``response`` afterwards."""
        self._response = response

    def whole(self, response: Response) -> None:
        """Remember the backend's complete answer before it is changed."""
        self._response = backup.copied(response)
        self.received.add(response.raw_content or b"")

    def pass_on(self, chunks: list[bytes]) -> list[bytes]:
        """Record data that is sent to the client, and return the data."""
        for chunk in chunks:
            self.sent.add(chunk)
        return chunks

    def passing(self, data: bytes) -> bytes:
        """Record data that passes through unchanged, and return the data."""
        self.received.add(data)
        self.sent.add(data)
        return data

    @property
    def missing(self) -> dict[str, int]:
        """The number of bytes that were not stored, by side ("client" or "backend"). Empty if all were stored."""
        by_side = {"client": self.sent.missing, "backend": self.received.missing}
        return {side: count for side, count in by_side.items() if count}

    def store_in(self, flow: HTTPFlow) -> None:
        """Store the body that was sent to the client in the flow, and the backend's answer in the flow's backup.

        Call this method after all data has been recorded and all other changes to the flow have been made.
        """
        response = flow.response
        if response is not None and response.raw_content is None:
            response.raw_content = self.sent.content()
        if self._response is not None:
            self._response.raw_content = self.received.content()
            self._response.timestamp_end = response.timestamp_end if response is not None else None
        backup.set_incoming_response(flow, self._response)
