"""Tests for comparing two answers by the tools, the arguments and the order of their calls."""

from __future__ import annotations

import pytest
from toolsim.core.plan import Tool
from toolsim.recordings.agreement import compare
from toolsim.recordings.turns import MadeCall, Reply

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "number"},
        "on": {"type": "boolean"},
        "unit": {"type": "string", "default": "C"},
        "tags": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer", "default": 1}}}},
    },
}
TOOLS = [Tool("f", "f", parameters=SCHEMA), Tool("g", "g", parameters=SCHEMA), Tool("shell", "shell", "custom")]


def outcome(expected: str, got: str, name: str = "f") -> str:
    return compare(Reply(calls=(MadeCall(name, expected),)), Reply(calls=(MadeCall(name, got),)), TOOLS).outcome


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ('{"n": 5}', '{"n": 5.0}', True),
        ('{"n": 5}', '{ "n" : 5 }', True),
        ('{"n": 5, "on": true}', '{"on": true, "n": 5}', True),
        ("{}", '{"unit": "C"}', True),
        ('{"tags": [{}]}', '{"tags": [{"x": 1}]}', True),
        ("", "{}", True),
        ("{}", '{"unit": "F"}', False),
        ('{"n": 5}', '{"n": 6}', False),
        ('{"tags": [{"x": 1}, {"x": 2}]}', '{"tags": [{"x": 2}, {"x": 1}]}', False),
    ],
)
def test_equivalent_arguments_agree(expected: str, got: str, same: bool) -> None:
    """Two calls count as equal even if they differ in the notation of numbers, the order of members, or the presence of
    default values.
    """
    assert outcome(expected, got) == ("same" if same else "different")
    assert outcome(got, expected) == ("same" if same else "different")


def test_true_is_not_equal_to_one() -> None:
    """The values true and 1 count as different, although they are equal in Python."""
    assert outcome('{"on": true}', '{"on": 1}') == "invalid"
    assert outcome('{"x": true}', '{"x": 1}') == "different"


def test_custom_tool_input_is_text() -> None:
    """The input of a custom tool is compared as text. Leading and trailing whitespace is ignored."""
    assert outcome("ls -l", "ls -l\n", "shell") == "same"
    assert outcome("ls -l", "ls", "shell") == "different"


def test_invalid_calls_are_recognized() -> None:
    """A call is invalid if its tool is not on offer, if its arguments are not valid JSON, or if they violate the tool's
    schema.
    """
    for call, reason in (
        (MadeCall("h", "{}"), "h: the tool is not on offer"),
        (MadeCall("f", "{"), "f: the arguments are not valid JSON"),
        (MadeCall("f", '{"n": "five"}'), "f: /n: "),
    ):
        found = compare(Reply(text="Hello."), Reply(calls=(call,)), TOOLS)
        assert found.outcome == "invalid"
        assert found.differences[0].startswith(reason)
    assert compare(Reply("Hi"), Reply(error="422", is_invalid_call=True), TOOLS).outcome == "invalid"
    assert compare(Reply("Hi"), Reply("{", ()), TOOLS, ["MALFORMED_JSON:f"]).outcome == "invalid"


def test_backend_errors_are_not_answers() -> None:
    """If the backend fails, the outcome of the turn is an error. It does not count as a different answer."""
    assert compare(Reply("Hi"), Reply(error="HTTP 500"), TOOLS).outcome == "error"


def test_calls_are_paired_by_tool() -> None:
    """Calls to the same tool are compared with each other, so a missing or extra call does not make the other calls
    differ.
    """
    f, g = MadeCall("f", '{"n": 1}'), MadeCall("g", '{"n": 1}')
    other = MadeCall("g", '{"n": 2}')
    assert (
        compare(Reply(calls=(f, g)), Reply(calls=(g, f)), TOOLS).differences[0].startswith("the same calls in another")
    )
    assert compare(Reply(calls=(f, g)), Reply(calls=(f, other)), TOOLS).differences == ("g.n: got 2, expected 1",)
    assert compare(Reply(calls=(f, g)), Reply(calls=(g,)), TOOLS).differences == (
        'got no call of f({"n":1,"unit":"C"})',
    )
    assert compare(Reply(calls=(g,)), Reply(calls=(f, g)), TOOLS).differences == (
        'got an extra call: f({"n":1,"unit":"C"})',
    )
