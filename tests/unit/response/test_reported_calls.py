"""Texts that models wrote and people reported, each with the calls that a careful reader wants of it.

``tests/cases/reported.json`` has the texts, ``tests/cases/known_failures.json`` the ids of those that are not read as
wanted yet, and among them those whose calls run with wrong arguments instead of staying text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.answers import Seen
from support.each import each
from support.families import REPORTED, calls, calls_wanted, is_right
from support.library import by_proxy, pieces, streamed
from toolsim.core.plan import ApiName
from toolsim.parsing import parse

FOLDER = Path(__file__).parents[2] / "cases"
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in REPORTED}
KNOWN: dict[str, list[str]] = json.loads((FOLDER / "known_failures.json").read_text(encoding="utf-8"))
FAILING, WRONG = KNOWN["reported"], KNOWN["reported_wrong_calls"]
APIS: tuple[ApiName, ...] = ("responses", "chat", "messages")
SPLITS = 8


def without_spelling(seen: Seen) -> list[Any]:
    """Return an answer's items with arguments as values: only a stream has them as the model wrote them."""
    return [[*item[:2], json.loads(item[2])] if item[0] == "call" else item for item in seen.items]


@pytest.mark.parametrize("name", CASES)
def test_it_is_read_as_wanted(name: str) -> None:
    """Exactly the cases that are not listed as failing are read as wanted."""
    case = CASES[name]
    parsed = parse(case["text"], case["tools"])
    if name in FAILING:
        assert not is_right(case, parsed), f"{name} is read as wanted now: take it off known_failures.json"
    else:
        assert is_right(case, parsed), f"got {parsed.parts}"


@pytest.mark.parametrize("name", CASES)
def test_a_call_that_is_not_read_runs_as_no_other(name: str) -> None:
    """A case that fails stays text, in whole or in part: exactly the listed ones run a call that nobody wants."""
    case = CASES[name]
    surplus = [call for call in calls(parse(case["text"], case["tools"])) if call not in calls_wanted(case)]
    if name in WRONG:
        assert surplus, f"{name} runs no wrong call now: take it off known_failures.json"
    else:
        assert not surplus


@each("name", CASES)
def test_every_split_gives_the_same(name: str) -> None:
    """Letter by letter and at random splits a text is read as a complete one."""
    text, tools = CASES[name]["text"], CASES[name]["tools"]
    whole = parse(text, tools)
    assert streamed(list(text), tools) == whole
    for number in range(SPLITS):
        assert streamed(pieces(text, f"{name} {number}"), tools) == whole


@each(("name", "api"), [(name, api) for name in CASES for api in APIS])
def test_every_client_gets_the_same(name: str, api: ApiName) -> None:
    """The official clients read the same calls from streamed and non-streamed answers, at every split of the bytes."""
    text, tools = CASES[name]["text"], CASES[name]["tools"]
    complete = by_proxy(api, tools, [text], stream=False)
    called = [json.dumps(item[1:], sort_keys=True) for item in without_spelling(complete) if item[0] == "call"]
    assert called == calls(parse(text, tools))
    for cut, text_pieces in ((1, [text]), (0, pieces(text, name))):
        stream = by_proxy(api, tools, text_pieces, stream=True, cut=cut)
        assert without_spelling(stream) == without_spelling(complete)
        assert stream.finish == complete.finish


def test_the_failing_cases_exist() -> None:
    """Each id in the list is a case, once; no case that was decided differently lacks its reason."""
    assert len(FAILING) == len(set(FAILING))
    assert len(WRONG) == len(set(WRONG))
    assert set(WRONG) <= set(FAILING) <= set(CASES)
    for case in CASES.values():
        assert case["source"]
        assert "decision" not in case or (case["decision"]["reason"] and "arguable" in case)
