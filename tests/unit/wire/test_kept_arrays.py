"""A cached array is found by its source, or by its identity, and by nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from toolsimlib.wire.kept_arrays import Cut, KeptArray, KeptArrays
from toolsimlib.wire.request_body import read_body, source_of


def kept(source: str) -> KeptArray:
    return KeptArray(source, [source])


def keep(store: KeptArrays, entry: KeptArray) -> None:
    cut = store.cut("x", entry.source, 0, len(entry.source), entry)
    assert store.put_back(cut, {"x": json.loads(cut.text)})


def test_what_was_cut_out_is_put_back() -> None:
    """The array itself replaces its source; everything else is unchanged."""
    store, array = KeptArrays(1, 1, 9), kept("[1, 2]")
    cut = store.cut("x", '{"a": 0, "x": [1, 2], "b": 3}', 14, 20, array)
    document = json.loads(cut.text)
    assert store.put_back(cut, document)
    assert document == {"a": 0, "x": array.array, "b": 3}
    assert document["x"] is array.array


@pytest.mark.parametrize("document", [{}, {"x": "word"}, {"y": None}, {"x": None}])
def test_nothing_is_kept_that_stood_elsewhere(document: dict[str, object]) -> None:
    """If the word is not the value of the key, the document is unchanged, and the array is not cached."""
    store, array, before = KeptArrays(1, 1, 9), kept("[1]"), dict(document)
    assert not store.put_back(Cut("x", "", array), document)
    assert document == before
    assert store.find("[1]", 0) is store.of(array.array) is None


def test_the_latest_are_kept() -> None:
    """A bounded number: using one makes it the latest, and the one unused for longest is dropped."""
    store, arrays = KeptArrays(3, 1, 99), [kept(f"[{number}]") for number in range(4)]
    for entry in (*arrays[:3], arrays[0], arrays[3]):
        keep(store, entry)
    assert [store.of(entry.array) is entry for entry in arrays] == [True, False, True, True]
    assert [store.find(entry.source, 0) is entry for entry in arrays] == [True, False, True, True]


def test_an_array_replaces_the_one_that_it_continues() -> None:
    """So does one with the same source: neither the older source nor the older array is cached any more."""
    store, first, second, third, other = KeptArrays(2, 1, 99), kept("[1"), kept("[1,2"), kept("[1,2"), kept("[3")
    for entry in (other, first, second, third):
        keep(store, entry)
    assert [store.of(entry.array) for entry in (first, second, third, other)] == [None, None, third, other]
    assert store.find("[1,2]", 0) is third
    assert store.find("[1]", 0) is None
    assert store.find("..[3]", 2) is other


@pytest.mark.parametrize(("source", "is_kept"), [("[1]", False), ("[12]", True), ("[1234]", True), ("[12345]", False)])
def test_what_is_small_or_huge_is_not_kept(source: str, is_kept: bool) -> None:
    """A source has a least size, and no source may be larger than all of them together."""
    store, array = KeptArrays(9, 4, 6), kept(source)
    keep(store, array)
    assert store.of(array.array) is (array if is_kept else None)


def test_all_together_are_bounded() -> None:
    """If all sources are too large together, the oldest are forgotten; one that is too large alone changes nothing."""
    store, arrays = KeptArrays(9, 1, 12), [kept(f"[{number}]") for number in range(5)]
    for entry in arrays:
        keep(store, entry)
    assert [store.of(entry.array) is entry for entry in arrays] == [False, True, True, True, True]
    larger = kept("[5, 6, 7]")
    keep(store, larger)
    assert [store.of(entry.array) is entry for entry in (*arrays, larger)] == [False] * 4 + [True] * 2
    keep(store, kept("[8, 9, 10, 11]"))
    assert [store.of(entry.array) is entry for entry in (*arrays, larger)] == [False] * 4 + [True] * 2


def test_what_is_empty_is_not_kept() -> None:
    """The source of an empty history would also be the beginning of arrays that are not histories."""
    store, array = KeptArrays(9, 1, 9), KeptArray("[    ]", [])
    keep(store, array)
    assert store.of(array.array) is None


def test_only_the_array_itself_is_known() -> None:
    """An equal one is a different one."""
    store, array = KeptArrays(9, 1, 9), kept("[1]")
    keep(store, array)
    assert store.of(list(array.array)) is store.of(None) is None


def test_no_two_have_the_same_number() -> None:
    """By its number other modules identify an array, even after it has left the cache."""
    assert len({kept("[1]").number for _ in range(9)}) == 9


@pytest.fixture
def hasty() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty")
def test_threads_may_read_bodies_at_the_same_time() -> None:
    """If no worker process can be started, a thread does the large jobs: every body equals the parser's result."""
    tools = [[{"type": "function", "name": f"f_{number}", "description": "x" * 1_000}] for number in range(40)]
    bodies = [json.dumps({"tools": tool, "input": [{"content": "x" * 4_096}, tool]}).encode() for tool in tools]

    def read(first: int) -> None:
        for step in range(400):
            number = (step * 7 + first) % 40
            body = read_body(bodies[number])
            assert body == {"tools": tools[number], "input": [{"content": "x" * 4_096}, tools[number]]}
            known = source_of(body["tools"])
            assert known is None or known.source == json.dumps(tools[number])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read, range(4)))
