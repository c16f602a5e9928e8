"""Tests for detecting calls that a model writes as text. A client cannot run such calls."""

from __future__ import annotations

import pytest
from support.each import each
from toolsim.eval.call_as_text import holds_call

TOOLS = ("get_weather", "add")


@each(
    "text",
    [
        '<tool_call>{"name": "get_weather", "arguments": "{}"}</tool_call>',
        "<use_tool><name>add</name></use_tool>",
        "<function=add><parameter=a>1",
        'I will.\n```json\n{"name": "get_weather", "arguments": {"city": "Bonn"}}\n```',
        "{'name': 'add', 'parameters': {'a': 1}}",
        # The second call contains an expression instead of a value.
        '[{"name": "add", "arguments": {"a": 1}}, {"name": "sum", "arguments": {"a": 3 + 4}}]',
        '[{"name": "add", "arguments": {"a": 1}},\n{"name": "arguments": {"a"',
        "get_weather('Bonn')",
        "It is sunny.\n  [add(a=1), add(a=2)]",
        "`add(1, 2)`",
    ],
)
def test_calls_are_detected_in_any_spelling(text: str) -> None:
    """A call is detected in markup, JSON and code, even if it is broken or follows prose."""
    assert holds_call(text, TOOLS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "It is sunny in Bonn.",
        "With get_weather(city) you can find out the weather.",
        "I have add and get_weather, but neither tells the time.",
        '{"name": "Bonn", "country": "Germany"}',
        '{"name": "search", "arguments": {"query": "Bonn"}}',  # This tool is not on offer.
        "```python\ndef add(a, b):\n    return a + b\n```",
    ],
)
def test_text_about_tools_is_not_a_call(text: str) -> None:
    """A sentence that mentions a tool does not count as a call. JSON and code with another purpose do not count
    either.
    """
    assert not holds_call(text, TOOLS)


def test_without_tools_nothing_is_a_call() -> None:
    """If no tools are on offer, no text counts as a call, because the user might have requested text that looks like a
    call.
    """
    assert not holds_call('<tool_call>{"name": "add", "arguments": "{}"}</tool_call>', ())
