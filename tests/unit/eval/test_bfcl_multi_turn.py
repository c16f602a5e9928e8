"""Tests for conversations with the programs that BFCL simulates. BFCL's multi-turn checker judges the conversations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from support import bfcl_truth
from toolsim.eval import bfcl, bfcl_package
from toolsim.eval.bfcl import MAX_STEPS
from toolsim.eval.bfcl_package import Decoded
from toolsim.eval.case import Case, Verdict, sample
from toolsim.eval.runtime.turn import Answer, Call, Request, Send

pytest.importorskip("bfcl_eval", reason=f"needs BFCL: {bfcl_package.INSTALL}")

ENTRIES, ANSWERS = bfcl_truth.load("multi_turn_base")
BY_ID = {entry["id"]: entry for entry in ENTRIES}
CASES = bfcl.cases("multi_turn_base")


def step(decoded: Sequence[Decoded]) -> Answer:
    """Return an answer that contains the given calls."""
    calls = [(name, json.dumps(arguments)) for call in decoded for name, arguments in call.items()]
    return Answer("", tuple(Call(f"c{number}", name, text) for number, (name, text) in enumerate(calls)))


def scripted(answers: Iterator[Answer]) -> Send:
    async def send(request: Request) -> Answer:
        return next(answers)

    return send


def play_right(case: Case, turns: Sequence[Sequence[Decoded]]) -> Verdict:
    answers = [answer for turn in turns for answer in (step(turn), Answer("Done."))]
    return asyncio.run(case.play(scripted(iter(answers))))


@pytest.mark.ci
@pytest.mark.parametrize("size", [12, pytest.param(None, marks=pytest.mark.slow)])
def test_correct_calls_pass(size: int | None) -> None:
    """If a model makes the expected calls in each turn, at least 98% of the cases pass."""
    asked = sample(CASES, size, seed=3)
    verdicts = [play_right(case, bfcl_truth.right_turns(BY_ID[case.id], ANSWERS[case.id])) for case in asked]
    assert sum(verdict.ok for verdict in verdicts) >= 0.98 * len(asked), [str(verdict) for verdict in verdicts]


@pytest.mark.parametrize("case", sample(CASES, 5, seed=4), ids=lambda case: case.id)
def test_missing_calls_in_the_last_turn_fail(case: Case) -> None:
    """If the expected calls are missing in the last turn, the case fails, even if all earlier calls are correct."""
    turns = bfcl_truth.right_turns(BY_ID[case.id], ANSWERS[case.id])
    answers = [answer for turn in turns[:-1] for answer in (step(turn), Answer("Done."))]
    verdict = asyncio.run(case.play(scripted(iter([*answers, Answer("I am done already.")]))))
    assert (verdict.ok, verdict.label) == (False, "no_call")


def test_incorrect_state_ends_the_case() -> None:
    """If calls cause an incorrect state, the case fails in that turn, and no further turns are played."""
    case = CASES[0]
    asked = 0

    async def send(request: Request) -> Answer:
        nonlocal asked
        asked += 1
        return step([{"mkdir": {"dir_name": "elsewhere"}}]) if asked == 1 else Answer("Done.")

    verdict = asyncio.run(case.play(send))
    assert (verdict.ok, verdict.label, asked) == (False, "wrong_state", 2)


def test_model_that_never_stops_is_stopped() -> None:
    """If a model exceeds BFCL's limit of requests per turn, it is stopped, and the case fails with the label
    ``turn_limit``.
    """
    asked = 0

    async def send(request: Request) -> Answer:
        nonlocal asked
        asked += 1
        return step([{"ls": {}}])

    verdict = asyncio.run(CASES[0].play(send))
    assert (verdict.label, asked) == ("turn_limit", MAX_STEPS)


def test_outputs_are_sent_to_the_model() -> None:
    """The model receives the output of each call from the simulated program, in a tool message."""
    seen: list[dict[str, Any]] = []

    async def send(request: Request) -> Answer:
        seen[:] = request.messages
        return step([{"ls": {"a": True}}]) if len(request.messages) == 1 else Answer("Done.")

    asyncio.run(CASES[0].play(send))
    assert [message["role"] for message in seen] == ["user", "assistant", "tool"]
    assert json.loads(seen[2]["content"]) == {"current_directory_content": ["document", "archive"]}


def test_simulated_programs_are_removed_after_a_case() -> None:
    """After a case, its simulated programs are removed from the globals of the BFCL package, so that the next run
    starts with new ones.
    """
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    turns = bfcl_truth.right_turns(BY_ID[CASES[0].id], ANSWERS[CASES[0].id])
    assert [play_right(CASES[0], turns).ok for _ in range(2)] == [True, True]
    assert not [name for name in vars(multi_turn_utils) if name.endswith("_instance")]
