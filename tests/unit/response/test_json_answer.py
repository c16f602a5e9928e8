"""Tests for answers that must be JSON, in response to requests without tools."""

from __future__ import annotations

from typing import Any

import pytest
from toolsim.core.errors import ApiError
from toolsim.core.events import ClientEvent, Ended, Failed, Opened, ReasoningDelta, RefusalDelta, TextDelta, Usage
from toolsim.core.report import Report
from toolsim.response.answer_format import AnswerFormat
from toolsim.response.checker import SchemaChecker
from toolsim.response.json_answer import JsonAnswer

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
GOOD = '{"a": 1}'
END = Ended({0: "stop"}, Usage(1, 2))


def answer(wanted: dict[str, Any] | None = None, *, trusts: bool = False) -> JsonAnswer:
    checker = SchemaChecker(lambda *_: None, seconds=5)
    return JsonAnswer(
        AnswerFormat(wanted or {"type": "json_schema", "schema": SCHEMA}, checker), Report(), trusts=trusts
    )


def text_of(events: list[ClientEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


UNWRAPPED = {
    "right": (f" {GOOD}\n", f" {GOOD}\n"),
    "fence": (f"```json\n{GOOD}\n```", GOOD),
    "bare fence": (f"```\n{GOOD}```\n", GOOD),
    "prose and a fence": (f"Sure:\n```json\n{GOOD}\n```\nDone.", GOOD),
    "thought": (f"<think>\nno ``` {{</think>\n{GOOD}", GOOD),
    "thought and fence": (f"<think>x</think>```json\n{GOOD}\n```", GOOD),
}


@pytest.mark.parametrize("trusts", [False, True])
@pytest.mark.parametrize("case", UNWRAPPED)
def test_conforming_json_passes(case: str, trusts: bool) -> None:
    """JSON in the requested format is passed on without any text around it, wherever the text is split."""
    text, expected = UNWRAPPED[case]
    for size in range(1, len(text) + 1):
        checked = answer(trusts=trusts)
        passed = checked.take([Opened()])
        for start in range(0, len(text), size):
            passed += checked.take([TextDelta(text[start : start + size])])
        passed += checked.take([END])
        assert (text_of(passed), passed[-1], checked.retry) == (expected, END, None)
        assert checked.is_right == (text == expected)
        assert checked.is_over


@pytest.mark.parametrize(
    "text",
    ["", "Well.", '{"a": "x"}', '{"a": 1, "b": 2}', f"{GOOD} {GOOD}", f"```\n{GOOD}\n```\n```\n{GOOD}\n```", '{"a": 1'],
)
def test_nonconforming_answer_is_withheld(text: str) -> None:
    """An answer that does not have the requested format is withheld. The retry contains the error and the text that the
    model wrote.
    """
    checked = answer()
    passed = checked.take([Opened(), TextDelta(text), END])
    assert passed == [Opened()]
    assert checked.retry is not None
    assert checked.retry.words == text
    assert checked.retry.usage == Usage(1, 2)
    (failed,) = checked.retry.otherwise
    assert isinstance(failed, Failed)
    assert (failed.error.code, failed.error.status) == ("invalid_answer", 502)


def test_any_object_is_accepted_without_a_schema() -> None:
    """If there is no schema, any JSON object is accepted, but no other JSON value."""
    wanted = {"type": "json_object"}
    assert answer(wanted).take([TextDelta('{"b": []}'), END]) == [TextDelta('{"b": []}'), END]
    checked = answer(wanted)
    assert checked.take([TextDelta("[1]"), END]) == []
    assert checked.retry is not None


def test_unfinished_answers_are_not_checked() -> None:
    """If an answer was cut off, failed or refused, its text is passed on, and its format is not checked."""
    cut = Ended({0: "length"})
    assert answer().take([TextDelta('{"a"'), cut]) == [TextDelta('{"a"'), cut]
    failed = Failed(ApiError("gone"))
    assert answer().take([TextDelta('{"a"'), failed]) == [TextDelta('{"a"'), failed]
    refused = [RefusalDelta("No."), END]
    assert answer().take(refused) == refused
    thought = ReasoningDelta("hm")
    assert answer().take([thought, TextDelta(GOOD), END]) == [thought, TextDelta(GOOD), END]


def test_trusted_json_is_streamed_immediately() -> None:
    """JSON from a trusted backend is streamed immediately. If the JSON turns out not to have the requested format, only
    a retry or an error can follow.
    """
    checked = answer(trusts=True)
    assert checked.take([TextDelta(" ")]) == []
    assert checked.take([TextDelta("{")]) == [TextDelta(" {")]
    assert checked.take([TextDelta('"b"')]) == [TextDelta('"b"')]
    assert checked.take([TextDelta(": 2}"), END]) == [TextDelta(": 2}")]
    assert checked.retry is not None
