"""The path of a response, from the backend's bytes to the client's::

    bytes ─▶ ModelTurn ─▶ ClientEvents ─▶ writer ─▶ bytes

The writer is handed in, so that one client answer can hold more than one model turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from toolsimlib.errors import ApiError
from toolsimlib.events import ClientEvent
from toolsimlib.plan import Plan
from toolsimlib.report import Report
from toolsimlib.response.checker import BUDGET_SECONDS
from toolsimlib.response.model_turn import ModelTurn
from toolsimlib.response.reported import ClientRecord
from toolsimlib.response.retry import Retry
from toolsimlib.wire.dialect import APIS, Writer, written_error
from toolsimlib.wire.json_codec import dump
from toolsimlib.wire.sse import MAX_EVENT_BYTES, comment

Listener = Callable[[Sequence[ClientEvent], Retry | None], None]

EVENT_STREAM = "text/event-stream; charset=utf-8"
JSON = "application/json"


class ResponseRewriter:
    """Rewrites one successful (2xx) answer of a backend; whatever it holds, nothing is raised.

    ``content_type``: the backend's header. ``writer`` writes the client's answer; a new one by default.
    ``listener`` also gets the events, and with the last ones why the model is to be asked again, if it is.
    ``done``: all that the client gets has been returned. For an answer that is not streamed ``status`` is its HTTP
    status, to be read when it is done.
    """

    def __init__(
        self,
        plan: Plan,
        report: Report,
        *,
        content_type: str,
        writer: Writer | None = None,
        max_event_bytes: int = MAX_EVENT_BYTES,
        check_seconds: float = BUDGET_SECONDS,
        listener: Listener | None = None,
    ) -> None:
        self._plan = plan
        self._report = report
        self._turn = ModelTurn(
            plan, report, content_type=content_type, max_event_bytes=max_event_bytes, check_seconds=check_seconds
        )
        self._writer = writer or APIS[plan.client].writer(plan.form)
        self._record = ClientRecord(APIS[plan.client], plan.form, report)
        self._listener = listener
        self.done = False
        self.status = 200
        self.content_type = EVENT_STREAM if plan.stream else JSON

    @property
    def cut(self) -> bool:
        """Whether the answer ended before the backend did, so that the backend may be stopped."""
        return self._turn.cut

    @property
    def final(self) -> dict[str, Any] | None:
        """The whole answer as an object, once it is over."""
        return self._writer.body

    def feed(self, data: bytes) -> list[bytes]:
        """Return the client's bytes for the backend's; ``b""`` is the end of input and may come more than once."""
        chunks = [chunk for step in self.steps(data) for chunk in step]
        return [b"".join(chunks)] if chunks else []

    def steps(self, data: bytes) -> Iterator[list[bytes]]:
        """Yield what ``feed`` returns, in steps of at most a few milliseconds each, which must all be consumed."""
        if self.done:
            return
        for events in self._turn.steps(data):
            yield self._written(events)
            if self.done:
                return

    def keepalive(self) -> list[bytes]:
        """Return a keep-alive, if the client gets nothing because a block is being held back."""
        return self._written(self._turn.keep_alive()) if self._plan.stream and not self.done else []

    def fail(self, error: ApiError) -> list[bytes]:
        """End the answer as failed, for a reason that lies outside the backend's bytes."""
        return [] if self.done else self._written(self._turn.fail(error))

    def _written(self, events: list[ClientEvent]) -> list[bytes]:
        """Return whole frames; at the end of an answer that is not streamed its body."""
        frames: list[bytes] = []
        if self._listener is not None:
            self._listener(events, self._turn.retry if self._turn.done else None)
        for event in events:
            self._record.take(event)
            frames += self._writer.write(event)
        if not self._turn.done:
            return frames
        self.done = True
        if self._plan.stream:
            if self._plan.policy.sse_telemetry:
                frames.insert(-1, comment(dump(self._report.for_clients())))
            return frames
        if self._writer.error is not None:
            self.status = self._writer.error.status
            return [written_error(APIS[self._plan.client], self._writer.error)]
        return [self._writer.whole()]
