"""Tests for the BFCL judge. With each method, BFCL's correct answers pass, and incorrect or missing calls fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support import bfcl_truth
from support.each import each
from toolsim.command_line import UsageError
from toolsim.eval import bfcl, bfcl_package
from toolsim.eval.bfcl_package import Decoded
from toolsim.eval.case import Case, Verdict, sample
from toolsim.eval.runtime.turn import Answer, Call, Request, Send

# These tests use all questions in BFCL's categories, which takes too long for every test run.
pytestmark = pytest.mark.slow

pytest.importorskip("bfcl_eval", reason=f"needs BFCL: {bfcl_package.INSTALL}")

CALLING = [category for category in bfcl.SINGLE_TURN if category not in bfcl.IRRELEVANCE]
METHODS = ("tools", "prompt")
type Model = Callable[[dict[str, Any], Sequence[Any]], Sequence[Decoded]]


def as_calls(decoded: Sequence[Decoded]) -> tuple[Call, ...]:
    pairs = [(name, arguments) for call in decoded for name, arguments in call.items()]
    return tuple(Call(f"c{number}", name, json.dumps(arguments)) for number, (name, arguments) in enumerate(pairs))


def as_python(decoded: Sequence[Decoded]) -> str:
    lines = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for call in decoded
        for name, arguments in call.items()
    )
    return f"[{', '.join(lines)}]"


def sender(case: Case, method: str, decoded: Sequence[Decoded]) -> Send:
    """Return a function that answers with the given calls, either as tool calls or in the text format that BFCL's
    prompt requires.
    """

    async def send(request: Request) -> Answer:
        if method == "tools":
            return Answer("" if decoded else "I cannot do that.", as_calls(decoded))
        assert case.form
        shown = case.form.write(request.messages, request.tools)
        assert shown[0]["role"] == "system"
        text, calls = case.form.read(as_python(decoded) if decoded else "I cannot do that.")
        return Answer(text, calls)

    return send


def play(case: Case, method: str, decoded: Sequence[Decoded]) -> Verdict:
    return asyncio.run(case.play(sender(case, method, decoded)))


def score(category: str, method: str, model: Model, size: int | None) -> float:
    entries, answers = bfcl_truth.load(category)
    by_id = {entry["id"]: entry for entry in entries}
    asked = sample(bfcl.cases(category), size, seed=7)
    verdicts = [play(case, method, model(by_id[case.id], answers.get(case.id, []))) for case in asked]
    return 100 * sum(verdict.ok for verdict in verdicts) / len(verdicts)


def wrongly(entry: dict[str, Any], answers: Sequence[Any]) -> list[Decoded]:
    right = bfcl_truth.right_calls(entry, answers) or [{"no_such_function": {}}]
    return [{name: {"no_such_parameter": 1} for name in call} for call in right]


def never(entry: dict[str, Any], answers: Sequence[Any]) -> list[Decoded]:
    return []


@pytest.mark.ci
@each("method", METHODS)
@each("category", CALLING)
def test_correct_answers_pass(category: str, method: str) -> None:
    """If a model always gives BFCL's correct answers, at least 98% of the cases in each category pass."""
    assert score(category, method, bfcl_truth.right_calls, None) >= 98


@each("method", METHODS)
@each("category", bfcl.SINGLE_TURN)
def test_incorrect_calls_fail(category: str, method: str) -> None:
    """If a model always uses a nonexistent argument, no case passes in any category."""
    assert score(category, method, wrongly, 20) == 0


@each("method", METHODS)
@each("category", bfcl.SINGLE_TURN)
def test_no_call_is_correct_only_for_irrelevance(category: str, method: str) -> None:
    """If a model never makes a call, all cases pass in the irrelevance categories, and no cases pass in the others."""
    assert score(category, method, never, 20) == (100 if category in bfcl.IRRELEVANCE else 0)


def test_same_seed_selects_the_same_cases() -> None:
    drawn = [[case.id for case in sample(bfcl.cases("multiple"), 10, seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_unknown_category_is_refused() -> None:
    """The error for an unknown category lists the existing categories."""
    with pytest.raises(UsageError, match="no such category: java; expected one of simple_python, multiple"):
        bfcl.cases("java")
