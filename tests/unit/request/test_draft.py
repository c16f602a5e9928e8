"""Tests for draft messages: which texts and other parts are added to the current message, and which begin a new
message.
"""

from __future__ import annotations

from toolsim.core.conversation import HostedItem, Image, Message, Text
from toolsim.request.transcript import Draft

HOSTED = HostedItem({"type": "web_search_call"})


def message(role, *parts, name=None):
    return Message(role, tuple(Text(part) if isinstance(part, str) else part for part in parts), name)


def test_texts_of_one_role_are_joined():
    """A message's first text is joined to the preceding text of the same role, separated by an empty line. All other
    parts remain separate.
    """
    draft = Draft()
    for one in message("user", "a", "b"), message("user", "c", "", "d"), message("user", Image("data:,"), "e"):
        draft.message(one)
    assert draft.finish() == [message("user", "a", "b\n\nc", "d", Image("data:,"), "e")]


def test_other_role_or_name_begins_a_message():
    """A message with another role or name begins a new message, even if it has no text. A hosted item ends the current
    message.
    """
    ann, bob = message("user", "a", name="ann"), message("user", "b", name="bob")
    draft = Draft()
    for one in ann, bob, message("user", "c"), message("assistant"):
        draft.message(one)
    draft.item(HOSTED)
    draft.message(message("assistant", "d"))
    assert draft.finish() == [
        ann,
        bob,
        message("user", "c"),
        message("assistant", ""),
        HOSTED,
        message("assistant", "d"),
    ]


def test_records_are_lines():
    """Adjacent records, such as ``[function_call …]``, become lines of one message. An empty line separates records
    from other text.
    """
    draft = Draft()
    draft.message(message("user", "a"))
    draft.record("user", "[1]")
    draft.record("user", "[2]")
    draft.parts([Image("data:,")])
    draft.record("user", "[3]")
    draft.message(message("user", "b"))
    draft.message(message("user", "c", name="ann"))
    draft.record("user", "[4]")
    draft.record("assistant", "[5]")
    assert draft.finish() == [
        message("user", "a\n\n[1]\n[2]", Image("data:,"), "[3]\n\nb"),
        message("user", "c", name="ann"),
        message("user", "[4]"),
        message("assistant", "[5]"),
    ]
