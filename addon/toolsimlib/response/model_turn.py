"""One turn of a model: the backend's bytes for one answer, as events for the client::

    bytes ─▶ sse ─▶ reader ─▶ answer (sentinel ─▶ judge) ─▶ ClientEvents

An answer that is not streamed is a stream that arrives at once: both take this path and give the same events. Nothing
here depends on the client's API, so several model turns can be written into one answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from toolsimlib.errors import ApiError
from toolsimlib.events import BackendEvent, ClientEvent, Failed, ReasoningDelta, StructuredDelta, TextDelta
from toolsimlib.plan import Plan
from toolsimlib.report import Report, entry
from toolsimlib.response.checker import BUDGET_SECONDS
from toolsimlib.response.preview import announces_early
from toolsimlib.response.retry import Retry
from toolsimlib.response.retrying import answer_for
from toolsimlib.wire.dialect import APIS
from toolsimlib.wire.json_codec import as_read, parse_object
from toolsimlib.wire.repeats import RepeatReader
from toolsimlib.wire.sse import MAX_EVENT_BYTES

# Types of unknown events that are reported: a backend may invent any number.
_MAX_UNKNOWN = 8
# Characters of text that are read in one step: up to 20 calls.
_STEP_CHARS = 1024
# Characters that take as long to read as the event around them.
_EVENT_CHARS = 32
_STREAM_STARTS = (b"data:", b"event:", b":")
_BOM = b"\xef\xbb\xbf"


class ModelTurn:
    """Reads one successful (2xx) answer of a backend; whatever it holds, nothing is raised.

    ``content_type``: the backend's header; what is not an event stream is read as one JSON object at the end of input.
    ``max_event_bytes``: a larger event of a stream is truncated, so that it is not JSON. ``check_seconds``: the time
    budget of schema checks (see ``checker``).
    """

    def __init__(
        self,
        plan: Plan,
        report: Report,
        *,
        content_type: str,
        max_event_bytes: int = MAX_EVENT_BYTES,
        check_seconds: float = BUDGET_SECONDS,
    ) -> None:
        self._report = report
        self._reader = APIS[plan.backend].reader()
        # A call that can be asked for again is held back until it is complete.
        self._reader.streams_ahead = announces_early(plan) and not plan.asks
        self._answer = answer_for(plan, report, seconds=check_seconds)
        is_stream = content_type.lower().startswith("text/event-stream")
        self._stream = RepeatReader(self._reader, max_event_bytes) if is_stream else None
        self._body: list[bytes] = []

    @property
    def done(self) -> bool:
        """Whether the last event has been returned: ``Ended`` or ``Failed``."""
        return self._answer.done

    @property
    def retry(self) -> Retry | None:
        """Why the model is to be asked once more, if it is."""
        return self._answer.retry

    @property
    def cut(self) -> bool:
        """Whether the answer ended before the backend did, so that the backend may be stopped."""
        return self._answer.cut

    def steps(self, data: bytes) -> Iterator[list[ClientEvent]]:
        """Yield the events of ``data``, in steps of at most a few milliseconds each, which must all be consumed.

        ``b""`` is the end of input and may come more than once.
        """
        if data and self._stream is None:
            self._body.append(data)
            return
        yield from self._whole() if self._stream is None else self._streamed(self._stream, data)
        if not data:
            yield self._answer.end_of_input()

    def keep_alive(self) -> list[ClientEvent]:
        """Return a keep-alive, if the client gets nothing because a block is being held back."""
        return self._answer.keep_alive()

    def fail(self, error: ApiError) -> list[ClientEvent]:
        """End the answer as failed, for a reason that lies outside the backend's bytes."""
        return self._answer.fail(error)

    def _warn_of_unknown(self) -> None:
        warnings = [entry("UNKNOWN_EVENT", kind) for kind in self._reader.unknown]
        reported = self._report.warnings
        reported += [warning for warning in warnings if warning not in reported][:_MAX_UNKNOWN]
        self._reader.unknown.clear()

    def _streamed(self, stream: RepeatReader, data: bytes) -> Iterator[list[ClientEvent]]:
        for events in stream.feed(data):
            yield from self._client_events(events)
        if not data:
            yield from self._client_events(self._reader.end())

    def _client_events(self, events: Sequence[BackendEvent]) -> Iterator[list[ClientEvent]]:
        """Take events that were read together; several short texts share a step."""
        if self._reader.unknown:
            self._warn_of_unknown()
        step: list[ClientEvent] = []
        size = 0
        for event in events:
            for part in _parts(event):
                step += self._answer.feed(part)
                size += _size(part)
                if size >= _STEP_CHARS:
                    yield step
                    step = []
                    size = 0
        yield step

    def _whole(self) -> Iterator[list[ClientEvent]]:
        data = b"".join(self._body)
        self._body = []
        if data.removeprefix(_BOM).lstrip().startswith(_STREAM_STARTS):
            # An event stream with the wrong content type.
            stream = RepeatReader(self._reader)
            yield from self._streamed(stream, data)
            yield from self._streamed(stream, b"")
        elif (body := parse_object(data, parse_float=as_read)) is not None:
            yield from self._client_events(self._reader.whole(body))
        else:
            error = ApiError("The backend's answer is not a JSON object.", code="backend_bad_answer", status=502)
            yield from self._client_events([Failed(error)])


def _size(event: BackendEvent) -> int:
    """Return how many characters of text take as long as this event."""
    return (
        len(event.text) + _EVENT_CHARS
        if isinstance(event, TextDelta | ReasoningDelta | StructuredDelta)
        else _STEP_CHARS
    )


def _parts(event: BackendEvent) -> Iterable[BackendEvent]:
    """Return an event as events that take little time each."""
    if not isinstance(event, TextDelta) or len(event.text) <= _STEP_CHARS:
        return (event,)
    starts = range(0, len(event.text), _STEP_CHARS)
    return (TextDelta(event.text[start : start + _STEP_CHARS], event.choice) for start in starts)
