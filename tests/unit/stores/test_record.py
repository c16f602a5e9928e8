"""Tests for the behavior that all stores share, including a comparison with a simple model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toolsim.stores.record import Conflict, Record, RecordTooLarge, Size, StoreError, StoreLimits
from toolsim.stores.sqlite import SqliteStore
from unit.stores.conftest import Clock, Opened

MANY = 1 << 20


async def test_written_record_is_read(opened: Opened) -> None:
    """A record is read as it was written, with its version. It cannot be found or deleted in another partition."""
    async with opened(StoreLimits(), Clock()) as store:
        value = bytes(range(256))
        await store.put("a", [Record("x", value, names=("n", "m"))])
        assert await store.chain("a", "x", MANY) == [Record("x", value, version=1)]
        assert await store.find("a", ["n", "m", "o"]) == {name: Record("x", value, version=1) for name in "nm"}
        assert await store.chain("b", "x", MANY) == []
        assert await store.find("b", ["n"]) == {}
        assert not await store.delete("b", "x")
        assert (await store.size()).records == 1


async def test_closing_completes_operations_in_progress(opened: Opened) -> None:
    """When a store is closed, the operations in progress are completed. Afterward, the store can be used again."""
    async with opened(StoreLimits(), Clock()) as store:
        puts = [asyncio.create_task(store.put("p", [Record(str(number), b"1")])) for number in range(50)]
        await asyncio.sleep(0)
        await store.close()
        assert [type(result) for result in await asyncio.gather(*puts, return_exceptions=True)] == [Size] * 50
        is_in_memory = isinstance(store, SqliteStore) and store._path is None
        assert (await store.size()).records == (0 if is_in_memory else 50)
        await store.put("p", [Record("again", b"1")])
        await store.close()


async def test_chain_is_read_from_its_beginning(opened: Opened) -> None:
    """A chain consists of a record and all records that it continues, oldest first. If one of them is missing, the
    chain starts after the missing record.
    """
    async with opened(StoreLimits(), Clock()) as store:
        for id, parent in ("a", ""), ("b", "a"), ("c", "b"), ("d", "b"):
            await store.put("p", [Record(id, id.encode(), parent)])
        assert [record.id for record in await store.chain("p", "d", MANY)] == ["a", "b", "d"]
        assert await store.delete("p", "a")
        assert [(record.id, record.parent) for record in await store.chain("p", "c", MANY)] == [("b", "a"), ("c", "b")]
        with pytest.raises(RecordTooLarge):
            await store.chain("p", "c", 1)
        assert len(await store.chain("p", "c", 2)) == 2


async def test_conflicting_write_changes_no_record(opened: Opened) -> None:
    """A write that expects a version other than the stored one raises Conflict and changes no record."""
    async with opened(StoreLimits(), Clock()) as store:
        await store.put("p", [Record("x", b"1")], {"x": 0})
        for expected in ({"x": 0}, {"x": 2}, {"x": 1, "y": 1}):
            with pytest.raises(Conflict):
                await store.put("p", [Record("y", b"2"), Record("x", b"2")], expected)
        await store.put("p", [Record("x", b"3")], {"x": 1, "y": 0})
        assert await store.chain("p", "x", MANY) == [Record("x", b"3", version=2)]
        assert await store.chain("p", "y", MANY) == []


async def test_concurrent_writers_lose_nothing(opened: Opened) -> None:
    """If concurrent writers repeat their writes after each conflict, no write is lost."""
    async with opened(StoreLimits(), Clock()) as store:

        async def add(letter: bytes) -> None:
            while True:
                found = await store.chain("p", "x", MANY)
                value, version = (found[0].value, found[0].version) if found else (b"", 0)
                await asyncio.sleep(0)
                try:
                    await store.put("p", [Record("x", value + letter)], {"x": version})
                except Conflict:
                    continue
                return

        await asyncio.gather(*(add(bytes([number])) for number in range(20)))
        (record,) = await store.chain("p", "x", MANY)
        assert sorted(record.value) == list(range(20))


async def test_least_recently_used_records_are_evicted(opened: Opened) -> None:
    """If there are more records than the limit, the least recently used are evicted. When a conversation continues, its
    earlier records also count as used.
    """
    async with opened(StoreLimits(records=4), clock := Clock()) as store:
        for id, parent in ("root", ""), ("other", ""), ("leaf", "root"), ("last", ""), ("more", "leaf"):
            clock.now += 1
            size = await store.put("p", [Record(id, b"v", parent)])
        assert (size.records, size.evicted) == (4, 1)
        assert await store.chain("p", "other", MANY) == []
        assert [record.id for record in await store.chain("p", "more", MANY)] == ["root", "leaf", "more"]


async def test_bytes_are_bounded(opened: Opened) -> None:
    """If the total size exceeds the limit, the oldest records are evicted. If a record is larger than the limit, it is
    rejected, and no other record is evicted.
    """
    async with opened(StoreLimits(bytes=100), clock := Clock()) as store:
        for id in "abc":
            clock.now += 1
            await store.put("p", [Record(id, b"v" * 39)])
        assert [bool(await store.chain("p", id, MANY)) for id in "abc"] == [False, True, True]
        with pytest.raises(RecordTooLarge):
            await store.put("p", [Record("d", b"v" * 100)])
        assert (await store.size()).bytes == 80


@pytest.mark.parametrize("bounds", [StoreLimits(records=6), StoreLimits(bytes=60)], ids=["records", "bytes"])
async def test_largest_partition_is_evicted_first(bounds: StoreLimits, opened: Opened) -> None:
    """If a limit is exceeded, records in the largest partition are evicted, even if records in other partitions are
    older.
    """
    async with opened(bounds, clock := Clock()) as store:
        for id in "ab":
            clock.now += 1
            await store.put("modest", [Record(id, b"v" * 8)])
        for number in range(20):
            clock.now += 1
            size = await store.put("greedy", [Record(str(number % 10), b"v" * 8)])
        assert (size.records, size.bytes) == (6, 60 - 6)
        assert [bool(await store.chain("modest", id, MANY)) for id in "ab"] == [True, True]
        assert [bool(await store.chain("greedy", str(id), MANY)) for id in range(10)] == [False] * 6 + [True] * 4
        # Records in the largest partition are also evicted to make room for a new partition. Deleted records no longer
        # count against their partition.
        clock.now += 1
        await store.put("new", [Record("x", b"v" * 8)])
        assert not await store.chain("greedy", "6", MANY)
        for id in "789":
            assert await store.delete("greedy", id)
        for id in "cdef":
            clock.now += 1
            size = await store.put("modest", [Record(id, b"v" * 8)])
        assert [bool(await store.chain("modest", id, MANY)) for id in "abcdef"] == [False] + [True] * 5
        assert await store.chain("new", "x", MANY)


async def test_age_is_bounded(opened: Opened) -> None:
    """Once a record has not been used for longer than the maximum age, it can no longer be found by ID or by name."""
    async with opened(StoreLimits(seconds=10), clock := Clock()) as store:
        await store.put("p", [Record("a", b"", names=("n",)), Record("b", b"", names=("m",))])
        clock.now += 9
        await store.put("p", [Record("c", b"", "a")])
        clock.now += 9
        assert [record.id for record in await store.chain("p", "c", MANY)] == ["a", "c"]
        assert await store.chain("p", "b", MANY) == []
        assert set(await store.find("p", ["n", "m"])) == {"n"}
        await store.put("p", [Record("d", b"")])
        assert (await store.size()).records == 3


async def test_record_age(opened: Opened) -> None:
    """The age of a record is the time since it was last written or continued."""
    async with opened(StoreLimits(), clock := Clock()) as store:
        await store.put("p", [Record("a", b"", names=("n",))])
        clock.now += 3
        assert (await store.find("p", ["n"]))["n"].age == pytest.approx(3, abs=0.01)
        await store.put("p", [Record("b", b"", "a")])
        clock.now += 4
        await store.put("p", [Record("c", b"", names=("m",))])
        assert [record.age for record in await store.chain("p", "b", MANY)] == pytest.approx([4, 4], abs=0.01)
        assert (await store.find("p", ["m"]))["m"].age == pytest.approx(0, abs=0.01)


class Model:
    """The expected contents of a store without limits."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], Record] = {}
        self.names: dict[tuple[str, str], str] = {}

    def put(self, partition: str, records: list[Record], expected: dict[str, int]) -> bool:
        for id, version in expected.items():
            held = self.records.get((partition, id))
            if (held.version if held else 0) != version:
                return False
        for record in records:
            held = self.records.get((partition, record.id))
            self.delete(partition, record.id)
            version = (held.version if held else 0) + 1
            self.records[partition, record.id] = replace(record, version=version)
            self.names |= {(partition, name): record.id for name in record.names}
        return True

    def delete(self, partition: str, id: str) -> bool:
        self.names = {key: held for key, held in self.names.items() if (key[0], held) != (partition, id)}
        return self.records.pop((partition, id), None) is not None


PARTITIONS = st.sampled_from("ab")
# A record continues only records with smaller IDs, because real records continue only older records.
RECORDS = st.builds(
    lambda number, value, back, names: Record(
        f"r{number}", value, f"r{number - back}" if 0 < back <= number else "", tuple(names)
    ),
    st.integers(0, 5),
    st.binary(max_size=20).map(lambda value: value.lstrip(b"{[")),
    st.integers(0, 2),
    st.lists(st.sampled_from("nmo"), max_size=2, unique=True),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            PARTITIONS,
            st.lists(RECORDS, min_size=1, max_size=2, unique_by=lambda record: record.id),
            st.dictionaries(st.sampled_from([f"r{number}" for number in range(6)]), st.integers(0, 3), max_size=1),
        ),
        st.tuples(st.just("delete"), PARTITIONS, st.integers(0, 5).map("r{}".format), st.none()),
    ),
    max_size=12,
)


@given(steps=STEPS)
# This test has fewer examples than others, because each example runs transactions.
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=settings.default.max_examples * 3 // 5
)
def test_store_behaves_like_a_plain_model(opened: Opened, steps: list[tuple[str, str, Any, Any]]) -> None:
    """After any sequence of writes and deletions, the store and a plain in-memory model have the same records, chains,
    names and sizes.
    """
    asyncio.run(_play(opened, steps))


async def _play(opened: Opened, steps: list[tuple[str, str, Any, Any]]) -> None:
    model = Model()
    async with opened(StoreLimits(), clock := Clock()) as store:
        for verb, partition, what, expected in steps:
            clock.now += 1
            if verb == "delete":
                assert await store.delete(partition, what) == model.delete(partition, what)
                continue
            try:
                await store.put(partition, what, expected)
                assert model.put(partition, what, expected)
            except Conflict:
                assert not model.put(partition, what, expected)
        size = await store.size()
        assert size.records == len(model.records)
        assert size.bytes == sum(record.size for record in model.records.values())
        for partition in "ab":
            for number in range(6):
                chain, id = [], f"r{number}"
                while record := model.records.get((partition, id)):
                    chain.append(replace(record, names=()))
                    id = record.parent
                assert await store.chain(partition, f"r{number}", MANY) == chain[::-1]
            found = await store.find(partition, "nmo")
            assert {name: record.id for name, record in found.items()} == {
                name: id for (held, name), id in model.names.items() if held == partition
            }


def test_errors_share_a_base_class() -> None:
    """All errors that stores raise have a common base class, so that callers can catch them together."""
    assert issubclass(Conflict, StoreError)
    assert issubclass(RecordTooLarge, StoreError)
