"""Tests for BFCL's prompt: its wording, how it writes the history as text, and which text its parser accepts as
calls.
"""

from __future__ import annotations

import json

import pytest
from toolsim.eval import bfcl_package
from toolsim.eval.bfcl_prompt import BfclPrompt, tools_of
from toolsim.eval.runtime.turn import Call

pytest.importorskip("bfcl_eval", reason=f"needs BFCL: {bfcl_package.INSTALL}")

ENTRY = {
    "id": "simple_python_0",
    "function": [
        {
            "name": "math.add",
            "description": "Add.",
            "parameters": {
                "type": "dict",
                "properties": {"a": {"type": "float", "description": "First."}},
                "required": ["a"],
            },
        }
    ],
}
PROMPT = BfclPrompt(ENTRY)


def test_functions_become_tools() -> None:
    """BFCL's functions are converted to tools with JSON Schema types. Dots in their names are replaced."""
    (tool,) = tools_of(ENTRY)
    assert tool.name == "math_add"
    assert tool.parameters["type"] == "object"
    assert tool.parameters["properties"]["a"]["type"] == "number"


def test_system_prompt_comes_first() -> None:
    """The first message is BFCL's system prompt, which describes the functions. The system message of the case is
    appended to it.
    """
    shown = PROMPT.write([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}], ())
    assert [message["role"] for message in shown] == ["system", "user"]
    assert shown[0]["content"].startswith("You are an expert in composing functions.")
    assert '"math.add"' in shown[0]["content"]
    assert shown[0]["content"].endswith("Be brief.")


def test_history_becomes_text() -> None:
    """Calls in the history are written in the format that BFCL's prompt requires. All outputs of a step form a single
    user message.
    """
    function = {"name": "math_add", "arguments": '{"a": 1}'}
    calls = [{"id": name, "type": "function", "function": function} for name in ("x", "y")]
    history = [
        {"role": "user", "content": "1?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "x", "content": "one"},
        {"role": "tool", "tool_call_id": "y", "content": "two"},
    ]
    shown = PROMPT.write(history, ())[1:]
    assert [message["role"] for message in shown] == ["user", "assistant", "user"]
    assert shown[1]["content"] == "[math_add(a=1), math_add(a=1)]"
    assert shown[2]["content"] == repr(
        [{"role": "tool", "name": "math_add(a=1)", "content": output} for output in ("one", "two")]
    )


def test_parser_returns_calls_or_prose() -> None:
    """If the text of an answer consists only of calls, the parser returns the calls. Otherwise, the entire text counts
    as prose.
    """
    text, calls = PROMPT.read("[math.add(a=1.5), math.add(a=-2)]")
    assert text == ""
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("math_add", {"a": 1.5}),
        ("math_add", {"a": -2}),
    ]
    assert PROMPT.read("Two.") == ("Two.", ())
    assert PROMPT.read("Here: [math.add(a=1)] it is.") == ("Here: [math.add(a=1)] it is.", ())


def test_values_outside_json_are_prose() -> None:
    """If a call contains a value that JSON cannot represent, such as bytes or a set, the call is treated as prose."""
    assert PROMPT.read("[f(a=b'x')]") == ("[f(a=b'x')]", ())
    assert isinstance(PROMPT.read("[f(a=1)]")[1][0], Call)
