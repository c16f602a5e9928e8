"""Forwards a stream byte for byte as long as it is the JSON that the client requests.

If a backend enforces the JSON format, its stream should reach the client unchanged. If the answer turns out to be
invalid, however, it has to be rewritten. Both versions are therefore available until this is known: the backend's
bytes, and the rewritten answer.

1. The stream is held back until its text begins. If the text begins like JSON, the client receives the backend's bytes.
   Otherwise, it receives the rewritten answer, which may include a retry.
2. If the client has received some of the bytes, and the answer then turns out to be invalid or truncated, an error
   event replaces the end of the answer. For this reason, only complete events are forwarded. The error event does not
   contain any IDs from the rewritten answer, because the client has never received these IDs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import override

from toolsim.core.errors import ApiError
from toolsim.response.rewrite import ResponseRewriter
from toolsim.wire.sse import comment


def _end_of_events(data: bytes) -> int:
    """Return the position after the last complete event, or 0 if no event is complete."""
    ends = (data.rfind(blank) + len(blank) for blank in (b"\n\n", b"\r\n\r\n") if blank in data)
    return max(ends, default=0)


class VerbatimRewriter(ResponseRewriter):
    """A rewriter that forwards the backend's bytes unless the answer has to be rewritten."""

    _passes: bool | None = None  # Whether the client receives the backend's bytes. None until this has been decided.
    _bytes = b""  # Bytes that have not been forwarded.
    _frames: tuple[bytes, ...] = ()  # The beginning of the rewritten answer; empty once a version has been chosen.

    @override
    def steps(self, data: bytes) -> Iterator[list[bytes]]:
        if self._passes is False:
            yield from super().steps(data)
            return
        is_over = self.has_read_all or not data
        frames = [frame for step in super().steps(data) for frame in step]
        if not data and frames and self._writer.error is not None:
            yield self._rewritten(frames)
            return
        self._bytes += data
        if self._passes is None:
            self._frames += tuple(frames)
            self._passes = self._decision()
            frames = list(self._frames)
        if self._passes is None:
            return
        self._frames = ()
        if self.waits is not None and self._passes:
            frames = self.conclude()
        if self._passes and self.is_as_demanded:
            end = len(self._bytes) if is_over or self.has_read_all else _end_of_events(self._bytes)
            passed, self._bytes = self._bytes[:end], self._bytes[end:]
            frames = [passed] if passed else []
        else:
            frames = self._rewritten(frames)
        yield frames

    def _decision(self) -> bool | None:
        if self.has_read_all:
            # Nothing has been forwarded, so an invalid answer can still be replaced.
            return self.is_as_demanded
        return self._json.starts if self._json is not None else True

    @override
    def keepalive(self) -> list[bytes]:
        if self._passes is None and not self.is_done:
            # An SSE comment is valid whether the backend's bytes or the rewritten answer follows.
            return [comment("keepalive")]
        return [] if self._passes else super().keepalive()

    @override
    def fail(self, error: ApiError) -> list[bytes]:
        return self._rewritten(super().fail(error))

    @override
    def abandon(self, error: ApiError) -> list[bytes]:
        return self._rewritten(super().abandon(error))

    def _rewritten(self, frames: list[bytes]) -> list[bytes]:
        """Return the rewritten answer, from its beginning to the latest ``frames``, instead of the backend's bytes.

        If the client has already received some of the bytes, return only the error event (rule 2).
        """
        self._bytes = b""
        if self._passes:
            error = self._writer.error
            return [self._writer.error_event(error)] if frames and error is not None else []
        frames, self._frames, self._passes = [*self._frames, *frames], (), False
        return frames
