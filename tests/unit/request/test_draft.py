"""Drafts of continued histories: messages and report equal those of a history written from scratch."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsimlib.conversation import Call, CallOutput, HostedItem, Image, Message, Text, Thought
from toolsimlib.plan import Policy
from toolsimlib.report import Report
from toolsimlib.request import draft as room
from toolsimlib.request import transcript
from toolsimlib.request.draft import Drafts
from toolsimlib.request.transcript import flatten

TURN = (Call("a", "f", '{"city": "Paris"}'), CallOutput("a", (Text("21 °C"),)))


@pytest.fixture(autouse=True)
def drafts(monkeypatch):
    """Start without drafts, and cache those of short histories as well."""
    drafts = Drafts()
    monkeypatch.setattr(transcript, "drafts", drafts)
    monkeypatch.setattr(room, "_MIN_ITEMS", 1)
    return drafts


def written(items, **settings):
    report = Report()
    return flatten(items, Policy(), report, **settings), report


def from_scratch(items, **settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transcript, "drafts", Drafts())
        return written(items, **settings)


TEXTS = st.sampled_from(["", "Hi", "[function_call_output call_id=a output=1]", "x" * 40])
PARTS = st.lists(st.one_of(st.builds(Text, TEXTS), st.just(Image("data:,"))), max_size=3).map(tuple)
ITEMS = st.one_of(
    st.builds(Message, st.sampled_from(["system", "user", "assistant"]), PARTS, st.sampled_from([None, "ann"])),
    st.builds(Call, st.sampled_from(["a", "b"]), st.just("f"), TEXTS),
    st.builds(CallOutput, st.sampled_from(["a", "b"]), PARTS),
    st.builds(Thought, TEXTS),
    st.just(HostedItem({"type": "web_search_call"})),
)
SETTINGS = st.fixed_dictionaries({"keep_hosted": st.booleans(), "records": st.booleans(), "is_round": st.booleans()})


@given(st.lists(ITEMS, max_size=12), st.lists(st.tuples(st.integers(0, 12), st.lists(ITEMS, max_size=4), SETTINGS)))
def test_a_continued_history_is_written_as_one_from_scratch(items, others):
    """Histories start alike and branch off anywhere, even inside a message that is still open, with any setting."""
    assert written(items) == from_scratch(items)
    for count, more, settings in others:
        history = [*items[:count], *more]
        assert written(history, **settings) == from_scratch(history, **settings)


def test_what_is_cached_is_not_written_again(monkeypatch):
    """Only new items are written, even if the client rebuilds its history."""
    seen = []
    add = transcript._add
    monkeypatch.setattr(transcript, "_add", lambda item, *rest: (seen.append(item), add(item, *rest)))
    written(TURN * 3)
    assert len(seen) == 6
    written([replace(item) for item in TURN * 4])
    assert len(seen) == 8
    written(TURN * 4)
    assert len(seen) == 8
    written([Message("user", (Text("Hi"),)), *TURN * 4])
    assert len(seen) == 17


def test_the_longest_beginning_is_continued(monkeypatch):
    """Even if a shorter one, from which another history branched off, was used later."""
    written(TURN * 4)
    written([*TURN * 2, Thought("another way")])
    written(TURN * 2)
    seen = []
    add = transcript._add
    monkeypatch.setattr(transcript, "_add", lambda item, *rest: (seen.append(item), add(item, *rest)))
    assert written(TURN * 5) == from_scratch(TURN * 5)
    assert len(seen) == 2 + 10


def test_messages_are_the_callers_own():
    """A caller that changes the returned list changes nothing for the next caller."""
    first = written(TURN)[0]
    expected = list(first)
    first.clear()
    assert written(TURN)[0] == expected


def test_a_message_that_stays_open_is_not_shared():
    """A history that continues a cached one, and is not cached itself, leaves the cached one as it was."""
    hi = Message("user", (Text("Hi"),))
    written([*TURN, hi])
    for more in ((Text("and this"), Image("data:,")), (Text("or that"), Image("data:,"))):
        history = [*TURN, hi, Message("user", more)]
        assert written(history) == from_scratch(history)
    assert written([*TURN, hi, Thought("hm")]) == from_scratch([*TURN, hi, Thought("hm")])


def test_what_is_cached_is_bounded(drafts, monkeypatch):
    """Histories that are short, large, or more than text are not cached; of the others, the latest are."""
    monkeypatch.setattr(room, "_MIN_ITEMS", 2)
    monkeypatch.setattr(room, "_MAX_CHARS", 200)
    monkeypatch.setattr(room, "_ITEM_CHARS", 0)
    monkeypatch.setattr(room, "_MAX_DRAFTS", 3)
    written(TURN[:1])
    written([*TURN, CallOutput("a", (Text("x" * 200),))])
    written([*TURN, CallOutput("a", (Image("data:,"),))])
    written([*TURN, HostedItem({"type": "web_search_call"})])
    assert drafts._latest == ()

    def latest():
        return [kept.items[2].text for kept in drafts._latest]

    for number in range(9):
        written([*TURN, Thought(str(number))])
    assert latest() == ["8", "7", "6"]
    written([*TURN, Thought("6"), *TURN])
    assert latest() == ["6", "8", "7"]
    assert [kept.draft.count for kept in drafts._latest] == [5, 3, 3]
    written([*TURN, Thought("6"), *TURN, Thought("x" * 200)])
    assert [kept.draft.count for kept in drafts._latest] == [5, 3, 3]
    written([*TURN, Thought("6"), *TURN, Thought("x" * 110)])
    assert latest() == ["6", "8"]


def test_items_count_even_without_text(drafts):
    """A million empty messages would be a quarter of a gigabyte."""
    empty = Message("user", (Text(""),))
    written([empty] * 32_000)
    assert len(drafts._latest) == 1
    written([empty] * 33_000)
    assert [kept.draft.count for kept in drafts._latest] == [32_000]
