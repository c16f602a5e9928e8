"""The runner: asks round after round, and tells one answer."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from toolsimlib.errors import ApiError
from toolsimlib.events import ClientEvent, Failed
from toolsimlib.loop.course import Bounds, Course, Round
from toolsimlib.loop.merge import Merger
from toolsimlib.plan import FIND_TOOLS, AnswerForm, Policy
from toolsimlib.report import Report
from toolsimlib.response.again import AskAgain
from toolsimlib.response.notes import Notes
from toolsimlib.response.verdict import INVALID_CALL
from toolsimlib.wire.dialect import Api

ROUND_FAILED = "ROUND_FAILED"
"""A warning: a further round failed before it said anything, and the answer ends as it would have without it."""


PROVIDER_ERROR = "PROVIDER_ERROR"
"""Why a round was asked again without tools."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A round that got no answer: an HTTP error of the backend's or of the proxy's, as it would reach the client."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Told:
    """The end of a round that was answered; ``report``: what happened in it."""

    report: Report


Heard = ClientEvent | AskAgain | Refused | Told
Ask = Callable[[Round], AsyncGenerator[Heard]]
"""Asks one round. What it yields ends with ``Refused`` or ``Told``; closing it early stops the model."""


Keep = Callable[[Mapping[str, Any]], Awaitable[ApiError | bool]]
"""Keeps a whole answer; returns whether it is kept, or the error that takes its place."""


@dataclass(frozen=True, slots=True)
class Job:
    """One client's request. ``ask``: asks its rounds. ``report``: filled as they go, for the client's own flow.

    ``keep``: keeps its answer before its end is told, None if it is not to be kept.
    """

    api: Api
    body: Mapping[str, Any]
    form: AnswerForm
    policy: Policy
    ask: Ask
    bounds: Bounds = Bounds()
    report: Report = field(default_factory=Report)
    keep: Keep | None = None


async def answer(job: Job) -> AsyncGenerator[ClientEvent | Refused]:
    """Answer a request, in as many rounds as it takes.

    What is told ends with ``Ended`` or ``Failed``; or it is one ``Refused``, if the first round got no answer.
    """
    course = Course(job.api, job.body, job.policy, job.bounds)
    # Calls beside their XML are said as text: without it they would be lost.
    in_words = job.policy.output_mode != "openai-json"
    merger = Merger(
        text_follows_calls=job.api.text_follows_calls or in_words,
        max_calls=job.policy.tool_block_max,
    )
    notes = Notes(job.api, job.form, job.report)
    started = time.monotonic()
    round_: Round = course.first()
    last: AskAgain | None = None
    while True:
        end: AskAgain | Refused | Failed | None = None
        async with aclosing(job.ask(round_)) as heard:
            async for event in heard:
                match event:
                    case Told():
                        job.report.add(event.report)
                        job.report.calls = merger.calls
                    case AskAgain() | Refused() | Failed():
                        end = event
                    case _:
                        for told in merger.feed(event):
                            notes.note(told)
                            yield told
        following: Round | None = None
        match end:
            case None:
                return
            case AskAgain():
                last = end
                merger.count(end.usage)
                seconds = time.monotonic() - started
                following = course.next(round_, end, called=merger.called, seconds=seconds, size=merger.size)
            case _ if not (merger.has_told or _is_verdict(end)) and (
                following := course.without_tools(round_, _status(end), seconds=time.monotonic() - started)
            ):
                job.report.asked_again.append(PROVIDER_ERROR)
                job.report.error = None
            case _ if last is None or merger.has_told or _is_no_worse(end, last):
                yield end
                return
            case _:
                job.report.warnings.append(ROUND_FAILED)
                merger.go_back()
        if following is None:
            assert last is not None
            for otherwise in last.otherwise:
                job.report.error = otherwise.error.code if isinstance(otherwise, Failed) else None
                for told in merger.feed(otherwise):
                    notes.note(told)
                    yield told
            return
        merger.next_round()
        round_ = following


def _status(end: Failed | Refused) -> int:
    return end.error.status if isinstance(end, Failed) else end.status


def _is_no_worse(end: Failed | Refused, last: AskAgain) -> bool:
    """Return whether the client may as well hear how a further round failed as that it would have failed without it."""
    return last.fault.reason == FIND_TOOLS or (_is_verdict(end) and isinstance(last.otherwise[-1], Failed))


def _is_verdict(end: Failed | Refused) -> bool:
    """Return whether a round failed because of what the model wrote."""
    return isinstance(end, Failed) and end.error.code == INVALID_CALL
