"""Runs every case in every cell, one model after another. An error is recorded as the result of its run."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from toolsim.eval.call_as_text import holds_call
from toolsim.eval.case import Case, Cell, Label, Run, Verdict
from toolsim.eval.methods import Methods
from toolsim.eval.profiles import Sampling
from toolsim.eval.question_run import Asking, common_prefix
from toolsim.eval.recorded import Captures, Recorded
from toolsim.eval.runtime.turn import ProviderError
from toolsim.recordings.child import StartFailed

_MAX_DETAIL = 500


@dataclass(frozen=True, slots=True)
class Job:
    """One planned run. ``sampling`` contains the request options of its cell's profile."""

    cell: Cell
    case: Case
    trial: int
    sampling: Sampling

    @property
    def key(self) -> str:
        """The key of the resulting run."""
        return run_of(self, Verdict.passed()).key


def plan(cells: Sequence[tuple[Cell, Sampling]], cases: Sequence[Case], trials: int) -> list[Job]:
    """Return all runs, ordered by model and then by case. The runs of a case follow one another.

    Therefore, even an interrupted evaluation has run the same cases with all methods, and a server's prompt cache
    affects all methods equally. A case with its own addon options is run only through toolsim, and only once.
    """
    jobs, seen = [], set()
    for model in dict.fromkeys(cell.model for cell, _ in cells):
        for trial in range(trials):
            for case in cases:
                for cell, sampling in cells:
                    if cell.model != model or (case.options and (cell.method != "toolsim" or cell.setting)):
                        continue
                    job = Job(cell, case, trial, sampling)
                    if job.key not in seen:
                        seen.add(job.key)
                        jobs.append(job)
    return jobs


Progress = Callable[[Job, Run | None], None]
"""A function that is called with None when a run starts, and with the run when it has ended."""


async def measure(
    jobs: Iterable[Job], methods: Methods, seconds: float | None, done: Progress, *, parallel: int = 1
) -> None:
    """Perform all runs, with ``parallel`` models at a time. ``seconds``: a question's timeout, or None for none."""
    by_model: dict[str, list[Job]] = {}
    for job in jobs:
        by_model.setdefault(job.cell.model, []).append(job)
    models = iter(by_model.items())

    async def work() -> None:
        for _, own in models:
            for job in own:
                done(job, None)
                done(job, await run(job, methods, seconds))

    async with asyncio.TaskGroup() as group:
        for _ in range(max(parallel, 1)):
            group.create_task(work())


async def run(job: Job, methods: Methods, seconds: float | None) -> Run:
    """Perform one run. Never raises an exception unless it is canceled."""
    captures: Captures | None = None
    asking: Asking | None = None
    started = monotonic()
    try:
        send, captures = await methods.open(job.cell, job.case, job.cell.model)
        asking = Asking(send, job.sampling, seconds)
        started = monotonic()
        verdict = await job.case.play(asking)
    except ProviderError as error:
        verdict = Verdict.failed(_label(error), f"HTTP {error.status}: {error}" if error.status else str(error))
    except StartFailed as error:
        verdict = Verdict.failed("internal_error", str(error))
    except Exception as error:  # A bug in a case must not end an evaluation that takes hours.
        place = "".join(traceback.format_exception(error)[-2:])
        verdict = Verdict.failed("internal_error", place)
    ms = (monotonic() - started - (asking.waited if asking else 0)) * 1000
    recorded = await captures.new(asking.rewritten) if captures is not None and asking is not None else []
    return run_of(job, verdict, ms, asking, recorded)


def _label(error: ProviderError) -> Label:
    if error.timed_out:
        return "timeout"
    # This is the addon's error code for an invalid call to a strict tool.
    return "schema_violation" if error.code == "invalid_tool_call" else "http_error"


def run_of(
    job: Job, verdict: Verdict, ms: float = 0, asking: Asking | None = None, recorded: Sequence[Recorded] = ()
) -> Run:
    """Return the finished run for a job."""
    steps = asking.steps if asking else []
    _join(steps, recorded)
    return Run(
        suite=job.case.suite,
        case=job.case.id,
        kind=job.case.kind,
        trial=job.trial,
        cell=job.cell,
        ok=verdict.ok,
        label=verdict.label,
        detail=verdict.detail[:_MAX_DETAIL],
        ms=round(ms, 1),
        turns=len(steps),
        input_tokens=asking.input_tokens if asking else 0,
        output_tokens=asking.output_tokens if asking else 0,
        repaired=sum(len(exchange.repairs) for exchange in recorded),
        untagged=sum(exchange.untagged for exchange in recorded),
        as_text=sum(holds_call(step["answer"]["text"], step["tools"]) for step in steps if "answer" in step),
        steps=tuple(steps),
    )


def _join(steps: list[dict[str, Any]], recorded: Sequence[Recorded]) -> None:
    """Add the recorded prompts and outputs to the steps with tools or tool outputs. Only these steps are recorded."""
    left = list(recorded)
    before: tuple[tuple[str, str], ...] = ()
    for step in steps:
        has_tools = step["tools"] or any(message["role"] == "tool" for message in step["messages"])
        if not left or not (has_tools or step["messages_before"]):
            continue
        exchange = left.pop(0)
        count = common_prefix(before, exchange.shown)
        step["shown_before"], step["shown"] = count, [list(message) for message in exchange.shown[count:]]
        step["wrote"] = exchange.wrote
        if exchange.repairs:
            step["repairs"] = list(exchange.repairs)
        before = exchange.shown
