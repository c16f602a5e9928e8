"""The way of a response, from the backend's bytes to the client's::

    sse ─▶ reader ─▶ turn (sentinel ─▶ judge) ─▶ writer ─▶ sse

One way for all: a whole answer is a stream that arrives at once, on either side.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from toolsimlib.errors import ApiError
from toolsimlib.events import BackendEvent, ClientEvent, Failed
from toolsimlib.plan import Plan
from toolsimlib.report import Report
from toolsimlib.response.turn import Answer
from toolsimlib.wire.chat.reader import ChatReader
from toolsimlib.wire.chat.writer import ChatWriter
from toolsimlib.wire.errors import error_body
from toolsimlib.wire.json_codec import dump
from toolsimlib.wire.responses.reader import ResponsesReader
from toolsimlib.wire.responses.writer import ResponsesWriter
from toolsimlib.wire.sse import SSEDecoder, comment

EVENT_STREAM = "text/event-stream; charset=utf-8"
JSON = "application/json"

_STREAM_STARTS = (b"data:", b"event:", b":")


class ResponseRewriter:
    """Rewrites one successful (2xx) answer of a backend; whatever it holds, nothing is raised.

    ``content_type``: the backend's header; what is not an event stream is read as one JSON object at the end of input.
    ``done``: all that the client gets has been returned. ``cut``: done before the backend was, which may be stopped.
    For an answer that is not streamed ``status`` is its HTTP status, to be read when it is done.
    """

    def __init__(self, plan: Plan, report: Report, *, content_type: str) -> None:
        self._plan = plan
        self._report = report
        self._reader = ChatReader() if plan.backend == "chat" else ResponsesReader()
        self._writer = ChatWriter(plan) if plan.client == "chat" else ResponsesWriter(plan)
        self._answer = Answer(plan, report)
        self._decoder = SSEDecoder() if content_type.lower().startswith("text/event-stream") else None
        self._body: list[bytes] = []
        self.done = False
        self.status = 200
        self.content_type = EVENT_STREAM if plan.stream else JSON

    @property
    def cut(self) -> bool:
        """Whether the answer ended before the backend did."""
        return self._answer.cut

    def feed(self, data: bytes) -> list[bytes]:
        """Return the client's bytes for the backend's; ``b""`` is the end of input and may come more than once."""
        if self.done:
            return []
        if data and self._decoder is None:
            self._body.append(data)
            return []
        events = self._whole() if self._decoder is None else self._events(self._decoder, data)
        frames: list[bytes] = []
        for event in events:
            self._write(self._answer.feed(event), frames)
        if not data:
            self._write(self._answer.end_of_input(), frames)
        return self._returned(frames)

    def keepalive(self) -> list[bytes]:
        """Return a sign of life, if the client hears nothing because a block is being held back."""
        frames: list[bytes] = []
        if self._plan.stream and not self.done:
            self._write(self._answer.keep_alive(), frames)
        return frames

    def fail(self, error: ApiError) -> list[bytes]:
        """End the answer as failed, for a reason that lies outside of the backend's bytes."""
        if self.done:
            return []
        frames: list[bytes] = []
        self._write(self._answer.fail(error), frames)
        return self._returned(frames)

    def _events(self, decoder: SSEDecoder, data: bytes) -> Iterable[BackendEvent]:
        for event in decoder.feed(data):
            yield from self._reader.event(event)
        if not data:
            yield from self._reader.end()

    def _whole(self) -> Iterable[BackendEvent]:
        data = b"".join(self._body)
        self._body = []
        if data.lstrip().startswith(_STREAM_STARTS):
            # An event stream that its header calls something else.
            decoder = SSEDecoder()
            return [*self._events(decoder, data), *self._events(decoder, b"")]
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        if isinstance(body, dict):
            return self._reader.whole(body)
        error = ApiError("The backend's answer is not a JSON object.", code="backend_bad_answer", status=502)
        return [Failed(error)]

    def _write(self, events: list[ClientEvent], frames: list[bytes]) -> None:
        for event in events:
            frames += self._writer.write(event)

    def _returned(self, frames: list[bytes]) -> list[bytes]:
        """Return one chunk for the frames at hand, so that no frame is ever split; at the end a whole body."""
        if not self._answer.done:
            return [b"".join(frames)] if frames else []
        self.done = True
        if self._plan.stream:
            if self._plan.policy.sse_telemetry:
                frames.insert(-1, comment(f"toolsim {dump(self._report.summary())}"))
            return [b"".join(frames)]
        if self._writer.error is not None:
            self.status = self._writer.error.status
            return [error_body(self._writer.error)]
        return [dump(self._writer.body).encode()]
