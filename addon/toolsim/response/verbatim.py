"""Passes a stream through byte for byte as long as it is the JSON that the client requests.

A backend that enforces the format needs no help, and its stream should stay unchanged. Two versions of the answer are
therefore produced in parallel: the backend's bytes, and the rewritten answer.

1. The stream is withheld until its text begins. If the text begins like JSON, the bytes are passed on. Otherwise, the
   rewritten answer is sent, and a further round can continue it.
2. If bytes have passed and the answer then turns out to be invalid or truncated, its end is replaced by an error event.
   For this reason, only complete events pass. The error event does not refer to IDs of the rewritten answer, because
   the client has never received them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import override

from toolsim.core.errors import ApiError
from toolsim.response.rewrite import ResponseRewriter
from toolsim.wire.sse import comment


def _end_of_events(data: bytes) -> int:
    """Return the end of the last complete event, or 0 if no event is complete."""
    ends = (data.rfind(blank) + len(blank) for blank in (b"\n\n", b"\r\n\r\n") if blank in data)
    return max(ends, default=0)


class VerbatimRewriter(ResponseRewriter):
    """A rewriter that returns the backend's bytes unchanged if the answer is the requested JSON."""

    _passes: bool | None = None  # Whether the bytes pass; None while undecided.
    _bytes = b""  # Bytes that have not passed yet.
    _frames: tuple[bytes, ...] = ()  # The rewritten answer, while it is undecided which version passes.

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
            # No bytes have been passed on yet, so an invalid answer can still be replaced.
            return self.is_as_demanded
        return self._json.starts if self._json is not None else True

    @override
    def keepalive(self) -> list[bytes]:
        if self._passes is None and not self.is_done:
            # A comment is valid in either version, since the backend's bytes may follow.
            return [comment("keepalive")]
        return [] if self._passes else super().keepalive()

    @override
    def fail(self, error: ApiError) -> list[bytes]:
        return self._rewritten(super().fail(error))

    @override
    def abandon(self, error: ApiError) -> list[bytes]:
        return self._rewritten(super().abandon(error))

    def _rewritten(self, frames: list[bytes]) -> list[bytes]:
        """Return the rewritten answer from its beginning to the latest ``frames``, in place of the backend's bytes.

        If bytes have already passed, the error in the frames is returned instead (rule 2).
        """
        self._bytes = b""
        if self._passes:
            error = self._writer.error
            return [self._writer.error_event(error)] if frames and error is not None else []
        frames, self._frames, self._passes = [*self._frames, *frames], (), False
        return frames
