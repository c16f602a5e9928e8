"""Tests for evaluation cases, samples of cases, and runs."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from toolsim.eval import suites
from toolsim.eval.case import Case, Cell, Run, Verdict, sample, tools_of
from toolsim.eval.runtime.turn import Answer, ProviderError, Request, Send, Tool


async def play(send: Send) -> Verdict:
    return Verdict.passed()


CASES = [Case("bfcl:multiple", f"multiple_{number}", play) for number in range(200)]


def test_same_seed_selects_the_same_cases() -> None:
    """A sample depends only on the seed, the suite and the size. Its cases are in the suite's order, without
    duplicates.
    """
    once, again = sample(CASES, 50, 7), sample(CASES, 50, 7)
    assert once == again
    assert len({case.id for case in once}) == 50
    assert once == sorted(once, key=CASES.index)
    assert once != sample(CASES, 50, 8)


def test_large_sample_is_the_entire_suite() -> None:
    """If no size is given, or the size is larger than the suite, the sample contains all cases."""
    assert sample(CASES, None, 1) == CASES
    assert sample(CASES, 999, 1) == CASES
    assert sample([], 3, 1) == []


@pytest.mark.parametrize("name", ["scenarios", "questions", "unseen", "which_output"])
async def test_tools_of_a_case_are_known_without_a_model(name: str) -> None:
    """``tools_of`` returns the tools of a case's first question without querying a model. This also works for a case
    that catches the exception with which ``tools_of`` stops it.
    """

    async def careful(send: Send) -> Verdict:
        try:
            await send(Request((), (Tool("f", "", {}),)))
        except Exception:
            return Verdict.passed()
        raise AssertionError("the case went on")

    assert await tools_of(Case("s", "id", careful)) == {"f"}
    assert await tools_of(CASES[0]) == frozenset()
    for case in suites.load(name):
        asked: list[frozenset[str]] = []

        async def send(request: Request, asked: list[frozenset[str]] = asked) -> Answer:
            asked.append(frozenset(tool.name for tool in request.tools))
            raise ProviderError("enough")

        with suppress(ProviderError):
            await case.play(send)
        assert await tools_of(case) == asked[0]


def test_run_survives_a_json_round_trip() -> None:
    cell = Cell("qwen", "default", "toolsim", "chat", True, "toolsim_manifest=hermes")
    step = {"text": "Done.", "calls": []}
    run = Run("scenarios", "happy_path", "tools", 0, cell, False, "no_call", "…", 12.5, 2, 10, 5, 1, 1, 1, (step,))
    assert Run.from_dict(json.loads(json.dumps(run.as_dict()))) == run
    assert run.key == "scenarios|happy_path|qwen|default|toolsim|chat stream|toolsim_manifest=hermes|0"
