"""The HTTP server on 127.0.0.1 through which the proxy reaches the runner. It answers only expected requests.

Each request names a registered job. The job is either a ``RunnerJob`` or a stream of frames, such as a background
answer.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace

from tornado.iostream import StreamClosedError

from toolsim.core.errors import FAILED, ApiError
from toolsim.core.events import FIRST_KEEPALIVE_FACTOR, ClientEvent, Ended, Failed, KeepAlive
from toolsim.core.time_slice import TimeSlice
from toolsim.rounds.local_server import LocalServer, StreamHandler
from toolsim.rounds.runner import TOKEN, Refused, RunnerJob, Stream, answer, with_keepalives
from toolsim.wire.errors import error_body, read_error
from toolsim.wire.json_codec import dump
from toolsim.wire.json_fields import loaded
from toolsim.wire.responses.stored import with_outcome
from toolsim.wire.sse import UNBUFFERED, comment


class RunnerServer:
    """Serves jobs on a port of 127.0.0.1, from ``start`` to ``stop``. ``start`` needs a running event loop.

    If nothing has been sent to a streaming client for ``keepalive`` seconds, the client receives a keep-alive.
    """

    def __init__(self, keepalive: float) -> None:
        self.keepalive = keepalive
        self.jobs: dict[str, RunnerJob | Stream] = {}
        self._listener = LocalServer()
        self.ending: asyncio.Future[ApiError]

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._listener.port

    def start(self) -> None:
        """Bind a free port. Raises OSError if no port is free."""
        self.ending = asyncio.get_running_loop().create_future()
        self._listener.start([(r"/.*", _Answers, {"server": self, "running": self._listener.running})])

    def end(self, error: ApiError) -> None:
        """End all jobs, including future jobs, by sending this error to their clients."""
        if not self.ending.done():
            self.ending.set_result(error)

    async def stop(self) -> None:
        """Reject new requests, and cancel the requests in progress."""
        await self._listener.stop()

    def admit(self, job: RunnerJob | Stream) -> str:
        """Register a job, and return a token that allows one request to start the job."""
        token = secrets.token_hex(16)
        self.jobs[token] = job
        return token

    def forget(self, token: str) -> None:
        """Discard a job whose request never arrived."""
        self.jobs.pop(token, None)


class _Answers(StreamHandler):
    def initialize(self, server: RunnerServer, running: set[asyncio.Task[None]]) -> None:
        self.server, self.running = server, running

    def set_default_headers(self) -> None:
        self.clear_header("Server")

    async def answer(self) -> None:
        job = self.server.jobs.pop(self.request.headers.get(TOKEN, ""), None)
        if job is None:
            message = "This port is internal to toolsim: send requests to toolsim's listener."
            self.refuse(ApiError(message, "invalid_request_error", "forbidden", status=403))
            return
        try:
            if isinstance(job, RunnerJob):
                seconds = self.server.keepalive
                first = seconds * FIRST_KEEPALIVE_FACTOR
                async with aclosing(with_keepalives(answer(job), seconds, self.server.ending, first=first)) as events:
                    await self._write(job, events)
                return
            pace = TimeSlice()
            async with aclosing(job()) as frames:
                async for piece in frames:
                    await self._send(piece)
                    # Other tasks have to run between the frames. Reading frames that are already available does not
                    # suspend this task, and sending them rarely does.
                    await pace.yield_to_others()
            self.finish()
        except StreamClosedError:
            return

    async def get(self) -> None:
        await self.post()

    async def _send(self, frames: bytes) -> None:
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        for name, value in UNBUFFERED.items():
            self.set_header(name, value)
        # The frames are written in one piece, because some clients cannot read partial frames.
        self.write(frames)
        await self.flush()

    async def _write(self, job: RunnerJob, events: AsyncGenerator[ClientEvent | Refused]) -> None:
        writer, stream = job.api.writer(job.form), job.form.stream
        has_started = False
        outcome: ApiError | bool = True
        async for event in self._failing(events):
            if isinstance(event, Refused):
                if not has_started:
                    self._finish(event.status, event.headers, event.body)
                    return
                error = read_error(loaded(event.body.decode("utf-8", "replace")))
                event = Failed(replace(error, status=event.status))
            if isinstance(event, KeepAlive) and not stream:
                continue
            if isinstance(event, Failed) and self.server.ending.done() and not has_started:
                # No headers have been sent, so the HTTP status can still report the error.
                self.refuse(self.server.ending.result())
                return
            frames = writer.write(event)
            if stream and job.policy.sse_telemetry and isinstance(event, Ended | Failed):
                frames.insert(-1, comment(dump(job.report.for_clients())))
            if job.store is not None and isinstance(event, Ended) and writer.body is not None:
                outcome = await job.store(writer.body)
                frames = [with_outcome(b"".join(frames), outcome)] if stream else []
                if isinstance(outcome, ApiError):
                    job.report.error = outcome.code
            if frames:
                has_started = True
                await self._send(b"".join(frames))
        json = {"content-type": "application/json"}
        if stream:
            self.finish()
        elif isinstance(outcome, ApiError):
            self._finish(outcome.status, json, error_body(outcome))
        elif writer.error is not None:
            self._finish(writer.error.status, json, writer.whole())
        else:
            self._finish(200, json, with_outcome(writer.whole(), outcome, stream=False))

    async def _failing(self, events: AsyncGenerator[ClientEvent | Refused]) -> AsyncGenerator[ClientEvent | Refused]:
        """Yield the events. If an exception occurs after the headers have been sent, the last event is an error."""
        try:
            async for event in events:
                yield event
        except Exception:
            if not self._headers_written:
                raise
            self.log_exception(*sys.exc_info())
            yield Failed(FAILED)

    def _finish(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.set_status(status)
        for name, value in headers.items():
            self.set_header(name, value)
        self.finish(body)
