"""The runner: asks round after round, and makes one answer of them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from toolsimlib.errors import ApiError, BadRequest
from toolsimlib.events import ClientEvent, Ended, Failed, Opened
from toolsimlib.loop.course import Bounds, Course, Round, wants_opinion
from toolsimlib.loop.hosted_calls import HostedCalls
from toolsimlib.loop.merge import Merger
from toolsimlib.loop.opinion import SecondOpinion
from toolsimlib.plan import FIND_TOOLS, AnswerForm, Policy
from toolsimlib.report import Report, entry
from toolsimlib.response.again import SECOND_OPINION, AskAgain
from toolsimlib.response.notes import Notes
from toolsimlib.response.verdict import INVALID_CALL
from toolsimlib.wire.dialect import Api
from toolsimlib.wire.errors import error_body, read_error
from toolsimlib.wire.json_codec import parse_object

ROUND_FAILED = "ROUND_FAILED"
"""A warning: a further round failed before it events anything, and the answer ends as it would have without it."""


PROVIDER_ERROR = "PROVIDER_ERROR"
"""Why a round was asked again without tools."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A round that got no answer: an HTTP error of the backend or the proxy, as it would reach the client."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class RoundReport:
    """The end of a round that was answered; ``report``: what happened in it."""

    report: Report


RoundEvent = ClientEvent | AskAgain | Refused | RoundReport
Ask = Callable[[Round], AsyncGenerator[RoundEvent]]
"""Asks one round. What it yields ends with ``Refused`` or ``RoundReport``; closing it early stops the model."""


Keep = Callable[[Mapping[str, Any]], Awaitable[ApiError | bool]]
"""Keeps a whole answer; returns whether it is kept, or the error that takes its place."""


@dataclass(frozen=True, slots=True)
class Job:
    """One client's request. ``ask``: asks its rounds. ``report``: filled as they go, for the client's own flow.

    ``keep``: keeps its answer before its end is emitted, None if it is not to be kept. ``hosted``: the MCP tools that
    are run for it.
    """

    api: Api
    body: Mapping[str, Any]
    form: AnswerForm
    policy: Policy
    ask: Ask
    bounds: Bounds = Bounds()
    report: Report = field(default_factory=Report)
    keep: Keep | None = None
    hosted: HostedCalls | None = None


async def answer(job: Job) -> AsyncGenerator[ClientEvent | Refused]:
    """Answer a request, in as many rounds as it takes.

    The events end with ``Ended`` or ``Failed``; or there is one ``Refused``, if the first round got no answer.
    """
    started = time.monotonic()
    hosted, body, policy = job.hosted, job.body, job.policy
    held: list[ClientEvent] = []
    if hosted is not None:
        try:
            # Nothing is emitted before the model has begun: until then an error is an HTTP error.
            held = await hosted.prepare()
        except BadRequest as bad:
            yield Refused(bad.error.status, {"content-type": "application/json"}, error_body(bad.error))
            return
        body, policy = hosted.body, hosted.policy
    opinion = _opinion(job)
    if opinion is not None:
        # None is announced before it is known to stand.
        policy = replace(policy, stream_arguments="buffered")
    course = Course(job.api, body, policy, job.bounds, hosted.tools if hosted is not None else frozenset())
    # Calls beside their XML are events as text: without it they would be lost.
    in_words = job.policy.output_mode != "openai-json"
    merger = Merger(
        text_follows_calls=job.api.text_follows_calls or in_words,
        max_calls=job.policy.tool_block_max,
    )
    notes = Notes(job.api, job.form, job.report)

    def emit(events: Iterable[ClientEvent]) -> Iterator[ClientEvent]:
        for event in events:
            for out in merger.feed(event):
                notes.note(out)
                if isinstance(out, Ended):
                    job.report.finish = out.reasons[0]
                yield out

    round_: Round = course.first()
    last: AskAgain | None = None
    while True:
        end: AskAgain | Refused | Failed | Ended | None = None
        async with aclosing(job.ask(round_)) as received:
            async for event in received:
                match event:
                    case RoundReport():
                        job.report.add(event.report)
                        job.report.calls = merger.calls
                    case AskAgain() | Refused() | Failed():
                        end = event
                    case Ended() if (hosted and hosted.has_work) or (opinion and opinion.holds):
                        end = event
                    case _:
                        events = [event] if hosted is None else hosted.take(event)
                        events = [*events, *held] if isinstance(event, Opened) else [*held, *events]
                        held = []
                        for out in emit(events if opinion is None else opinion.take(events)):
                            yield out
        if opinion is not None and opinion.holds:
            has_work = hosted is not None and hosted.has_work
            if isinstance(end, AskAgain | Ended):
                weighed = await opinion.weigh(partial(_aside, course, started))
            else:
                weighed = opinion.release()
            merger.count(weighed.usage)
            released = weighed.passed
            if isinstance(end, Ended) and not has_work:
                if weighed.refused and not (weighed.calls or merger.called):
                    released, end = weighed.in_words(end)
                else:
                    released, end = [*released, end], None
            for out in emit(released):
                yield out
        following: Round | None = None
        seconds = time.monotonic() - started
        match end:
            case None:
                return
            case AskAgain() | Ended() if hosted is not None and hosted.has_work:
                # What else is wrong with the round is not asked again: the model goes on from the outputs.
                last = opinion = None
                merger.count(end.usage)
                async with aclosing(hosted.run(round_.body)) as ran:
                    async for event in ran:
                        for out in emit([event]):
                            yield out
                if not (merger.called or hosted.waits):
                    seconds = time.monotonic() - started
                    following = course.after_calls(round_, hosted.body, seconds=seconds, size=merger.size)
                if following is None:
                    whole = merger.ended()
                    job.report.finish = whole.reasons[0]
                    notes.note(whole)
                    yield whole
                    return
            case AskAgain():
                last = end
                merger.count(end.usage)
                following = course.next(round_, end, called=merger.called, seconds=seconds, size=merger.size)
                if following is not None and end.fault.reason == SECOND_OPINION:
                    job.report.asked_again.append(entry(SECOND_OPINION, end.fault.name))
            case Refused() | Failed() if not (merger.has_emitted or _is_verdict(end)) and (
                following := course.without_tools(round_, _status(end), seconds=seconds)
            ):
                job.report.asked_again.append(PROVIDER_ERROR)
                job.report.error = None
            case Refused() | Failed() if last is None or merger.has_emitted or _is_no_worse(end, last):
                yield failure(end) if merger.is_opened else end
                return
            case _:
                job.report.warnings.append(ROUND_FAILED)
                merger.go_back()
        if following is None:
            assert last is not None
            if opinion is not None and last.fault.reason == SECOND_OPINION:
                opinion.stand()
            for otherwise in last.otherwise:
                job.report.error = otherwise.error.code if isinstance(otherwise, Failed) else None
                job.report.finish = None
                for out in emit([otherwise]):
                    yield out
            return
        merger.next_round()
        if hosted is not None:
            hosted.next_round()
        round_ = following


def _opinion(job: Job) -> SecondOpinion | None:
    """Return who asks about the calls of an answer, None if nobody does."""
    if job.policy.second_opinion == "off" or not job.body:
        return None
    request = job.api.read(job.body)
    return SecondOpinion(request, job.policy, job.ask, job.report) if wants_opinion(request, job.policy) else None


def _aside(course: Course, started: float, rule: str, question: str) -> Round | None:
    return course.aside(rule, question, seconds=time.monotonic() - started)


def failure(end: Failed | Refused) -> Failed:
    """Return an error as one of an answer that has begun."""
    if isinstance(end, Failed):
        return end
    return Failed(replace(read_error(parse_object(end.body)), status=end.status))


def _status(end: Failed | Refused) -> int:
    return end.error.status if isinstance(end, Failed) else end.status


def _is_no_worse(end: Failed | Refused, last: AskAgain) -> bool:
    """Return whether a further round's failure tells the client no less than the failure without that round."""
    return last.fault.reason == FIND_TOOLS or (_is_verdict(end) and isinstance(last.otherwise[-1], Failed))


def _is_verdict(end: Failed | Refused) -> bool:
    """Return whether a round failed because of what the model wrote."""
    return isinstance(end, Failed) and end.error.code == INVALID_CALL
