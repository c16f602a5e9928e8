"""Tests for the question bank. Its questions are unique and valid. An answer is judged by the calls that a user would
receive.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from jsonschema import Draft202012Validator
from toolsim.eval.learn import question_bank
from toolsim.eval.questions import FILES, cases
from toolsim.eval.runtime.turn import Answer, Call

ASKED = question_bank.questions()
BY_ID = {question.id: question for question in ASKED}


def call(name: str, **arguments: object) -> Call:
    return Call("c", name, json.dumps(arguments))


def test_correct_calls_fit_their_tools() -> None:
    """Each correct argument is valid under the tool's schema, and no required argument is missing."""
    assert len(BY_ID) == len(ASKED)
    for question in ASKED:
        schemas = {tool.name: tool.parameters for tool in question.tools}
        for right in question.calls:
            for place in range(max(map(len, right["arguments"].values()))):
                arguments = {name: values[place % len(values)] for name, values in right["arguments"].items()}
                Draft202012Validator(schemas[right["name"]]).validate(arguments)


def test_each_kind_has_enough_questions() -> None:
    """Each kind of question has at least 12 questions, of which a challenger needs to win 10. The exception is "long",
    which has 8.
    """
    counted = Counter(question.kind for question in ASKED)
    many = {kind for kind, count in counted.items() if count >= 12}
    made = {"later", "done", "which", "must"}
    assert many == {"one", "two", "none", "near", "asked", "refusal", "after"} | made
    assert counted["long"] == 8
    assert len(BY_ID["long_01"].tools) > 20


def test_bank_shares_no_question_with_another_suite() -> None:
    others = {suite: cases(suite) for suite in FILES}
    asked = {question.messages[-1]["content"] for question in ASKED if question.kind not in ("after", "done")}
    known: set[str] = set()
    names: set[str] = set()
    for suite in others.values():
        for case in suite:
            played = case.play.__self__  # type: ignore[attr-defined]
            known.add(played.text)
            names |= {tool.name for tool in played.tools}
    assert not asked & known
    assert not {tool.name for question in ASKED for tool in question.tools} & names


def test_bank_shares_no_text_with_bfcl() -> None:
    """No question in the bank has the same text as a single-turn question in BFCL."""
    pytest.importorskip("bfcl_eval", reason="needs BFCL")
    from toolsim.eval.bfcl_package import load_entries

    asked = {question.messages[0]["content"] for question in ASKED}
    for category in ("simple_python", "multiple", "parallel", "irrelevance"):
        shown = json.dumps([entry["question"] for entry in load_entries(category)], ensure_ascii=False)
        assert len(shown) > 10_000
        assert [text for text in asked if json.dumps(text, ensure_ascii=False) in shown] == []


@pytest.mark.parametrize(
    ("id", "answer", "is_right"),
    [
        ("one_01", Answer("", (call("set_thermostat", room="Living Room", degrees=21),)), True),
        ("one_01", Answer("", (call("set_thermostat", room="kitchen", degrees=21),)), False),
        ("one_01", Answer("I set it to 21 degrees."), False),
        ("none_01", Answer("Hello!"), True),
        ("none_01", Answer(""), False),
        ("none_01", Answer("", (call("read_meter", meter="gas"),)), False),
        ("none_01", Answer('{"name": "read_meter", "arguments": {"meter": "gas"}}'), False),
        ("after_01", Answer("It says 418.6 m³."), True),
        ("after_01", Answer("It says something."), False),
        ("after_01", Answer("It says 418.6 m³.", (call("read_meter", meter="water"),)), False),
        ("after_01", Answer('[function_call_output call_id=call_1 output={"cubic_metres":418.6}]'), False),
        ("after_10", Answer("", (call("feed_pet", pet="Rex", grams=60),)), True),
        ("after_10", Answer("It says 77."), False),
        ("two_01", Answer("", (call("lock_door", door="front", locked=True),)), False),
    ],
)
def test_correct_answers_are_recognized(id: str, answer: Answer, is_right: bool) -> None:
    assert BY_ID[id].is_right(answer) is is_right


def test_later_question_continues_a_turn() -> None:
    """A "later", "which" or "done" question begins with an earlier question, its calls and their outputs. A "later"
    question then continues with the answer and a new question.
    """
    later = BY_ID["later_02"]
    assert [message["role"] for message in later.messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert later.calls == BY_ID["one_02"].calls
    assert later.request().tool_choice == "auto"
    assert BY_ID["must_02"].request().tool_choice == "required"
    which = BY_ID["which_01"]
    assert [message["role"] for message in which.messages] == ["user", "assistant", "tool", "tool", "user"]
    assert "cellar" in which.messages[-1]["content"]
    assert which.is_right(Answer("It was R902."))
    assert not which.is_right(Answer("K417 and R902."))
    assert BY_ID["which_02"].says == ("K417",)
    four = BY_ID["which_of_four_02"]
    outputs = [message["content"] for message in four.messages if message["role"] == "tool"]
    assert outputs == ['{"code":"T635"}', '{"code":"K417"}', '{"code":"M281"}', '{"code":"R902"}']
    assert "bedroom, 18" in four.messages[-1]["content"]
    assert four.says == ("T635",)
    done = BY_ID["done_02"]
    assert [message["role"] for message in done.messages] == ["user", "assistant", "tool"]
    assert done.is_right(Answer("It is locked."))
    assert not done.is_right(Answer("", (call("lock_door", door="back", locked=True),)))


def test_blocks_mix_the_kinds_and_keep_a_catalog_together() -> None:
    """Each question belongs to exactly one block. All questions in a block share a catalog, and the first blocks
    contain several kinds of questions.
    """
    kinds = ("one", "two", "none", "refusal", "after", "long")
    found = question_bank.blocks(ASKED, kinds)
    assert sorted(question.id for block in found for question in block) == sorted(
        question.id for question in ASKED if question.kind in kinds
    )
    assert all(len({question.catalog for question in block}) == 1 for block in found)
    assert len({question.kind for block in found[:2] for question in block}) == 5
    assert question_bank.blocks(ASKED, ()) == []
