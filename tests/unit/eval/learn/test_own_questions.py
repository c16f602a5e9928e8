"""Tests for using recorded turns as questions: which turns are used, how they are divided into halves, and which
answers are correct.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.recording import CALL, TOOL, context, recording
from toolsim.eval.learn.own_questions import FEWEST, own_questions
from toolsim.eval.learn.rule import ALPHA, evidence
from toolsim.eval.runtime.turn import Answer, Call
from toolsim.recordings.turns import KINDS


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_conversations_are_not_split_between_halves(folder: Path) -> None:
    """All turns of a conversation are in the same half of the questions. Duplicate turns count only once, and unusable
    turns are ignored.
    """
    with context():
        for number in range(8):
            first = said(f"question {number}")
            recording(folder, messages=first, text="Hello.")
            recording(folder, messages=[*first, {"role": "assistant", "content": "Hello."}, *said("and?")])
        recording(folder, messages=said("question 1"), text="Hello.")
        recording(folder, messages=said("bad"), text="<tool_call>{</tool_call>")
    own = own_questions([folder])
    assert (len(own.choosing), len(own.confirming)) == (8, 8)
    halves = [{question.conversation for question in half} for half in (own.choosing, own.confirming)]
    assert halves[0] & halves[1] == set()
    assert {question.kind for question in (*own.choosing, *own.confirming)} == {"call wanted", "answer wanted"}
    assert own_questions([folder]).fingerprint == own.fingerprint
    assert own_questions([folder / "none"]).facts(None) == {"recorded_turns": 0, "chosen_by": 0, "confirmed_by": 0}


def test_recorded_calls_are_the_correct_answer(folder: Path) -> None:
    """A question repeats the recorded conversation. Only an answer with the recorded calls is correct."""
    with context():
        recording(folder, messages=said("Weather in Paris?"))
    own = own_questions([folder])
    [question] = [*own.choosing, *own.confirming]
    request = question.request()
    assert request.messages == tuple(said("Weather in Paris?"))
    [tool] = request.tools
    assert (tool.name, tool.parameters) == ("get_weather", TOOL["function"]["parameters"])  # type: ignore[index]
    assert question.kind in KINDS

    def answer(*arguments: dict[str, Any], text: str = "") -> Answer:
        return Answer(text, tuple(Call("c", "get_weather", json.dumps(given)) for given in arguments))

    assert question.is_right(answer({"city": "Paris"}))
    for wrong in (answer({"city": "Bonn"}), answer({"city": "Paris"}, {"city": "Bonn"}), answer(text="Paris.")):
        assert not question.is_right(wrong)


def test_any_text_is_correct_where_text_was_recorded(folder: Path) -> None:
    """If the recorded answer was text, any text is correct. An answer with a call is incorrect, even if the call is
    written as text.
    """
    with context():
        recording(folder, messages=said("Hi"), text="Hello.")
    own = own_questions([folder])
    [question] = [*own.choosing, *own.confirming]
    assert question.is_right(Answer("Good morning."))
    for wrong in (Answer(""), Answer(CALL), Answer("", (Call("c", "get_weather", '{"city": "Bonn"}'),))):
        assert not question.is_right(wrong)


def test_too_few_wins_are_insufficient() -> None:
    """FEWEST is the smallest number of wins that is sufficient evidence if the challenger has no losses."""
    assert evidence(FEWEST, 0) >= 1 / ALPHA > evidence(FEWEST - 1, 0)
