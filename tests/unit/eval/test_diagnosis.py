"""Tests for the diagnosis of evaluated conversations, which labels failures."""

from __future__ import annotations

from support.each import each
from toolsim.eval.case import Label
from toolsim.eval.diagnosis import diagnose
from toolsim.eval.runtime.loop import Execution, Outcome, Stop
from toolsim.eval.runtime.registry import ToolResult
from toolsim.eval.runtime.turn import Answer, Call, Finish

CALL = Call("1", "state_patch", "{}")


def outcome(
    text: str = "Done.", *errors: str, ran: bool = True, stop: Stop = "answer", finish: Finish = "stop"
) -> Outcome:
    result = ToolResult.failed(*errors) if errors else ToolResult(True)
    executions = (Execution(1, CALL, result),) if ran else ()
    return Outcome(stop, text, (Answer(text, finish=finish),), executions, ())


def test_reached_goal_and_matching_text_are_correct() -> None:
    """A conversation is correct if its goal is reached and its final text matches the expected text. Whitespace around
    the text is ignored.
    """
    assert diagnose(outcome(" Done.\n"), None).ok


@each(
    ("ended", "goal", "label"),
    [
        (outcome("I cannot.", ran=False), "title", "no_call"),
        (outcome('{"name": "a", "arguments": {}}', ran=False), "title", "no_call"),
        (outcome("<tool_call>{oh", ran=False), "title", "malformed_json"),
        (outcome("Let me", ran=False, finish="length"), "title", "truncation"),
        (outcome("Done.", "UNKNOWN_TOOL", "x"), "title", "wrong_tool"),
        (outcome("Done.", "INVALID_JSON", "Expecting value"), "title", "malformed_json"),
        (outcome("Done.", "INVALID_JSON", "Invalid \\escape"), "title", "escaping_error"),
        (outcome("Done.", "INVALID_JSON", "Invalid control character at"), "title", "escaping_error"),
        (outcome("Done.", "INVALID_ARGUMENTS", "'path' is a required property"), "title", "missing_required"),
        (outcome("Done.", "INVALID_ARGUMENTS", "Additional properties are not"), "title", "hallucinated_parameter"),
        (outcome("Done.", "INVALID_ARGUMENTS", "/a: got number, expected string"), "title", "type_coercion"),
        (outcome("Done.", "INVALID_ARGUMENTS", "5 is too big"), "title", "schema_violation"),
        (outcome("Done.", "TYPE_ERROR", "x"), "title", "type_coercion"),
        (outcome("Done.", "PATH_NOT_FOUND", "x"), "title", "wrong_value"),
        (outcome("<tool_call>{oh"), "title", "malformed_json"),
        (outcome("and then", finish="length"), "title", "truncation"),
        (outcome("", stop="max_turns"), "title", "turn_limit"),
        (outcome("", stop="max_turns"), None, "turn_limit"),
        (outcome("Done."), "title", "wrong_state"),
        (outcome("I am done."), None, "wrong_final_text"),
    ],
)
def test_each_failure_has_a_label(ended: Outcome, goal: str | None, label: Label) -> None:
    """Each kind of failure has a label and a detailed message."""
    verdict = diagnose(ended, goal)
    assert (verdict.ok, verdict.label) == (False, label)
    assert verdict.detail


def test_unmet_failure_policy_names_the_tool() -> None:
    """If a conversation fails only because of the failure policy, the verdict names the tool whose last call failed."""
    calls = [
        ("state_get", ToolResult.failed("UNKNOWN_WORKSPACE", "x")),
        ("state_patch", ToolResult.failed("TYPE_ERROR", "not the last")),
        ("state_patch", ToolResult(True)),
    ]
    executions = tuple(Execution(1, Call("1", name, "{}"), result) for name, result in calls)
    ended = Outcome("tool_failed", "Done.", (Answer("Done."),), executions, ())
    verdict = diagnose(ended, None)
    assert (verdict.label, verdict.detail) == (
        "wrong_value",
        "the tool failure policy is violated: state_get failed with UNKNOWN_WORKSPACE, x",
    )


def test_labels_match_the_validators_messages() -> None:
    """Each error message of the schema check is assigned the correct label."""
    from toolsim.schema import compile_schema

    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 2}},
        "required": ["a"],
        "additionalProperties": False,
    }
    check = compile_schema(schema).check
    labels = {
        "missing_required": {},
        "type_coercion": {"a": 1},
        "hallucinated_parameter": {"a": "", "b": 1},
        "schema_violation": {"a": "long"},
    }
    for label, arguments in labels.items():
        assert diagnose(outcome("Done.", "INVALID_ARGUMENTS", f"{check(arguments)}"), "title").label == label
