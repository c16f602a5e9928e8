"""Records bodies for people to inspect: mitmproxy itself does not store streamed bodies."""

from __future__ import annotations

import zlib

from mitmproxy.http import HTTPFlow, Response

from toolsim.proxy.mitmproxy12 import backup

MAX_BYTES = 4 * 1024 * 1024
"""The limit per side of an answer: larger than any turn that a person would read, small enough to run indefinitely."""


_BLOCK_BYTES = 8 * 1024
"""Compressing a block takes about 10 µs, and reduces its size by a factor of 20: the frames of a stream are similar."""
_MOST_BYTES = 16 * _BLOCK_BYTES
"""Larger blocks are stored uncompressed: compressing them would stall all other streams."""


class BoundedBuffer:
    """A bounded, compressed copy of a stream: complete chunks, up to the first that does not fit."""

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self._limit = limit
        self._blocks: list[tuple[bytes, bool]] = []  # The bytes, and whether they are compressed.
        self._chunks: list[bytes] = []  # The chunks after the blocks.
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
    """Records both sides of an exchange's answer: ``received`` from the backend, and ``sent`` to the client."""

    def __init__(self) -> None:
        self.sent = BoundedBuffer()
        self.received = BoundedBuffer()
        self._response: Response | None = None

    def begin(self, response: Response) -> None:
        """Remember the headers of the backend's answer, which must not be changed from now on."""
        self._response = response

    def whole(self, response: Response) -> None:
        """Remember the backend's complete answer, which is about to be changed."""
        self._response = backup.copied(response)
        self.received.add(response.raw_content or b"")

    def pass_on(self, chunks: list[bytes]) -> list[bytes]:
        """Record data for the client, and return it."""
        for chunk in chunks:
            self.sent.add(chunk)
        return chunks

    def passing(self, data: bytes) -> bytes:
        """Record data that passes unchanged, and return it."""
        self.received.add(data)
        self.sent.add(data)
        return data

    @property
    def missing(self) -> dict[str, int]:
        """The numbers of bytes that were not stored, by side; empty if all bytes were stored."""
        by_side = {"client": self.sent.missing, "backend": self.received.missing}
        return {side: count for side, count in by_side.items() if count}

    def store_in(self, flow: HTTPFlow) -> None:
        """Store the sent body in the flow, and the backend's answer in the flow's backup; has to be called last."""
        response = flow.response
        if response is not None and response.raw_content is None:
            response.raw_content = self.sent.content()
        if self._response is not None:
            self._response.raw_content = self.received.content()
            self._response.timestamp_end = response.timestamp_end if response is not None else None
        backup.set_incoming_response(flow, self._response)
