"""The terms of an evaluation."""

from __future__ import annotations

import json

from toolsim.eval.case import Case, Cell, Run, Verdict, sample
from toolsim.eval.runtime.turn import Send


async def play(send: Send) -> Verdict:
    return Verdict.passed()


CASES = [Case("bfcl:multiple", f"multiple_{number}", play) for number in range(200)]


def test_the_same_seed_gives_the_same_cases() -> None:
    """A sample depends on seed, suite and size alone, keeps the suite's order and repeats nothing."""
    once, again = sample(CASES, 50, 7), sample(CASES, 50, 7)
    assert once == again
    assert len({case.id for case in once}) == 50
    assert once == sorted(once, key=CASES.index)
    assert once != sample(CASES, 50, 8)


def test_a_sample_that_is_not_smaller_is_the_suite() -> None:
    """None and a size beyond the suite's mean all cases."""
    assert sample(CASES, None, 1) == CASES
    assert sample(CASES, 999, 1) == CASES
    assert sample([], 3, 1) == []


def test_a_run_survives_its_file() -> None:
    """A run that was written as JSON and read back is the same run, under the same key."""
    cell = Cell("qwen", "default", "toolsim", "chat", True, "toolsim_manifest=hermes")
    step = {"text": "Done.", "calls": []}
    run = Run("scenarios", "happy_path", "tools", 0, cell, False, "no_call", "…", 12.5, 2, 10, 5, 1, 1, 1, (step,))
    assert Run.from_dict(json.loads(json.dumps(run.as_dict()))) == run
    assert run.key == "scenarios|happy_path|qwen|default|toolsim|chat stream|toolsim_manifest=hermes|0"
