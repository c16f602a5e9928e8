"""The response path, from the backend's bytes to the client's::

    bytes ─▶ sse ─▶ reader ─▶ answer ─▶ ClientEvents ─▶ writer ─▶ bytes

The stages before the client events do not depend on the client's API. A non-streamed answer is processed as a stream
that arrives in one piece, so streamed and non-streamed answers take the same path and produce the same events.

The answer waits at its end if it consists only of a call to an undeclared tool (``faults``), or is not the JSON that
the client requests (``json_answer``). The caller then either retries the model and passes the events of the retry to
``proceed``, or calls ``conclude`` to end the answer without a retry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from toolsim.core.errors import ApiError
from toolsim.core.events import (
    BackendEvent,
    CallEnded,
    CallStarted,
    ClientEvent,
    Ended,
    Failed,
    KeepAlive,
    Opened,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from toolsim.core.plan import AnswerForm, Plan
from toolsim.core.report import Report, entry
from toolsim.response.answer import Answer, Estimate
from toolsim.response.answer_format import AnswerFormat
from toolsim.response.checker import BUDGET_SECONDS, SchemaChecker
from toolsim.response.retry import SECOND_OPINION, Retry, retry_error
from toolsim.response.retrying_choice import RetryingAnswer
from toolsim.response.verdict import ANSWER_MISMATCH
from toolsim.wire.api import Api, Writer
from toolsim.wire.apis import APIS
from toolsim.wire.frame_template import RepeatReader
from toolsim.wire.json_codec import TOO_DEEP, as_read, dump, parse_object, too_deep
from toolsim.wire.sse import MAX_EVENT_BYTES, comment

if TYPE_CHECKING:
    from toolsim.response.faults import UndeclaredCall
    from toolsim.response.json_answer import JsonAnswer

Listener = Callable[[Sequence[ClientEvent], Retry | None], None]

EVENT_STREAM = "text/event-stream; charset=utf-8"
JSON = "application/json"

# Maximum number of unknown event types that are reported, because a backend can invent any number.
_MAX_UNKNOWN = 8
# Maximum number of characters that are processed in one step. They can contain up to 20 calls.
_STEP_CHARS = 1024
_STREAM_STARTS = (b"data:", b"event:", b":")
_BOM = b"\xef\xbb\xbf"
# Possible first characters of a call to an undeclared tool, or of a list or fence with such calls.
_CALL_STARTS = ("{", "[", "`", "<")
# Faults for which calls need not be held back, because a retry does not affect how calls are emitted.
_IN_WORDS = frozenset({SECOND_OPINION})


class ResponseRewriter:
    """Rewrites one successful (2xx) response of a backend. Invalid content never raises an exception.

    ``content_type``: the Content-Type header of the backend's response. Unless it is an event stream, the response is
    read as one JSON object when it is complete. ``writer``: writes the client's answer; a new writer by default.
    ``max_event_bytes``: maximum size of an event in a stream, in bytes. Larger events are truncated, which makes them
    invalid JSON. ``check_seconds``: the time budget for schema checks, in seconds (see ``checker``). ``estimate``: see
    ``Answer``. ``listener``: called with the events for the client and, at the end, with the retry, if any. ``status``:
    the HTTP status of a non-streamed answer, available when the answer is done.
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
        estimate: Estimate | None = None,
    ) -> None:
        self._plan = plan
        self._report = report
        self._estimate = estimate
        self._max_event_bytes = max_event_bytes
        self._reader = APIS[plan.backend].reader()
        self._reader.offered = {name for tool in plan.tools for name in (tool.name, tool.wire_name)}
        # A call that might lead to a retry is held back until it is complete.
        self._reader.streams_ahead = plan.announces_early and plan.retries_allowed <= _IN_WORDS
        self._answer = answer_for(plan, report, seconds=check_seconds, estimate=None if plan.is_verbatim else estimate)
        is_stream = content_type.lower().startswith("text/event-stream")
        self._stream = RepeatReader(self._reader, max_event_bytes) if is_stream else None
        self._body: list[bytes] = []
        self._may_invent = plan.may_invent  # Whether the answer may still consist only of a call to an undeclared tool.
        self._invented: UndeclaredCall | None = None  # Holds back a call to an undeclared tool.
        self._json: JsonAnswer | None = None  # Checks an answer that must be JSON. None for other answers.
        if plan.json_only and plan.answer_format is not None:
            self._json = _json_answer(plan, plan.answer_format, report, check_seconds)
        self._is_abandoned = False
        self.waits: Retry | None = None
        """The retry that the caller can request, or None. While it is set, the answer waits for ``proceed`` or
        ``conclude``.
        """
        self._writer = writer or APIS[plan.client].writer(plan.form)
        self._record = ClientRecord(APIS[plan.client], plan.form, report)
        self._listener = listener
        self.status = 200
        self.content_type = EVENT_STREAM if plan.stream else JSON

    @property
    def is_done(self) -> bool:
        """Whether all output for the client has been returned."""
        return self.has_read_all and self.waits is None

    @property
    def has_read_all(self) -> bool:
        """Whether further data from the backend can be ignored, because the answer is complete or waits for a retry."""
        return self._is_abandoned or self._answer.is_done

    @property
    def is_withholding(self) -> bool:
        """Whether text is held back because the model may have to be retried."""
        is_unsettled = self._json is not None and self._plan.may_retry_json and not self._json.is_over
        return is_unsettled or (self._invented is not None and self._invented.is_holding)

    @property
    def is_cut(self) -> bool:
        """Whether the answer ended before the backend had sent everything. If so, the backend can be stopped."""
        return self._answer.is_cut

    @property
    def is_as_demanded(self) -> bool:
        """Whether the answer is the requested JSON, and nothing has been removed from it. True if JSON was not
        requested.
        """
        return self._json is None or self._json.is_right

    @property
    def final(self) -> dict[str, Any] | None:
        """The complete answer as an object, or None before its end."""
        return self._writer.body

    def feed(self, data: bytes) -> list[bytes]:
        """Convert the backend's bytes to the client's bytes. ``b""`` marks the end of input, and can be passed
        repeatedly.
        """
        chunks = [chunk for step in self.steps(data) for chunk in step]
        if self.waits is not None:  # This method is for callers that do not retry the model.
            chunks += self.conclude()
        return [b"".join(chunks)] if chunks else []

    def steps(self, data: bytes) -> Iterator[list[bytes]]:
        """Yield the output of ``feed`` in steps that take at most a few milliseconds each. The caller must consume all
        steps.
        """
        if self.has_read_all:
            return
        for events in self.events(data):
            yield self._written(events)
            if self._answer.is_done:
                return

    def proceed(self, events: Sequence[ClientEvent]) -> list[bytes]:
        """Write the events of the retry to an answer that waits for one. The last event must be ``Ended`` or
        ``Failed``.
        """
        if self.waits is not None and events and isinstance(events[-1], Ended | Failed):
            self.waits = None
        return self._written(events)

    def conclude(self) -> list[bytes]:
        """End an answer that waits for a retry, because the model will not be retried."""
        assert self.waits is not None
        *text, end = self.waits.otherwise
        if isinstance(end, Failed):
            self._note_failure(end)
        else:
            assert isinstance(end, Ended)
            end = replace(end, usage=self.waits.usage)
        return self.proceed([*text, end])

    def keepalive(self) -> list[bytes]:
        """Return a keep-alive message if the answer is an unfinished stream.

        The stream is silent while a model reads a long prompt, and also while toolsim holds back a call.
        """
        return self._written([KeepAlive()]) if self._plan.stream and not self.is_done else []

    def fail(self, error: ApiError) -> list[bytes]:
        """End the answer with an error that the backend's data did not cause."""
        if self.waits is None:
            return [] if self.is_done else self._written(self._answer.fail(error))
        self._report.error = error.code or error.type
        return self.proceed([Failed(error)])

    def abandon(self, error: ApiError) -> list[bytes]:
        """End the answer as failed after an exception. Held-back text is lost."""
        self._is_abandoned, self.waits = True, None
        self._report.error = error.code or error.type
        if self._listener is not None:
            self._listener([Failed(error)], None)
        return self._writer.write(Failed(error))

    # -- answers that start before the backend's headers arrive

    def follow(self, content_type: str) -> None:
        """Set the content type of the backend's response. This must be called before ``feed``."""
        if not content_type.lower().startswith("text/event-stream"):
            self._stream = None

    def replanned(self, plan: Plan) -> ResponseRewriter:
        """Return a rewriter for the answer to another request. The new rewriter continues the output to the client."""
        return ResponseRewriter(
            plan,
            self._report,
            content_type=EVENT_STREAM,
            writer=self._writer,
            max_event_bytes=self._max_event_bytes,
            listener=self._listener,
            estimate=self._estimate,
        )

    # -- from the backend's bytes to events for the client

    def events(self, data: bytes) -> Iterator[list[ClientEvent]]:
        """Convert the backend's ``data`` to events for the client. Yields one list per step (see ``steps``)."""
        if data and self._stream is None:
            self._body.append(data)
            return
        if self._stream is None:
            yield from self._whole()
        else:
            for events in self._stream.feed(data):
                yield from self._client_events(events)
        if not data:
            yield from self._client_events(self._reader.end())
            yield self._answer.end_of_input()

    def _warn_of_unknown(self) -> None:
        warnings = [entry("UNKNOWN_EVENT", kind) for kind in self._reader.unknown]
        reported = self._report.warnings
        reported += [warning for warning in warnings if warning not in reported][:_MAX_UNKNOWN]
        self._reader.unknown.clear()

    def _client_events(self, events: Sequence[BackendEvent]) -> Iterator[list[ClientEvent]]:
        if self._reader.unknown:
            self._warn_of_unknown()
        if not events:
            yield []  # Reading data takes time even if it contains no events.
        for event in events:
            if isinstance(event, TextDelta) and len(event.text) > _STEP_CHARS:
                for start in range(0, len(event.text), _STEP_CHARS):
                    yield self._answer.feed(TextDelta(event.text[start : start + _STEP_CHARS], event.choice))
            else:
                yield self._answer.feed(event)

    def _whole(self) -> Iterator[list[ClientEvent]]:
        data = b"".join(self._body)
        self._body = []
        if data.removeprefix(_BOM).lstrip().startswith(_STREAM_STARTS):
            # The data is an event stream, although the Content-Type header says otherwise.
            stream = RepeatReader(self._reader)
            for events in chain(stream.feed(data), stream.feed(b"")):
                yield from self._client_events(events)
        elif (body := parse_object(data, parse_float=as_read)) is not None:
            yield from self._client_events(self._reader.whole(body))
        else:
            problem = TOO_DEEP if too_deep(data) else "It is not a JSON object"
            error = ApiError(f"The backend's answer cannot be read. {problem}.", code="backend_bad_answer", status=502)
            yield from self._client_events([Failed(error)])

    # -- from events for the client to bytes

    def _checked(self, events: Sequence[ClientEvent]) -> Sequence[ClientEvent]:
        """Process events of an answer that may consist only of a call to an undeclared tool. Return the events that are
        not held back.
        """
        if self._invented is None:
            for event in events:
                if isinstance(event, Opened | KeepAlive | ReasoningDelta):
                    continue
                start = event.text.lstrip()[:1] if isinstance(event, TextDelta) else "?"
                if start:
                    self._may_invent = start in _CALL_STARTS
                    break
            else:
                return events
            if not self._may_invent:
                return events
            # Imported on demand, because most answers never need this module.
            from toolsim.response.faults import UndeclaredCall

            self._invented = UndeclaredCall(self._answer.declares)
        passed = self._invented.take(events)
        self._may_invent = not self._invented.is_over
        if (retry := self._invented.retry) is None:
            return passed
        if SECOND_OPINION in self._plan.retries_allowed:
            self._answer.retry = retry
            return [*passed, Failed(retry_error(retry.fault))]
        self.waits = retry
        return passed

    def _as_demanded(self, json: JsonAnswer, events: Sequence[ClientEvent]) -> Sequence[ClientEvent]:
        """Process events of an answer that must be JSON. Return the events that are not held back."""
        passed = json.take(events)
        if (retry := json.retry) is None:
            return passed
        if ANSWER_MISMATCH in self._plan.retries_allowed:
            self._answer.retry = retry
            self._report.retries.append(entry(retry.fault.reason))
            return [*passed, Failed(retry_error(retry.fault))]
        if self._plan.may_retry_json:
            self.waits = retry
            return passed
        self._note_failure(retry.otherwise[-1])
        return [*passed, *retry.otherwise]

    def _note_failure(self, end: ClientEvent) -> None:
        """Record that the answer is not the requested JSON, and that the model was not retried."""
        if isinstance(end, Failed):
            self._report.warnings.append(ANSWER_MISMATCH)
            self._report.error = end.error.code

    def _written(self, events: Sequence[ClientEvent]) -> list[bytes]:
        """Convert events to frames. At the end of a non-streamed answer, return its body instead."""
        if self._may_invent:
            events = self._checked(events)
        if self._json is not None and not self._json.is_over:
            events = self._as_demanded(self._json, events)
        frames: list[bytes] = []
        if self._listener is not None:
            self._listener(events, self._answer.retry if self._answer.is_done else None)
        for event in events:
            self._record.take(event)
            frames += self._writer.write(event)
        if not self._answer.is_done or self.waits is not None:
            return frames
        if self._plan.stream:
            if self._plan.policy.sse_telemetry:
                frames.insert(-1, comment(dump(self._report.for_clients())))
            return frames
        if self._writer.error is not None:
            self.status = self._writer.error.status
        return [self._writer.whole()]


def _json_answer(plan: Plan, demanded: Mapping[str, Any], report: Report, seconds: float) -> JsonAnswer:
    # Imported on demand, because few answers must be JSON.
    from toolsim.response.json_answer import JsonAnswer

    checker = SchemaChecker(lambda code, _: report.warnings.append(entry(code, "answer")), seconds=seconds)
    return JsonAnswer(AnswerFormat(demanded, checker), report, trusts="format" in plan.attempts)


def answer_for(
    plan: Plan, report: Report, *, seconds: float = BUDGET_SECONDS, estimate: Estimate | None = None
) -> Answer:
    """Return a new answer for a plan. ``seconds``: the time budget of ``Judge``; ``estimate``: see ``Answer``."""
    return (Answer if plan.retries_allowed <= _IN_WORDS else RetryingAnswer)(
        plan, report, seconds=seconds, estimate=estimate
    )


class ClientRecord:
    """Records an answer's token counts, and the IDs of its calls, which clients send back in later requests.

    ``api``: the client's API, which determines the IDs.
    """

    def __init__(self, api: Api, form: AnswerForm, report: Report) -> None:
        self._api = api
        self._form = form
        self._report = report
        # The IDs of the calls that have not ended yet, by the index of the choice.
        self._open_calls: dict[int, str] = {}

    def take(self, event: ClientEvent) -> None:
        """Record the data of an event that the client receives."""
        match event:
            case CallStarted() if not self._form.legacy_functions:
                self._open_calls[event.choice] = self._api.call_id(event.kind, event.number)
            case CallEnded(status="completed") if event.choice in self._open_calls:
                self._report.tool_call_ids.append(self._open_calls.pop(event.choice))
            case Ended(usage=usage) if usage is not None:
                self._report.tokens = tokens_of(usage)
                self._report.usage_estimated = usage.estimated


def tokens_of(usage: Usage | None) -> dict[str, int]:
    """Return the token counts as a dict with the names that reports use."""
    counts = asdict(usage).items() if usage is not None else ()
    return {name.removesuffix("_tokens"): count for name, count in counts if name.endswith("_tokens")}
