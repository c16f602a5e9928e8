"""Calls restored where they were made."""

from __future__ import annotations

from typing import Any

from toolsimlib.conversation import Call, Called, CallOutput, Text
from toolsimlib.wire.chat.hidden import conversations, whole_key, with_hidden

USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well."}
PAIR: Called = (Call("mcp_1", "files__read", "{}"), CallOutput("mcp_1", (Text("text"),)))


def test_a_conversation_is_known_by_all_of_its_messages() -> None:
    """By their words and roles; the key of the whole is the one before the next message."""
    keys = list(conversations([USER, ANSWER], "me"))
    assert len(set(keys)) == 3
    assert whole_key({"messages": [USER]}, "me") == keys[1]
    assert whole_key({"messages": [USER]}, "you") not in keys
    assert whole_key({"messages": [{**USER, "content": "ho"}]}, "me") not in keys
    assert whole_key({}, "me") == keys[0]


def test_hidden_calls_stand_before_their_answer() -> None:
    """And nowhere else; the request itself is unchanged."""
    body: dict[str, Any] = {"model": "m", "messages": [USER, ANSWER, USER, ANSWER]}
    known = {whole_key({"messages": [USER]}, "me"): [PAIR]}
    shown = with_hidden(body, "me", lambda key: known.get(key, []))
    assert [message["role"] for message in shown["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert shown["messages"][1]["tool_calls"][0]["function"]["name"] == "files__read"
    assert shown["messages"][2] == {"role": "tool", "tool_call_id": "mcp_1", "content": "text"}
    assert len(body["messages"]) == 4
    assert with_hidden(body, "you", lambda key: known.get(key, [])) == body
    assert with_hidden({"messages": 3}, "me", lambda key: [PAIR])["messages"] == []
