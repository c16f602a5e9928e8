"""Tests for labels of requests (text, turn and step), and for grouping requests by conversation."""

from __future__ import annotations

import pytest
from toolsim.core.conversation import Call, CallOutput, ConversationLabel, Item, Message, Text, label_of
from toolsim.proxy.reporting import outcome
from toolsim.proxy.reporting.outcome import Conversations


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def says(text: str) -> Message:
    return Message("assistant", (Text(text),))


SYSTEM = Message("system", (Text("It is noon."),))
FIRST: tuple[Item, ...] = (SYSTEM, user("What is the weather in Bonn?"))
SECOND: tuple[Item, ...] = (
    *FIRST,
    Call("c1", "f", "{}"),
    Call("c2", "f", "{}"),
    CallOutput("c1", ()),
    CallOutput("c2", ()),
)
THIRD: tuple[Item, ...] = (*SECOND, says("Rain."), user("And\n\nin  Paris?"))


@pytest.mark.parametrize(
    ("items", "words", "where"),
    [
        ((), "", "#7 turn 1"),
        (FIRST, "What is the weather in Bonn?", "#7 turn 1"),
        (SECOND, "What is the weather in Bonn?", "#7 turn 1 step 2"),
        ((*SECOND, Call("c3", "f", "{}"), CallOutput("c3", ())), "What is the weather in Bonn?", "#7 turn 1 step 3"),
        (THIRD, "And in Paris?", "#7 turn 2"),
        ((user("Some context."), user("A question.")), "A question.", "#7 turn 1"),
        ((user("One."), SYSTEM, user("Two.")), "Two.", "#7 turn 1"),
    ],
)
def test_position_of_a_request(items: tuple[Item, ...], words: str, where: str) -> None:
    """Each user message begins a turn, and each tool output begins a step. Consecutive user messages count as one, as
    do consecutive tool outputs.
    """
    found = label_of(items)
    assert (found.words, found.position(7)) == (words, where)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("word " * 100, "word " * 11 + "word…"),
        ("<environment_details>\nlinux <b>6</b>\n</environment_details>\nAsk.", "Ask."),
        ("<task>\nAsk.\n</task>", "Ask."),
        ("Is 1 < 2 and 3 > 2?", "Is 1 < 2 and 3 > 2?"),
        ("<a>" * 30_000 + "Ask.", "<a>" * 19 + "<a…"),
    ],
)
def test_label_contains_the_users_text(text: str, words: str) -> None:
    """The label of a request contains the user's text, without tags that programs have added. It is shortened to fit
    into a list.
    """
    assert label_of([user(text)]).words == words


def test_requests_of_a_conversation_share_a_number() -> None:
    """Requests in the same conversation have the same number, even if other requests arrive in between or the
    instructions change.
    """
    conversations = Conversations()
    assert conversations.number(label_of(FIRST)) == 1
    assert conversations.number(label_of([user("Something else.")])) == 2
    assert conversations.number(label_of(SECOND)) == 1
    assert conversations.number(label_of([Message("system", (Text("It is one."),)), *THIRD[1:]])) == 1
    assert conversations.number(label_of([user("Something else."), says("Yes?"), user("No.")])) == 2
    assert conversations.number(label_of([user("And in Paris?")])) == 3
    assert conversations.number(ConversationLabel()) == 4


def test_edited_question_continues_the_conversation() -> None:
    conversations = Conversations()
    assert [conversations.number(label_of(items)) for items in (FIRST, THIRD)] == [1, 1]
    assert conversations.number(label_of([*SECOND, says("Rain."), user("And in Rome?")])) == 1


def test_known_conversations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of known conversations is limited. The least recently continued conversations are forgotten."""
    monkeypatch.setattr(outcome, "_MAX_KNOWN", 3)
    conversations = Conversations()
    assert conversations.number(label_of(FIRST)) == 1
    for number in range(2, 10):
        assert conversations.number(label_of([user(str(number))])) == number
        assert conversations.number(label_of(FIRST)) == 1
    assert conversations.number(label_of([user("2")])) == 10
