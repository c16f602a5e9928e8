"""Tests for running an evaluation."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from toolsim.eval.case import Case, Cell, Label, Run, Verdict
from toolsim.eval.measure import Job, measure, plan, run, run_of
from toolsim.eval.methods import Methods
from toolsim.eval.question_run import Asking
from toolsim.eval.recorded import Captures, Recorded
from toolsim.eval.runtime.turn import Answer, Call, ProviderError, Request, Send, Tool
from toolsim.recordings.child import StartFailed

CELL = Cell("m", "default", "native", "chat")
TOOLS = (Tool("echo", "", {"type": "object"}),)
ASK = Request(({"role": "user", "content": "Hello"},), TOOLS)


class Direct(Methods):
    """Methods that query a simulated model directly. The model answers after ``seconds`` seconds, or raises
    ``problem``.
    """

    def __init__(self, problem: Exception | None = None, seconds: float = 0) -> None:
        self.problem = problem
        self.seconds = seconds

    async def open(self, cell: Cell, case: Case, user: str) -> tuple[Send, Captures | None]:
        if isinstance(self.problem, StartFailed):
            raise self.problem

        async def send(request: Request) -> Answer:
            if self.problem is not None:
                raise self.problem
            await asyncio.sleep(self.seconds)
            return Answer("Hi.", (), "stop", 4, 2)

        return send, None


async def ask_once(send: Send) -> Verdict:
    await send(ASK)
    return Verdict.passed()


def job(cell: Cell = CELL, id: str = "one", trial: int = 0) -> Job:
    return Job(cell, Case("suite", id, ask_once), trial, {})


async def test_run_contains_verdict_and_measurements() -> None:
    """A run contains the verdict, the time, and the number of turns and tokens."""
    made = await run(job(), Direct(seconds=0.05), 5)
    assert (made.ok, made.label, made.turns, made.input_tokens, made.output_tokens) == (True, None, 1, 4, 2)
    assert made.ms >= 40


@pytest.mark.parametrize(
    ("problem", "label"),
    [
        (ProviderError("wrong key", status=401), "http_error"),
        (ProviderError("gone", status=404), "http_error"),
        (ProviderError("down"), "http_error"),
        (ProviderError("late", timed_out=True), "timeout"),
        (ProviderError("bad call", status=422, code="invalid_tool_call"), "schema_violation"),
        (ValueError("a bug"), "internal_error"),
        (StartFailed("no port"), "internal_error"),
    ],
)
async def test_failures_become_labels_of_their_run(problem: Exception, label: Label) -> None:
    """If a run fails for any reason, it receives a label and a message, and the evaluation continues."""
    made = await run(job(), Direct(problem), 5)
    assert (made.ok, made.label) == (False, label)
    assert str(problem) in made.detail


async def test_models_run_in_parallel_and_each_in_order() -> None:
    """Two workers evaluate two models at the same time. The runs of a single model never overlap."""
    active: dict[str, int] = {}
    most = 0

    async def slow(send: Send) -> Verdict:
        await asyncio.sleep(0.01)
        return Verdict.passed()

    jobs = [Job(replace(CELL, model=model), Case("suite", str(n), slow), 0, {}) for model in "abc" for n in range(3)]
    seen: list[tuple[str, str]] = []

    def done(job: Job, run: Run | None) -> None:
        nonlocal most
        active[job.cell.model] = active.get(job.cell.model, 0) + (1 if run is None else -1)
        assert active[job.cell.model] in (0, 1)
        most = max(most, sum(active.values()))
        if run is not None:
            seen.append((job.cell.model, job.case.id))

    await measure(jobs, Direct(), 5, done, parallel=2)
    assert most == 2
    assert sorted(seen) == [(model, str(n)) for model in "abc" for n in range(3)]


def test_plan_interleaves_methods() -> None:
    """Each case is run with all methods before the next case. All cases are run before the next trial, and all trials
    before the next model.
    """
    cells = [
        (replace(CELL, model=model, method=method), {}) for model in ("a", "b") for method in ("toolsim", "native")
    ]
    cases = [Case("suite", "one", ask_once), Case("suite", "two", ask_once)]
    planned = [(j.cell.model, j.trial, j.case.id, j.cell.method) for j in plan(cells, cases, 2)]
    assert planned[:4] == [
        ("a", 0, "one", "toolsim"),
        ("a", 0, "one", "native"),
        ("a", 0, "two", "toolsim"),
        ("a", 0, "two", "native"),
    ]
    assert planned == sorted(planned, key=lambda job: job[:3])
    assert len({j.key for j in plan(cells, cases, 2)}) == 16


def test_case_about_options_uses_toolsim_only() -> None:
    """A case that tests options of toolsim runs only once, with the ``toolsim`` method, even if an options matrix is
    evaluated.
    """
    about = Case("guards", "dedup", ask_once, options=("toolsim_tool_block_dedup=true",))
    cells = [(Cell("m", "default", "toolsim", "chat", False, setting), {}) for setting in ("", "toolsim_repair=off")]
    cells.append((CELL, {}))
    assert [(j.cell.method, j.cell.setting) for j in plan(cells, [about], 1)] == [("toolsim", "")]


async def test_answers_with_calls_as_text_are_counted() -> None:
    """Answers whose text contains a call to an offered tool are counted, even if they also have structured calls."""
    call = '{"name": "echo", "arguments": {}}'
    answers = iter([Answer(call), Answer(call, (Call("1", "echo", "{}"),)), Answer("echo?"), Answer(call), None])

    async def send(request: Request) -> Answer:
        if (answer := next(answers)) is None:
            raise ProviderError("down", status=500)
        return answer

    asking = Asking(send, {}, 5)
    for request in (ASK, ASK, ASK, Request(ASK.messages)):
        await asking(request)
    with pytest.raises(ProviderError):
        await asking(ASK)
    assert run_of(job(), Verdict.passed(), 1, asking).as_text == 2


async def test_recordings_are_matched_with_questions() -> None:
    """Each recording is assigned to the question that caused it. Repeated parts of the prompt are stored once, and
    repairs are counted.
    """

    async def send(request: Request) -> Answer:
        return Answer("Hi.")

    asking = Asking(send, {}, 5)
    plain = Request(ASK.messages)
    for request in (plain, ASK, replace(ASK, messages=(*ASK.messages, {"role": "assistant", "content": "Hi."}))):
        await asking(request)
    shown = ("system", "catalog"), ("user", "Hello")
    recorded = [
        Recorded(shown, "first", ("TRAILING_COMMA",), untagged=1),
        Recorded((*shown, ("assistant", "Hi.")), "second"),
    ]
    made = run_of(job(), Verdict.passed(), 1, asking, recorded)
    assert (made.repaired, made.untagged, made.as_text) == (1, 1, 0)
    assert "wrote" not in made.steps[0]
    assert (made.steps[1]["wrote"], made.steps[1]["shown"]) == ("first", [["system", "catalog"], ["user", "Hello"]])
    assert (made.steps[2]["shown_before"], made.steps[2]["shown"]) == (2, [["assistant", "Hi."]])
