"""One model turn as data."""

from __future__ import annotations

from toolsim.eval.runtime.turn import Answer, Call


def test_an_answer_in_words_is_a_plain_message() -> None:
    """Without calls the message is the text, even when there is none."""
    assert Answer("Hello").message() == {"role": "assistant", "content": "Hello"}
    assert Answer("").message() == {"role": "assistant", "content": ""}


def test_calls_continue_a_conversation_in_the_chat_form() -> None:
    """Arguments stay as the model wrote them, and content is null beside calls without words."""
    message = Answer("", (Call("call_1", "state_get", '{"a": 1.0}'),)).message()
    assert message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "state_get", "arguments": '{"a": 1.0}'}}
        ],
    }
