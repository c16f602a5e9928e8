"""Generates this proxy's background answers, each in a separate task."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from toolsim.background.background_store import (
    FOLLOW_SECONDS,
    PATIENCE,
    RENEW_SECONDS,
    RETRY_SECONDS,
    BackgroundStore,
    Ending,
    Lease,
)
from toolsim.background.event_log import EventLog
from toolsim.background.frames import ENDED
from toolsim.core.errors import ApiError
from toolsim.core.events import Failed, Opened
from toolsim.core.failures import FAILURES
from toolsim.proxy.background import Finished
from toolsim.proxy.reporting.metrics import Family
from toolsim.proxy.response_store import LOST
from toolsim.proxy.user_limits import UserTurn
from toolsim.rounds.runner import Refused, RunnerJob, answer, failure, with_keepalives
from toolsim.stores.record import RecordTooLarge, StoreError
from toolsim.wire.json_codec import dump
from toolsim.wire.responses.background import STOPPED, value_of
from toolsim.wire.responses.shapes import failed
from toolsim.wire.responses.stored import as_failed, output_names
from toolsim.wire.responses.writer import ResponsesWriter

_UNFINISHED = ApiError("The backend's answer ended unexpectedly.", code="backend_truncated", status=502)
_TOO_LARGE = ApiError("The answer is too large to store.", code="server_error", status=502)
_BUG = ApiError("toolsim failed to generate the answer.", code="internal_error")
STATUSES = ("completed", "incomplete", "failed", "cancelled")


@dataclass(slots=True)
class BackgroundRun:
    """A background answer in progress."""

    job: RunnerJob
    lease: Lease
    writer: ResponsesWriter
    log: EventLog | None
    own: bytes
    """The items in the request itself, as a JSON array."""
    names: tuple[str, ...]
    """The IDs of the items in the request itself."""
    parent: str = ""
    conversation: str = ""
    """The conversation to which the request's items and the output are added, or "" if there is none."""
    turn: UserTurn | None = None
    """The user's turn, which counts toward the user's limits, or None if the user has no limits."""
    why: ApiError | None = None
    """The reason why the answer is ended early, or None if it is not."""
    end: list[bytes] = field(default_factory=list)
    """The final frames of the answer, which are published only after the answer has been stored."""
    failed: ApiError | None = None
    """The error that the final frames report, or None if they report none."""
    task: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    started: float = field(default_factory=time.monotonic)

    def publish(self, frames: Sequence[bytes]) -> None:
        """Send frames to the followers of this answer."""
        if self.log is not None:
            self.log.add(frames)

    def fail(self, error: ApiError) -> None:
        """Replace the final frames of the answer with frames that report ``error``."""
        self.end = [as_failed(b"".join(self.end), error)]
        self.failed = error

    def end_turn(self) -> None:
        """End the user's turn, if limits apply to the user."""
        if self.turn is not None:
            self.turn.end()

    def ending(self, response: Mapping[str, Any]) -> Ending:
        """Return the data to store when the answer ends with this ``response``."""
        names, stream = output_names(response), self.log is not None
        value = value_of(dump(response).encode(), self.own, stream=stream)
        events = self.log.value(self.end) if self.log is not None else b""
        conversation = self.conversation if names is not None else ""
        all_names = (*self.names, *(names or ()))
        return Ending(value, self.parent, all_names, events, conversation, self.own, response.get("output"))


class Runs:
    """Starts, finds and ends background answers. ``keepalive`` is the addon's keepalive interval in seconds."""

    def __init__(self, background_store: BackgroundStore, keepalive: float, finished: Finished) -> None:
        self._background_store = background_store
        self._keepalive = keepalive
        self._finished = finished
        self._runs: dict[str, BackgroundRun] = {}
        self._ended: Counter[str] = Counter()

    def partitions(self) -> list[str]:
        """Return the partition of each answer in progress."""
        return [run.lease.partition for run in self._runs.values()]

    def __len__(self) -> int:
        return len(self._runs)

    def families(self) -> list[Family]:
        """Return the metrics of background answers."""
        running = Family("background_answers", "Background answers in progress.", "gauge")
        running.add({}, len(self._runs))
        ended = Family("background_answers_total", "Finished background answers, by outcome.")
        for status in STATUSES:
            ended.add({"status": status}, self._ended[status])
        return [running, ended]

    def find(self, partition: str, id: str) -> BackgroundRun | None:
        """Return the answer with this ID, or None if this proxy is not generating it."""
        run = self._runs.get(id)
        return run if run is not None and run.lease.partition == partition else None

    def start(self, run: BackgroundRun) -> None:
        """Start the task that generates an answer. The answer's record must already be stored."""
        self._runs[run.lease.id] = run
        run.task = asyncio.create_task(self._run(run))

    async def end(self, run: BackgroundRun, why: ApiError) -> None:
        """End an answer early, and wait until the model has stopped."""
        if run.task is not None and not run.task.done():
            run.why = run.why or why
            run.task.cancel()
            await asyncio.wait([run.task])
        # A task that was canceled before it started cannot remove its own entry.
        self._runs.pop(run.lease.id, None)
        run.end_turn()

    async def stop(self) -> None:
        """End all answers as failed, because the proxy is shutting down."""
        await asyncio.gather(*(self.end(run, STOPPED) for run in list(self._runs.values())))

    async def _run(self, run: BackgroundRun) -> None:
        renewing = asyncio.create_task(self._renew(run))
        try:
            await self._answer(run)
            renewing.cancel()
            await asyncio.wait([renewing])
            await self._store(run)
        except asyncio.CancelledError:
            renewing.cancel()
            await self._cut(run, run.why or STOPPED)
        finally:
            run.publish(run.end)
            if run.log is not None:
                run.log.end()
            self._runs.pop(run.lease.id, None)
            run.end_turn()
            self._note(run)

    async def _answer(self, run: BackgroundRun) -> None:
        """Run the model and publish the frames of its answer.

        The final frames are stored in ``run.end``, because they must not be published before the answer has been
        stored.
        """
        error = _UNFINISHED
        try:
            async with aclosing(with_keepalives(answer(run.job), self._keepalive)) as events:
                async for event in events:
                    if isinstance(event, Opened):
                        run.lease.state = "in_progress"
                        run.changed.set()
                    frames = run.writer.write(failure(event) if isinstance(event, Refused) else event)
                    if run.writer.body is not None:
                        run.end = frames
                        return
                    run.publish(frames)
        except Exception as problem:
            FAILURES.report("generate an answer", problem)
            error = _BUG
        run.end = run.writer.write(Failed(error))

    async def _store(self, run: BackgroundRun) -> None:
        """Store a finished answer. The final frames are published afterwards."""
        assert run.writer.body is not None
        ending = run.ending(run.writer.body)
        for _ in range(PATIENCE):
            try:
                match await self._background_store.end(run.lease, ending):
                    case True:
                        await self._background_store.clean_up(run.lease)
                    case False:
                        run.fail(ENDED)
                        await self._store_events(run)
                    case ApiError() as lost:
                        run.fail(lost)
                        ending = run.ending(failed(run.writer.body, lost))
                        continue
                return
            except RecordTooLarge:
                run.fail(_TOO_LARGE)
                ending = replace(run.ending(failed(run.writer.body, _TOO_LARGE) | {"output": []}), events=b"")
                await asyncio.sleep(RETRY_SECONDS)
            except StoreError:
                await asyncio.sleep(RETRY_SECONDS)
        run.fail(run.failed or LOST)

    async def _cut(self, run: BackgroundRun, why: ApiError) -> None:
        """End an answer early.

        If the proxy is shutting down, the answer is also stored, either complete or as failed.
        """
        if run.writer.body is None:
            run.end = run.writer.write(Failed(why))
            run.failed = why
        elif why is not STOPPED:
            run.fail(why)
        with suppress(StoreError):
            if why is STOPPED and run.writer.body is not None:
                await self._background_store.end(run.lease, run.ending(run.writer.body))
            elif why is not STOPPED:
                await self._store_events(run)

    async def _store_events(self, run: BackgroundRun) -> None:
        if run.log is not None:
            await self._background_store.store_events(run.lease, run.log.value(run.end))

    async def _renew(self, run: BackgroundRun) -> None:
        """Renew the lease until it is lost. If another proxy has requested the events, also store new events."""
        stored, is_wanted = -1, False
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(run.changed.wait(), FOLLOW_SECONDS if is_wanted else RENEW_SECONDS)
            run.changed.clear()
            try:
                events, log = b"", run.log
                if log is not None and (
                    is_wanted := is_wanted or await self._background_store.events_requested(run.lease)
                ):
                    stored, events = log.last, log.value() if log.last > stored else b""
                is_held = await self._background_store.renew(run.lease, events)
            except StoreError:
                stored = -1
                continue
            if not is_held and run.task is not None:
                run.why = run.why or ENDED
                run.task.cancel()
                return

    def _note(self, run: BackgroundRun) -> None:
        """Count and log a finished answer."""
        report, body = run.job.report, run.writer.body or {}
        error = run.failed or run.writer.error
        was_ended = error is not None and (error.code or "").startswith("response_")
        self._ended["cancelled" if was_ended else "failed" if error else str(body.get("status"))] += 1
        if error is not None:
            report.error = error.code or error.type
        status = None if was_ended else error.status if error else 200
        self._finished(report, status, time.monotonic() - run.started)
