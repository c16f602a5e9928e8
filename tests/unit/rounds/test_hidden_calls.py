"""Tests for the temporary storage of calls that were not shown to the client."""

from __future__ import annotations

from toolsim.core.conversation import Call, Called, CallOutput, Text
from toolsim.rounds.hidden_calls import MAX_ANSWERS, MAX_BYTES, HiddenCalls


def pair(text: str = "x") -> Called:
    return Call("mcp_1", "files__read", "{}"), CallOutput("mcp_1", (Text(text),))


def test_calls_are_found_by_their_conversation() -> None:
    """Hidden calls are found by a key for their conversation. New calls replace the stored calls of the conversation.
    For an unknown key, no calls are found.
    """
    hidden = HiddenCalls()
    hidden.put(b"a", [pair("x")], "me")
    hidden.put(b"a", [pair("x"), pair("y")], "me")
    assert hidden.find(b"a") == (pair("x"), pair("y"))
    assert hidden.find(b"b") == ()


def test_stored_calls_are_limited() -> None:
    """The number and the total size of stored hidden calls are limited. The least recently used entries are dropped
    first.
    """
    hidden = HiddenCalls()
    for number in range(MAX_ANSWERS + 1):
        hidden.put(str(number).encode(), [pair()], "me")
        hidden.find(b"0")
    assert hidden.find(b"0")
    assert hidden.find(b"1") == ()
    hidden.put(b"large", [pair("x" * (MAX_BYTES - 1_000))], "me")
    assert hidden.find(b"large")
    assert hidden.find(b"2") == ()
    hidden.put(b"larger", [pair("x" * MAX_BYTES)], "me")
    assert hidden.find(b"larger") == ()


def test_client_evicts_only_its_own_entries() -> None:
    """If a client stores too many calls, only that client's entries are dropped."""
    hidden = HiddenCalls()
    hidden.put(b"mine", [pair()], "me")
    for number in range(MAX_ANSWERS + 10):
        hidden.put(str(number).encode(), [pair()], "greedy")
    assert [bool(hidden.find(name)) for name in (b"mine", b"0", b"11")] == [True, False, True]
    hidden.put(b"large", [pair("x" * (MAX_BYTES - 5_000))], "greedy")
    assert [bool(hidden.find(name)) for name in (b"mine", b"500", b"large")] == [True, False, True]
