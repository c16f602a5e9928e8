"""Tests for the built-in prompt of the ``prompt`` method."""

from __future__ import annotations

from toolsim.eval.plain_prompt import PlainPrompt
from toolsim.eval.runtime.turn import Call, Tool

TOOLS = [Tool("echo", "Say it.", {"type": "object"})]
CALL = {"id": "1", "type": "function", "function": {"name": "echo", "arguments": '{"a": 1}'}}


def test_tools_and_history_become_text() -> None:
    """In the built-in prompt, the tools are described in the system message. Calls and their results in the history
    become text.
    """
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "I will.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "{}"},
    ]
    written = PlainPrompt().write(messages, TOOLS)
    assert [set(message) for message in written] == [{"role", "content"}] * 4
    assert written[0]["content"].startswith("Be kind.\n\n")
    assert '"name": "echo"' in written[0]["content"]
    assert written[2]["content"] == 'I will.\n<tool_call>\n{"name": "echo", "arguments": {"a": 1}}\n</tool_call>'
    assert written[3] == {"role": "user", "content": "<tool_response>\n{}\n</tool_response>"}


def test_system_message_is_added_only_for_tools() -> None:
    messages = [{"role": "user", "content": "Go."}]
    assert [message["role"] for message in PlainPrompt().write(messages, TOOLS)] == ["system", "user"]
    assert PlainPrompt().write(messages, []) == messages


def test_prompted_call_form_is_parsed() -> None:
    """A tagged call is parsed, and the text before it is kept. A JSON object without ``arguments`` is not a call."""
    text = 'I will.\n<tool_call>\n{"name": "echo", "arguments": {"a": 1}}\n</tool_call>'
    assert PlainPrompt().read(text) == ("I will.", (Call("tag_1", "echo", '{"a": 1}'),))
    assert PlainPrompt().read('```json\n{"name": "echo"}\n```')[1] == ()
