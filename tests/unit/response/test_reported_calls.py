"""Tests for texts that models wrote and users reported, each with the calls that a careful reader expects.

The texts are in ``tests/cases/reported.json``. ``tests/cases/known_failures.json`` lists the texts that are not yet
parsed as expected.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.answers import Seen
from support.each import each
from support.effort import some
from support.families import REPORTED, calls, calls_wanted, is_right
from support.library import by_proxy, pieces, streamed
from toolsim.core.policy import ApiName
from toolsim.parsing import parse

FOLDER = Path(__file__).parents[2] / "cases"
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in REPORTED}
KNOWN: dict[str, list[str]] = json.loads((FOLDER / "known_failures.json").read_text(encoding="utf-8"))
FAILING, WRONG = KNOWN["reported"], KNOWN["reported_wrong_calls"]
APIS: tuple[ApiName, ...] = ("responses", "chat", "messages")
SPLITS = 8


def without_spelling(seen: Seen) -> list[Any]:
    """Return an answer's items with parsed arguments, because only streams preserve the exact text of the arguments."""
    return [[*item[:2], json.loads(item[2])] if item[0] == "call" else item for item in seen.items]


@pytest.mark.parametrize("name", CASES)
def test_cases_are_read_as_expected(name: str) -> None:
    """A case is parsed as expected if and only if it is not listed as failing."""
    case = CASES[name]
    parsed = parse(case["text"], case["tools"])
    if name in FAILING:
        assert not is_right(case, parsed), f"{name} is read as wanted now: take it off known_failures.json"
    else:
        assert is_right(case, parsed), f"got {parsed.parts}"


@pytest.mark.parametrize("name", CASES)
def test_unread_case_runs_no_unexpected_call(name: str) -> None:
    """A case yields no unexpected call unless it is listed in ``WRONG``. Each listed case still yields an unexpected
    call.
    """
    case = CASES[name]
    surplus = [call for call in calls(parse(case["text"], case["tools"])) if call not in calls_wanted(case)]
    if name in WRONG:
        assert surplus, f"{name} runs no wrong call now: take it off known_failures.json"
    else:
        assert not surplus


@each("name", CASES)
def test_splits_make_no_difference(name: str) -> None:
    """Text is parsed in the same way whether it arrives as a single chunk, character by character, or with random
    splits.
    """
    text, tools = CASES[name]["text"], CASES[name]["tools"]
    whole = parse(text, tools)
    assert streamed(list(text), tools) == whole
    for number in range(SPLITS):
        assert streamed(pieces(text, f"{name} {number}"), tools) == whole


@each(("name", "api"), some(product(CASES, APIS)))
def test_official_clients_read_the_same_calls(name: str, api: ApiName) -> None:
    """Official clients receive the same calls from streamed and non-streamed answers, wherever the bytes are split."""
    text, tools = CASES[name]["text"], CASES[name]["tools"]
    complete = by_proxy(api, tools, [text], stream=False)
    called = [json.dumps(item[1:], sort_keys=True) for item in without_spelling(complete) if item[0] == "call"]
    assert called == calls(parse(text, tools))
    for cut, text_pieces in ((1, [text]), (0, pieces(text, name))):
        stream = by_proxy(api, tools, text_pieces, stream=True, cut=cut)
        assert without_spelling(stream) == without_spelling(complete)
        assert stream.finish == complete.finish


def test_failing_cases_exist() -> None:
    """Each entry in ``FAILING`` and ``WRONG`` is the name of one case. Each case in which toolsim's decision differs
    from the expectation states a reason.
    """
    assert len(FAILING) == len(set(FAILING))
    assert len(WRONG) == len(set(WRONG))
    assert set(WRONG) <= set(FAILING) <= set(CASES)
    for case in CASES.values():
        assert case["source"]
        assert "decision" not in case or (case["decision"]["reason"] and "arguable" in case)
