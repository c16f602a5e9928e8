"""Runs the rounds of an answer, and merges their events into a single answer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.events import ClientEvent, Ended, Failed, KeepAlive, Opened
from toolsim.core.plan import FIND_TOOLS, AnswerForm
from toolsim.core.policy import Policy
from toolsim.core.report import Report, entry
from toolsim.core.time_slice import TimeSlice
from toolsim.response.retry import SECOND_OPINION, Retry
from toolsim.response.rewrite import ClientRecord
from toolsim.response.verdict import INVALID_CALL
from toolsim.rounds.hosted_calls import HostedCalls
from toolsim.rounds.load import Load
from toolsim.rounds.merge import Merger
from toolsim.rounds.opinion import SecondOpinion, reinstate_calls
from toolsim.rounds.round_planner import Round, RoundLimits, RoundPlanner, wants_opinion
from toolsim.wire.api import Api
from toolsim.wire.errors import error_body, read_error
from toolsim.wire.json_codec import parse_object

TOKEN = "toolsim-rounds"
"""The header that identifies a job to the runner's server.

Its value is a token that cannot be guessed and is valid for one request.
"""

Stream = Callable[[], AsyncGenerator[bytes]]
"""A function that yields the frames of an answer that the runner did not create, such as a background answer. Each item
consists of complete frames.
"""

ROUND_FAILED = "ROUND_FAILED"
"""The warning that a round after the first one has failed before it emitted any output.

The answer ends as if that round had not been started.
"""


PROVIDER_ERROR = "PROVIDER_ERROR"
"""The reason for a retry without tools after the backend has returned an error."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The only event of a round that was not answered.

    It contains the HTTP error from the backend or proxy, as the client would receive it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class RoundReport:
    """The last event of an answered round. It contains the round's ``report``."""

    report: Report


RoundEvent = ClientEvent | Retry | Refused | RoundReport
_End = Retry | Refused | Failed | Ended
"""An event that ends a round. The client does not receive it, because another round might follow."""
Ask = Callable[[Round], AsyncGenerator[RoundEvent]]
"""A function that runs one round.

The iterator that the function returns ends with ``Refused`` or ``RoundReport``. Closing the iterator stops the model.
"""


StoreAnswer = Callable[[Mapping[str, Any]], Awaitable[ApiError | bool]]
"""A function that stores an answer. It returns whether the answer was stored, or the error that replaces the answer."""


@dataclass(frozen=True, slots=True)
class RunnerJob:
    """A client's request for the runner."""

    api: Api
    body: Mapping[str, Any]
    form: AnswerForm
    policy: Policy
    ask: Ask
    """A function that runs one round."""
    bounds: RoundLimits = RoundLimits()
    report: Report = field(default_factory=Report)
    """The report of the client's own flow."""
    store: StoreAnswer | None = None
    """A function that stores the answer before the end of the answer is emitted, or None if the answer is not stored.
    """
    hosted: HostedCalls | None = None
    """The MCP tools that are run for the request, if any."""


def answer(job: RunnerJob) -> AsyncGenerator[ClientEvent | Refused]:
    """Answer a request in as many rounds as it needs, and yield the events of the answer.

    The events end with ``Ended`` or ``Failed``. If the first round was not answered, the only event is ``Refused``.
    """
    return _Answering(job).events()


async def with_keepalives[Event](
    events: AsyncGenerator[Event],
    seconds: float,
    ending: asyncio.Future[ApiError] | None = None,
    *,
    first: float | None = None,
) -> AsyncGenerator[Event | KeepAlive | Failed]:
    """Yield the ``events``, and yield a keep-alive whenever ``seconds`` have passed without an event.

    If ``first`` is given, it is the timeout for the first event, instead of ``seconds``. Once the future ``ending`` is
    done, its error is yielded as the last event. If many events arrive together, other tasks can run between them.
    """
    ahead: deque[Event] = deque()
    load = Load()
    changed, taken = asyncio.Event(), asyncio.Event()
    taken.set()
    pace = TimeSlice()

    async def follow() -> None:
        async with aclosing(events):
            async for event in events:
                ahead.append(event)
                load.add(event)
                changed.set()
                if load.is_full:
                    taken.clear()
                    await taken.wait()

    def wake(_: asyncio.Future[Any]) -> None:
        changed.set()

    following = asyncio.create_task(follow())
    following.add_done_callback(wake)
    if ending is not None:
        ending.add_done_callback(wake)
    patience = seconds if first is None else first
    try:
        while True:
            if ending is not None and ending.done():
                yield Failed(ending.result())
                return
            if ahead:
                patience = seconds
                event = ahead.popleft()
                load.remove()
                yield event
                await pace.yield_to_others()
                continue
            if not taken.is_set():
                # The producer is waiting until all of its events have been yielded, so let it run.
                taken.set()
                await asyncio.sleep(0)
                continue
            if following.done():
                following.result()
                return
            changed.clear()
            pace.end()
            try:
                async with asyncio.timeout(patience):
                    await changed.wait()
            except TimeoutError:
                patience = seconds
                yield KeepAlive()
            pace.begin()
    finally:
        if ending is not None:
            ending.remove_done_callback(wake)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


class _Answering:
    """Runs the rounds of one answer, emits their events, and chooses the next round."""

    def __init__(self, job: RunnerJob) -> None:
        self._job = job
        self._started = time.monotonic()
        self._hosted = job.hosted
        self._course: RoundPlanner
        self._opinion: SecondOpinion | None = None
        # In the XML output mode, the XML of each call follows the call as text, so text after calls must be emitted.
        in_words = job.policy.output_mode != "openai-json"
        self._merger = Merger(
            text_follows_calls=job.api.text_follows_calls or in_words, max_calls=job.policy.tool_block_max
        )
        self._record = ClientRecord(job.api, job.form, job.report)
        # Events that list the MCP tools, to be emitted once the answer has been opened.
        self._listed: list[ClientEvent] = []
        self._last: Retry | None = None  # The retry that led to the current round.

    async def events(self) -> AsyncGenerator[ClientEvent | Refused]:
        """Run the rounds, and yield the events of the answer."""
        try:
            following: Round | None = await self._first()
        except BadRequest as bad:
            yield Refused(bad.error.status, {"content-type": "application/json"}, error_body(bad.error))
            return
        while following is not None:
            round_, following = following, None
            end: _End | None = None
            async with aclosing(self._job.ask(round_)) as received:
                async for event in received:
                    match event:
                        case RoundReport(report=report):
                            self._job.report.add(report)
                            self._job.report.calls = self._merger.calls
                        case Retry() | Refused() | Failed():
                            end = event
                        case Ended() if self._is_withheld:
                            end = event
                        case _:
                            for out in self._emit(self._passed(event)):
                                yield out
            if self._opinion is not None and self._opinion.has_withheld:
                released, end = await self._weighed(self._opinion, end)
                for out in self._emit(released):
                    yield out
            match end:
                case None:
                    return
                case Retry() | Ended() if self._hosted is not None and self._hosted.has_work:
                    # Other errors in the round do not cause a retry, because the model continues from the tool outputs.
                    self._last = self._opinion = None
                    self._merger.count(end.usage)
                    async with aclosing(self._hosted.run(round_.body)) as ran:
                        async for event in ran:
                            for out in self._emit([event]):
                                yield out
                    following = self._after_tools(round_, self._hosted)
                case Retry():
                    following = self._again(round_, end)
                case Refused() | Failed():
                    following = self._without_tools(round_, end)
            if following is None:
                for conclusion in self._concluded(end):
                    yield conclusion
                return
            self._merger.next_round()
            if self._hosted is not None:
                self._hosted.next_round()

    async def _first(self) -> Round:
        """Return the first round.

        Raises BadRequest if the request's MCP tools or searches are invalid. The client then receives an HTTP error,
        because no event has been emitted yet.
        """
        job, hosted = self._job, self._hosted
        body, policy, names = job.body, job.policy, frozenset[str]()
        if hosted is not None:
            self._listed = await hosted.prepare()
            body, policy, names = hosted.body, hosted.policy, hosted.tools
        self._opinion = _opinion(job)
        if self._opinion is not None:
            # A call must not be announced before it is certain to be emitted, so its arguments are buffered.
            policy = replace(policy, stream_arguments="buffered")
        self._course = RoundPlanner(job.api, body, policy, job.bounds, names)
        return self._course.first()

    @property
    def _seconds(self) -> float:
        """The number of seconds since the answer started."""
        return time.monotonic() - self._started

    @property
    def _is_withheld(self) -> bool:
        """Whether the end of the round is withheld, because calls still have to be run, or the model still has to be
        asked about them.
        """
        has_work = self._hosted is not None and self._hosted.has_work
        return has_work or (self._opinion is not None and self._opinion.has_withheld)

    def _passed(self, event: ClientEvent) -> list[ClientEvent]:
        """Return the events to emit for one event of the round."""
        events = [event] if self._hosted is None else self._hosted.take(event)
        events = [*events, *self._listed] if isinstance(event, Opened) else [*self._listed, *events]
        self._listed = []
        return events if self._opinion is None else self._opinion.take(events)

    def _emit(self, events: Iterable[ClientEvent]) -> Iterator[ClientEvent]:
        """Merge ``events`` into the answer, and yield the events that the client receives."""
        for event in events:
            for out in self._merger.feed(event):
                self._note(out)
                if isinstance(out, Ended):
                    self._job.report.finish = out.reasons[0]
                yield out

    def _note(self, event: ClientEvent) -> None:
        self._record.take(event)
        if self._hosted is not None:
            self._hosted.emitted(event)

    async def _weighed(self, opinion: SecondOpinion, end: _End | None) -> tuple[Sequence[ClientEvent], _End | None]:
        """Ask for the second opinion, unless the round has failed. Return the withheld events to emit, and the event
        that ends the round.

        The second value is None if the events to emit already include the end of the round.
        """
        weighed = await opinion.evaluate(self._aside) if isinstance(end, Retry | Ended) else opinion.release()
        self._merger.count(weighed.usage)
        if not isinstance(end, Ended) or (self._hosted is not None and self._hosted.has_work):
            return weighed.passed, end
        if weighed.refused and not (weighed.has_calls or self._merger.has_called):
            return weighed.in_words(end)
        return [*weighed.passed, end], None

    def _aside(self, rule: str, question: str) -> Round | None:
        return self._course.side_request(rule, question, seconds=self._seconds)

    # Each of the following methods chooses the next round, or returns None if the answer ends.

    def _after_tools(self, before: Round, hosted: HostedCalls) -> Round | None:
        if self._merger.has_called or hosted.is_waiting:
            return None
        return self._course.after_calls(before, hosted.body, seconds=self._seconds, size=self._merger.size)

    def _again(self, before: Round, end: Retry) -> Round | None:
        self._last = end
        merger = self._merger
        merger.count(end.usage)
        is_opinion = end.fault.reason == SECOND_OPINION
        if is_opinion and merger.has_called:
            return None
        following = self._course.next(before, end, called=merger.has_called, seconds=self._seconds, size=merger.size)
        if following is not None and is_opinion:
            refused = entry(SECOND_OPINION, end.fault.name)
            self._job.report.retries.append(refused)
            # If the model was asked about the calls, ``end.words`` is empty and the report already lists the rejected
            # calls.
            self._job.report.dropped_calls += [refused] if end.words else []
        return following

    def _without_tools(self, before: Round, end: Refused | Failed) -> Round | None:
        if self._merger.has_emitted or _is_verdict(end):
            return None
        following = self._course.without_tools(before, _status(end), seconds=self._seconds)
        if following is not None:
            self._job.report.retries.append(PROVIDER_ERROR)
            self._job.report.error = None
        return following

    def _concluded(self, end: _End) -> Iterator[ClientEvent | Refused]:
        """Yield the events that end the answer after its last round."""
        report, merger, last = self._job.report, self._merger, self._last
        if isinstance(end, Refused | Failed):
            if last is None or merger.has_emitted or _is_no_worse(end, last):
                yield failure(end) if merger.is_opened else end
                return
            report.warnings.append(ROUND_FAILED)
            merger.rewind()
        if last is None:
            whole = merger.ended()
            report.finish = whole.reasons[0]
            self._note(whole)
            yield whole
            return
        if last.fault.reason == SECOND_OPINION:
            reinstate_calls(self._job.report)
        for otherwise in last.otherwise:
            report.error = otherwise.error.code if isinstance(otherwise, Failed) else None
            report.finish = None
            yield from self._emit([otherwise])


def _opinion(job: RunnerJob) -> SecondOpinion | None:
    """Return the second opinion for an answer, or None if the model is not asked about its calls."""
    if job.policy.second_opinion != "on" or not job.body:
        return None
    request = job.api.read(job.body)
    return SecondOpinion(request, job.policy, job.ask, job.report) if wants_opinion(request, job.policy) else None


def failure(end: Failed | Refused) -> Failed:
    """Convert the error of a round to the ``Failed`` event of an answer that has already started."""
    if isinstance(end, Failed):
        return end
    return Failed(replace(read_error(parse_object(end.body)), status=end.status))


def _status(end: Failed | Refused) -> int:
    return end.error.status if isinstance(end, Failed) else end.status


def _is_no_worse(end: Failed | Refused, last: Retry) -> bool:
    """Return whether the client should receive the error of the last round, rather than the earlier error that led to
    this round.
    """
    return last.fault.reason == FIND_TOOLS or (_is_verdict(end) and isinstance(last.otherwise[-1], Failed))


def _is_verdict(end: Failed | Refused) -> bool:
    """Return whether a round failed because the model's output is invalid."""
    return isinstance(end, Failed) and end.error.code == INVALID_CALL
