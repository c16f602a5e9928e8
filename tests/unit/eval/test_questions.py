"""Tests for the single-turn questions: their data is consistent, and their judge detects incorrect answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.each import each
from toolsim.eval import questions
from toolsim.eval.case import Case, Verdict
from toolsim.eval.runtime.turn import Answer, Call, Request

DOCUMENTS = {
    suite: json.loads(files("toolsim.eval").joinpath(name).read_text("utf-8"))
    for suite, name in questions.FILES.items()
}
QUESTIONS = [question for document in DOCUMENTS.values() for question in document["questions"]]
TOOLS = {tool["name"]: tool for document in DOCUMENTS.values() for tool in document["tools"]}
RIGHT = {question["id"]: question["calls"] for question in QUESTIONS}
CASES = {case.id: case for suite in questions.FILES for case in questions.cases(suite)}


def play(case: Case, calls: Sequence[tuple[str, Any]], **answer: Any) -> Verdict:
    made = tuple(Call(f"c{place}", name, json.dumps(arguments)) for place, (name, arguments) in enumerate(calls))

    async def send(request: Request) -> Answer:
        offered = {tool.name: tool for tool in request.tools}
        for name, arguments in calls:
            if name in offered:
                Draft202012Validator(offered[name].parameters).is_valid(arguments)
        return Answer("", made, **answer)

    return asyncio.run(case.play(send))


def first_right(calls: Sequence[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (call["name"], {name: values[0] for name, values in call["arguments"].items() if values[0] is not None})
        for call in calls
    ]


def test_suites_have_the_agreed_sizes() -> None:
    """The suites contain the expected numbers of questions with one call, two calls and no call. A question has at most
    four tools.
    """
    counts = {
        suite: [sum(len(question["calls"]) == number for question in document["questions"]) for number in (1, 2, 0)]
        for suite, document in DOCUMENTS.items()
    }
    assert counts == {"questions": [14, 4, 6], "unseen": [14, 0, 0]}
    assert max(len(question["tools"]) for question in QUESTIONS) == 4
    assert len(TOOLS) == sum(len(document["tools"]) for document in DOCUMENTS.values())
    assert len(CASES) == len(QUESTIONS)


@each("question", QUESTIONS, ids=lambda question: question["id"])
def test_correct_calls_fit_the_offered_tools(question: dict[str, Any]) -> None:
    """Each value in the correct calls is valid under the schema of a tool that the question offers."""
    for call in question["calls"]:
        assert call["name"] in question["tools"]
        properties = TOOLS[call["name"]]["parameters"]["properties"]
        assert properties.keys() >= call["arguments"].keys() >= set(TOOLS[call["name"]]["parameters"]["required"])
        for name, values in call["arguments"].items():
            assert all(Draft202012Validator(properties[name]).is_valid(value) for value in values if value is not None)


@each("name", CASES)
def test_only_correct_answers_pass(name: str) -> None:
    """The correct calls pass in any order. An answer with a missing or superfluous call fails."""
    case, right = CASES[name], first_right(RIGHT[name])
    assert play(case, right).ok
    assert play(case, right[::-1]).ok
    assert play(case, [*right, ("get_weather", {"city": "Ulm"})]).label == "needless_call"
    assert play(case, []).ok is not bool(right)


@pytest.mark.parametrize(
    ("calls", "label"),
    [
        ([("get_weather", {"city": "bonn."})], None),
        ([("get_weather", {"city": "Rome"})], "wrong_value"),
        ([("get_weather", {})], "missing_required"),
        ([("get_weather", {"city": "Bonn", "day": "today"})], "hallucinated_parameter"),
        ([("get_weather", ["Bonn"])], "malformed_json"),
        ([("weather", {"city": "Bonn"})], "wrong_tool"),
        ([], "no_call"),
    ],
)
def test_incorrect_calls_have_labels(calls: list[tuple[str, Any]], label: str | None) -> None:
    """Each kind of mistake in a call has a separate label."""
    assert play(CASES["one_01"], calls).label == label


def test_mistakes_with_several_calls_and_types() -> None:
    """A number that is sent as a string, a missing call, a repeated call, and a truncated answer have the expected
    labels.
    """
    money = {"amount": "250", "from_currency": "USD", "to_currency": "EUR"}
    assert play(CASES["one_03"], [("convert_currency", money)]).label == "type_coercion"
    assert play(CASES["two_01"], [("get_weather", {"city": "Rome"})]).label == "parallel_collapse"
    twice = [("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Rome"})]
    assert play(CASES["two_01"], twice).label == "wrong_value"
    assert play(CASES["one_01"], [], finish="length").label == "truncation"
