"""Tests for converting a model's answer to a message."""

from __future__ import annotations

from toolsim.eval.runtime.turn import Answer, Call


def test_text_answer_becomes_a_plain_message() -> None:
    """An answer without calls becomes a message with its text, even if the text is empty."""
    assert Answer("Hello").message() == {"role": "assistant", "content": "Hello"}
    assert Answer("").message() == {"role": "assistant", "content": ""}


def test_message_with_calls_keeps_arguments_unchanged() -> None:
    """In a message with calls, the arguments are exactly as the model wrote them. Without text, the content is null."""
    message = Answer("", (Call("call_1", "state_get", '{"a": 1.0}'),)).message()
    assert message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "state_get", "arguments": '{"a": 1.0}'}}
        ],
    }
