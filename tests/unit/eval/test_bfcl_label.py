"""Tests for the labels of incorrect calls in BFCL cases."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from toolsim.eval import bfcl_package
from toolsim.eval.bfcl_label import decode, label_unread, label_wrong
from toolsim.eval.runtime.turn import Answer, Call

needs_bfcl = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None, reason=f"needs BFCL: {bfcl_package.INSTALL}"
)

FUNCTION = {
    "name": "mail.send",
    "description": "Send a mail.",
    "parameters": {
        "type": "dict",
        "properties": {
            "to": {"type": "string"},
            "body": {"type": "string"},
            "copies": {"type": "integer"},
            "urgent": {"type": "boolean"},
        },
        "required": ["to", "body"],
    },
}
OTHER = FUNCTION | {"name": "mail.count"}
ANSWER = {"mail.send": {"to": ["ann"], "body": ["a\nb"], "copies": [2], "urgent": ["", True]}}
RIGHT = {"to": "Ann", "body": "a\nb", "copies": 2}


@needs_bfcl
@pytest.mark.parametrize(
    ("arguments", "label"),
    [
        ({"body": "a\nb", "copies": 2}, "missing_required"),
        ({"to": "ann", "body": "a\nb"}, "missing_required"),
        (RIGHT | {"color": "red"}, "hallucinated_parameter"),
        (RIGHT | {"copies": "2"}, "type_coercion"),
        (RIGHT | {"urgent": "True"}, "type_coercion"),
        (RIGHT | {"copies": "two"}, "schema_violation"),
        (RIGHT | {"copies": ["2"]}, "schema_violation"),
        (RIGHT | {"body": r"a\nb"}, "escaping_error"),
        (RIGHT | {"to": "bob"}, "wrong_value"),
        (RIGHT | {"copies": 3}, "wrong_value"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], label: str) -> None:
    """Each kind of mistake in the arguments of a call has a separate label."""
    assert bfcl_package.error_of([FUNCTION], [{"mail_send": RIGHT}], [ANSWER], "simple_python") is None
    assert label_wrong([OTHER, FUNCTION], [{"mail_send": arguments}], [ANSWER]) == label


@needs_bfcl
@pytest.mark.parametrize(
    ("calls", "answers", "label"),
    [
        ([{"mail_count": RIGHT}], [ANSWER], "wrong_tool"),
        ([{"mail_send": RIGHT}], [ANSWER, ANSWER], "parallel_collapse"),
        ([{"mail_send": RIGHT}, {"mail_count": {}}], [ANSWER], "needless_call"),
        ([{"mail_send": RIGHT}, {"mail_send": RIGHT | {"to": "bob"}}], [ANSWER, ANSWER], "wrong_value"),
        ([{"mail_send": RIGHT | {"to": "bob"}}, {"mail_send": RIGHT}], [ANSWER, ANSWER], "wrong_value"),
        ([{"mail_count": {}}, {"mail_send": RIGHT}], [ANSWER, ANSWER], "wrong_tool"),
    ],
)
def test_wrong_calls(calls: list[bfcl_package.Decoded], answers: list[Any], label: str) -> None:
    """Missing, superfluous and incorrect calls have different labels. The order of calls does not matter."""
    assert label_wrong([OTHER, FUNCTION], calls, answers) == label


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        (Answer("I cannot do that."), "no_call"),
        (Answer("<tool_call>{"), "malformed_json"),
        (Answer("<tool_call>{", finish="length"), "truncation"),
        (Answer("", (Call("c", "f", "{"),)), "malformed_json"),
        (Answer("", (Call("c", "f", "{"),), finish="length"), "truncation"),
    ],
)
def test_answers_without_a_valid_call(answer: Answer, label: str) -> None:
    """An answer without a call, an answer with a malformed call, and a truncated answer have different labels."""
    assert label_unread(answer) == label


@pytest.mark.parametrize(
    ("arguments", "decoded"), [("", {}), ("{}", {}), ('{"a": 1}', {"a": 1}), ("[1]", None), ("null", None), ("{", None)]
)
def test_arguments_must_be_an_object(arguments: str, decoded: dict[str, Any] | None) -> None:
    """The arguments must be a JSON object. If they are empty, they count as an empty object."""
    assert decode([Call("c", "f", arguments)]) == (None if decoded is None else [{"f": decoded}])
