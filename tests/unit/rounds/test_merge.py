from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.turns import whole_call
from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    Ended,
    KeepAlive,
    Opened,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from toolsim.rounds.merge import Merger


def merge(*rounds: list[ClientEvent], text_follows_calls: bool = True, max_calls: int = 0) -> list[ClientEvent]:
    merger = Merger(text_follows_calls=text_follows_calls, max_calls=max_calls)
    emitted: list[ClientEvent] = []
    for index, events in enumerate(rounds):
        if index:
            merger.next_round()
        for event in events:
            emitted += merger.feed(event)
    return emitted


def test_answer_has_one_opening_event() -> None:
    """The merged answer has a single opening event, which comes from the first round."""
    assert merge([Opened("a")], [Opened("b"), TextDelta("x")]) == [Opened("a"), TextDelta("x")]


def test_text_of_a_further_round_starts_a_paragraph() -> None:
    """In an answer that takes several rounds, the text of a later round starts a new paragraph, unless the text before
    it is empty or ends with a line break.
    """
    assert merge([TextDelta("one")], [TextDelta("two"), TextDelta("!")])[1:] == [TextDelta("\n\ntwo"), TextDelta("!")]
    assert merge([TextDelta("one\n")], [KeepAlive(), TextDelta("two")])[-1] == TextDelta("two")
    assert merge([TextDelta("one"), ReasoningDelta("hm")], [TextDelta("two")])[-1] == TextDelta("\n\ntwo")
    assert merge([], [TextDelta("two")]) == [TextDelta("two")]
    assert merge([*whole_call(1)], [TextDelta("two")])[-1] == TextDelta("two")


def test_calls_are_numbered_and_not_repeated() -> None:
    """Calls are numbered consecutively across rounds. A call from an earlier round is dropped if it is repeated, but
    repeated calls within a round are kept.
    """
    repeated = merge(whole_call(7), [*whole_call(7), *whole_call(8, "other"), *whole_call(9, "other")])
    assert repeated == [*whole_call(7), *whole_call(8, "other"), *whole_call(9, "other")]
    assert merge(whole_call(7), whole_call(7, "other")) == [*whole_call(7), *whole_call(8, "other")]


def test_text_after_calls_is_not_sent_to_chat_clients() -> None:
    """If an earlier round contained calls, a chat completions client does not receive the text of later rounds."""
    emitted = merge(whole_call(1), [TextDelta("x"), *whole_call(2, "other")], text_follows_calls=False)
    assert emitted == [*whole_call(1), *whole_call(2, "other")]


def test_answer_with_calls_ends_with_tool_calls() -> None:
    """The merged answer has the finish reason "tool_calls" if and only if it contains calls. Its usage is the sum over
    all rounds that report usage.
    """
    ended: ClientEvent = Ended({0: "stop"}, Usage(1, 2, 3, 4, 5))
    assert merge(whole_call(1), [ended])[-1] == Ended({0: "tool_calls"}, Usage(1, 2, 3, 4, 5))
    merger = Merger(text_follows_calls=True)
    for usage in (Usage(1, 1, 2), None, Usage(2, 2, 4)):
        merger.count(usage)
    assert merger.feed(ended) == [Ended({0: "stop"}, Usage(4, 5, 9, 4, 5))]
    assert merge([Ended({0: "length"})]) == [Ended({0: "length"}, None)]
    assert merge([Ended({0: "tool_calls"})]) == [Ended({0: "stop"}, None)]


def test_broken_call_makes_the_answer_incomplete() -> None:
    """If a call breaks off after its beginning has been sent, the answer ends as incomplete. A call that repeats an
    earlier one is not sent at all.
    """
    broken: list[ClientEvent] = [CallStarted(1, "add"), CallDelta('{"a"'), CallEnded("incomplete")]
    assert merge([*broken, Ended({0: "length"})]) == [*broken, Ended({0: "length"}, None)]
    merger = Merger(text_follows_calls=True)
    for event in (*whole_call(1), *broken):
        merger.feed(event)
    assert merger.ended() == Ended({0: "length"}, None)
    emitted = merge(whole_call(1), [*broken, TextDelta("x"), Ended({0: "length"})])
    assert emitted == [*whole_call(1), TextDelta("x"), Ended({0: "tool_calls"}, None)]


def test_call_limit_applies_across_rounds() -> None:
    emitted = merge(whole_call(1), [*whole_call(2, "b"), *whole_call(3, "c")], max_calls=2)
    assert emitted == [*whole_call(1), *whole_call(2, "b")]


def test_rewound_round_continues_without_a_paragraph() -> None:
    """After ``rewind``, new text is appended directly to the text of the previous round, without starting a new
    paragraph.
    """
    merger = Merger(text_follows_calls=True)
    merger.feed(TextDelta("one"))
    merger.next_round()
    merger.rewind()
    assert merger.feed(TextDelta(" two")) == [TextDelta(" two")]


ROUNDS = st.lists(
    st.lists(st.sampled_from(["a", "b", " text", "more\n"]), max_size=5),
    min_size=1,
    max_size=4,
)


@given(ROUNDS, st.booleans())
def test_call_numbers_increase(rounds: list[list[str]], follows: bool) -> None:
    """The calls of all rounds are emitted in order, with increasing numbers. A call that repeats a call from an earlier
    round is dropped.
    """
    events: list[list[ClientEvent]] = []
    for words in rounds:
        number, out = 1, list[ClientEvent]()
        for word in words:
            if word in ("a", "b"):
                out += whole_call(number, word)
                number += 1
            else:
                out.append(TextDelta(word))
        events.append(out)
    emitted = merge(*events, text_follows_calls=follows)
    numbers = [event.number for event in emitted if isinstance(event, CallStarted)]
    assert numbers == sorted(set(numbers))
    seen: set[str] = set()
    expected: list[str] = []
    for words in rounds:
        calls = [word for word in words if word in ("a", "b") and word not in seen]
        expected += calls
        seen |= set(calls)
    assert [event.name for event in emitted if isinstance(event, CallStarted)] == expected
