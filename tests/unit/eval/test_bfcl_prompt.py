"""Tests for BFCL's prompt: its wording, the history as text, and the texts that its parser accepts."""

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
    """BFCL's functions become tools with JSON Schema types and with names without dots."""
    (tool,) = tools_of(ENTRY)
    assert tool.name == "math_add"
    assert tool.parameters["type"] == "object"
    assert tool.parameters["properties"]["a"]["type"] == "number"


def test_system_prompt_comes_first() -> None:
    """BFCL's system prompt comes first, describes the functions, and is joined to a system message of the case."""
    shown = PROMPT.write([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}], ())
    assert [message["role"] for message in shown] == ["system", "user"]
    assert shown[0]["content"].startswith("You are an expert in composing functions.")
    assert '"math.add"' in shown[0]["content"]
    assert shown[0]["content"].endswith("Be brief.")


def test_history_becomes_text() -> None:
    """Calls in the history have the form that the prompt requires. The outputs of one step form one user message."""
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
    """The parser returns the calls if the complete text consists of calls, and otherwise the text as prose."""
    text, calls = PROMPT.read("[math.add(a=1.5), math.add(a=-2)]")
    assert text == ""
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("math_add", {"a": 1.5}),
        ("math_add", {"a": -2}),
    ]
    assert PROMPT.read("Two.") == ("Two.", ())
    assert PROMPT.read("Here: [math.add(a=1)] it is.") == ("Here: [math.add(a=1)] it is.", ())


def test_values_outside_json_are_prose() -> None:
    """A call with values that JSON does not support, such as bytes or sets, is treated as prose."""
    assert PROMPT.read("[f(a=b'x')]") == ("[f(a=b'x')]", ())
    assert isinstance(PROMPT.read("[f(a=1)]")[1][0], Call)
