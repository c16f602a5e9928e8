"""Restoration of hidden calls, which the client never saw because its API has no items for them. They are inserted into
the conversation where they were made.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from toolsim.core.conversation import Call, Called, CallOutput, Text
from toolsim.wire import restore_hidden
from toolsim.wire.chat.api import CHAT
from toolsim.wire.restore_hidden import answer_key, conversations, whole_key

with_hidden = partial(restore_hidden.with_hidden, api=CHAT)
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well."}
PAIR: Called = (Call("mcp_1", "files__read", "{}"), CallOutput("mcp_1", (Text("text"),)))


def test_conversation_key_covers_all_messages() -> None:
    """A conversation's key depends on its owner and on the roles and texts of all its messages."""
    keys = list(conversations([USER, ANSWER], "me"))
    assert len(set(keys)) == 3
    assert whole_key({"messages": [USER]}, "me") == keys[1]
    assert whole_key({"messages": [USER]}, "you") not in keys
    assert whole_key({"messages": [{**USER, "content": "ho"}]}, "me") not in keys
    assert whole_key({}, "me") == keys[0]


def test_hidden_calls_precede_their_answer() -> None:
    """Calls that the client never saw are inserted into a copy of the request, directly before the answer that followed
    them.
    """
    body: dict[str, Any] = {"model": "m", "messages": [USER, ANSWER, USER, ANSWER]}
    known = {answer_key(whole_key({"messages": [USER]}, "me"), "Well.", ()): [PAIR]}
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


def call(arguments: str, name: str = "f") -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


SAME: list[dict[str, Any]] = [
    {"role": "assistant", "content": " Well.\n"},
    {"role": "assistant", "content": [{"type": "text", "text": "We"}, 3, {"type": "text", "text": "ll."}]},
    {"role": "assistant", "content": "Well.", "name": "x", "tool_calls": None},
]
OTHER: list[Any] = [
    {"role": "assistant", "content": "Well"},
    {"role": "assistant", "content": ""},
    {"role": "assistant"},
    {"role": "assistant", "content": {"text": "Well."}},
    {"role": "user", "content": "Well."},
    {"role": "assistant", "content": "Well.", "tool_calls": call("{}")["tool_calls"]},
    call("{}"),
    "Well.",
]


def test_answer_is_recognized_by_its_text() -> None:
    """An answer in the history is recognized by its text, in any form in which clients store it, but only within its
    own conversation.
    """
    key = answer_key(whole_key({"messages": [USER]}, "me"), "Well.", ())
    for message in SAME + OTHER:
        shown = with_hidden({"messages": [USER, message]}, "me", lambda found: [PAIR] if found == key else [])
        assert (len(shown["messages"]) == 4) == (message in SAME), message


def test_answer_is_recognized_by_its_calls() -> None:
    """An answer in the history is recognized by its calls, even if the client has reformatted the arguments."""
    key = answer_key(whole_key({"messages": [USER]}, "me"), "", [("f", '{"b": 1, "a":[2]}')])
    for message, is_same in (
        (call('{"a":[2],"b":1}'), True),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": '{"a":[2],"b":1}'}}, True),
        (call('{"a":[3],"b":1}'), False),
        (call("not json"), False),
        (call('{"a":[2],"b":1}', "g"), False),
        ({"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}, False),
    ):
        shown = with_hidden({"messages": [USER, message]}, "me", lambda found: [PAIR] if found == key else [])
        assert (len(shown["messages"]) == 4) == is_same, message
