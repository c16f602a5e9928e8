"""An answer in progress that the client receives as a stream.

    feed(data)      called with the backend's bytes, and with b"" at the end; a caller that can pause calls ``slices``
    tick            called regularly, even if the backend sends nothing

1. The answer is ``finished`` once the rewriter has emitted everything. If the backend has not disconnected by the next
   tick, the tick stops it.
2. The answer is ``cut`` if it ends before the backend's answer does. This happens if the turn is complete, the backend
   has been silent for too long, or the answer is too large. The caller then stops the backend, and ends the client's
   answer.
3. The last frames of an answer that has to be stored are held back (``end``) until they are released.
4. If an answer consists only of an undeclared call, it ``waits`` before it ends. The caller then starts another round,
   and sends the output of that round (``further``) as it arrives.
5. The answer is rewritten in time slices, and other tasks run in between. A chunk of an answer can contain a thousand
   calls, and rewriting all of them without interruption would stall all other streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from toolsim.core.errors import ApiError
from toolsim.core.events import ClientEvent
from toolsim.core.plan import Plan
from toolsim.core.report import Report
from toolsim.core.time_slice import PAUSE_SECONDS, TimeSlice
from toolsim.proxy.jobs import answer_too_large
from toolsim.proxy.options.settings import Limits
from toolsim.proxy.recorder import BodyRecorder
from toolsim.proxy.timeouts import Timeouts
from toolsim.response.answer import Estimate
from toolsim.response.retry import Retry
from toolsim.response.rewrite import EVENT_STREAM, Listener, ResponseRewriter
from toolsim.response.verbatim import VerbatimRewriter
from toolsim.wire.responses.stored import without_promise

# Maximum size, in bytes, of data that is processed without measuring the time, since measuring would cost as much as
# the work. Other tasks run between chunks anyway.
_SMALL_BYTES = 4096


class Further(Protocol):
    """An additional round, whose output replaces the end of an answer (rule 4)."""

    @property
    def is_over(self) -> bool:
        """Whether all events of the round have been consumed."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the round was canceled because its client has disconnected."""

    async def wait(self) -> None:
        """Wait until an event has arrived, but only for a limited time."""

    def take(self) -> Sequence[ClientEvent]:
        """Return the new events. The final event of the round ends the answer."""


class StreamedAnswer:
    """The streamed answer to the request that ``plan`` describes."""

    def __init__(
        self,
        plan: Plan,
        report: Report,
        *,
        limits: Limits,
        timeouts: Timeouts,
        recorder: BodyRecorder,
        listener: Listener | None = None,
        estimate: Estimate | None = None,
    ) -> None:
        self.is_stored = bool(plan.form.id)
        """Whether the answer has to be stored before its last frames are sent to the client (rule 3)."""
        rewriter = VerbatimRewriter if plan.is_verbatim else ResponseRewriter
        self._rewriter = rewriter(
            plan,
            report,
            content_type=EVENT_STREAM,
            max_event_bytes=limits.max_event_bytes,
            listener=listener,
            estimate=estimate,
        )
        self.report = report
        self.limits = limits
        self._timeouts = timeouts
        self._recorder = recorder
        self._pace = TimeSlice()
        self._received = 0
        """The number of bytes received from the backend."""
        self.cut = False
        """Whether the answer ends before the backend's answer does (rule 2)."""
        self.end = b""
        """The last frames of the answer while they are held back (rule 3), otherwise b""."""
        self.further: Further | None = None
        """The additional round whose output replaces the end of this answer (rule 4), or None if there is none."""

    @property
    def finished(self) -> bool:
        """Whether all output of the answer has been produced (rule 1)."""
        return self._rewriter.is_done

    @property
    def waits(self) -> bool:
        """Whether the answer waits for another round before it ends (rule 4)."""
        return self._rewriter.waits is not None

    @property
    def has_read_all(self) -> bool:
        """Whether the backend's answer was read to its end. If so, this answer is finished or waits (rule 4)."""
        return self._rewriter.has_read_all

    @property
    def needs_time(self) -> bool:
        """Whether the caller might have to wait for the store or for another round before the answer can end.

        If so, the caller must use ``slices`` rather than ``feed``.
        """
        return self.is_stored or self._rewriter.is_withholding

    @property
    def reason(self) -> Retry | None:
        """The reason for another round, or None if the answer does not wait for one."""
        return self._rewriter.waits

    @property
    def final(self) -> Mapping[str, Any] | None:
        """The complete answer if it is finished and has to be stored, otherwise None."""
        return self._rewriter.final if self.is_stored else None

    def feed(self, data: bytes) -> list[bytes]:
        """Convert the backend's bytes to the client's bytes. If ``data`` is b"", the input has ended."""
        chunks = [chunk for chunks in self.slices(data) for chunk in chunks or ()]
        if self.waits:  # A caller that uses ``feed`` cannot start another round.
            chunks += self.proceed()
        if self.end:  # A caller that uses ``feed`` cannot wait for the store.
            chunks += self.release(without_promise(self.end, stream=True))
        return [b"".join(chunks)] if chunks else []

    def slices(self, data: bytes) -> Iterator[list[bytes] | None]:
        """Yield the output for the backend's bytes in slices, and None whenever other tasks should run first."""
        self._note_input(data)
        if self._received > self.limits.max_answer_bytes and not self.finished:
            self.cut = True
            yield self._chunk_of(self._rewriter.fail(answer_too_large(self.limits.max_answer_bytes)))
        elif not data and self._timeouts.ended_by is not None and not self.finished:
            # The proxy, which is stopping, closed the connection. The backend has not failed.
            yield self._chunk_of(self._rewriter.fail(self._timeouts.ended_by))
        else:
            pace = self._pace if len(data) > _SMALL_BYTES else None
            for frames in in_slices(self._rewriter.steps(data), lambda: self.finished, pace):
                yield None if frames is None else self._chunk_of(frames)

    async def pause(self) -> None:
        """Let other tasks run, either between two slices or until events from another round have arrived."""
        if self.further is None:
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            await self.further.wait()

    def proceed(self) -> list[bytes]:
        """Return the additional round's new output, or the answer's original end if there is no additional round."""
        if self.further is None:
            return self._chunk_of(self._rewriter.conclude())
        events = self.further.take()
        # A missing final event is a bug, unless the round was canceled because the client has disconnected.
        if not events and self.further.is_over and not self.further.is_cancelled:
            raise RuntimeError("the additional round ended without a final event")
        return self._chunk_of(self._rewriter.proceed(events))

    def release(self, end: bytes) -> list[bytes]:
        """Return the ``end`` that was held back. Call this method after trying to store the answer."""
        self.end = b""
        return self._sent([end])

    def tick(self) -> list[bytes]:
        """Return a keep-alive if one is due, the end of the answer if the answer is overdue, or [] otherwise."""
        if self.finished:
            # The answer is complete, but the backend has not disconnected.
            self.cut = True
            return []
        # While the answer waits, the additional round has its own timers.
        if self._timeouts.is_overdue and not self.waits:
            self.cut = True
            return self._recorder.pass_on(self._rewriter.fail(self._timeouts.overdue()))
        if not self._timeouts.is_quiet:
            return []
        self._timeouts.client_served()
        return self._recorder.pass_on(self._rewriter.keepalive())

    def fail(self, error: ApiError) -> list[bytes]:
        """End the answer with an error that was not part of the backend's stream."""
        return self._recorder.pass_on(self._rewriter.fail(error))

    def follow(self, content_type: str) -> None:
        """Prepare to read a backend's answer of this content type. The answer to the client has already started."""
        self._rewriter.follow(content_type)

    def replan(self, plan: Plan) -> None:
        """Prepare to read the answer to a replacement request. The answer to the client has already started."""
        self._rewriter = self._rewriter.replanned(plan)

    def crash(self, error: ApiError) -> list[bytes] | None:
        """End the answer with an error, because toolsim failed to rewrite it.

        Return None if the final event was already written, because no error can follow it. In this case, part of the
        answer might be lost.
        """
        self.cut = True
        return None if self.finished else self._recorder.pass_on(self._rewriter.abandon(error))

    def _note_input(self, data: bytes) -> None:
        self._recorder.received.add(data)
        self._received += len(data)
        self._timeouts.backend_active()

    def _chunk_of(self, frames: list[bytes]) -> list[bytes]:
        """Return one chunk with all frames.

        If they are the last frames of an answer that has to be stored, hold them back and return no chunk.
        """
        if self.finished:
            self.cut = self.cut or self._rewriter.is_cut
            if self.final is not None:
                self.end += b"".join(frames)
                return []
        return self._sent(frames)

    def _sent(self, frames: list[bytes]) -> list[bytes]:
        """Return the frames as a single chunk, so that no frame is split."""
        if not frames:
            return []
        self._timeouts.answered()
        return self._recorder.pass_on([b"".join(frames)])


def in_slices(
    steps: Iterable[list[bytes]], is_over: Callable[[], bool], pace: TimeSlice | None
) -> Iterator[list[bytes] | None]:
    """Yield the frames that ``steps`` produces, grouped by time slice. Yield None whenever other tasks should run.

    If a step raises an exception, the frames of the earlier steps are yielded first. ``is_over`` returns true once no
    more frames will follow. If ``pace`` is None, all frames are in one slice.
    """
    frames: list[bytes] = []
    if pace is not None:
        pace.begin()
    try:
        for step in steps:
            frames += step
            if pace is not None and pace.is_due and not is_over():
                pace.restart()
                yield frames
                yield None
                frames = []
                pace.begin()
    except Exception:
        yield frames
        raise
    if pace is not None:
        pace.end()
    yield frames
