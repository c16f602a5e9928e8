"""Tests for the store of background answers. If several proxies try to end the same answer, only one succeeds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from toolsim.background import background_store as background_store_module
from toolsim.background.background_store import BackgroundStore, Ending, Lease
from toolsim.proxy.response_store import LOST, ResponseStore
from toolsim.stores.record import Record, StoreError
from toolsim.stores.url import StoreUrl
from toolsim.wire.responses.background import value_of

WAITS, OVER, CUT = (
    value_of(json.dumps({"status": status}).encode(), b"[]", stream=True)
    for status in ("queued", "completed", "cancelled")
)


@pytest.fixture(params=["memory", "sqlite"])
async def memory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ResponseStore]:
    made = ResponseStore()
    made.configure(StoreUrl(request.param, str(tmp_path / "store") if request.param == "sqlite" else ""))
    yield made
    await made.close()


@pytest.fixture
def background_store(memory: ResponseStore) -> BackgroundStore:
    return BackgroundStore(memory)


async def opened(background_store: BackgroundStore) -> Lease:
    return await background_store.open("p", "resp_1", WAITS, "", ["i1"])


async def test_life_cycle_of_an_answer(background_store: BackgroundStore, memory: ResponseStore) -> None:
    """An answer is first queued, then in progress, and finally completed. It is stored together with its events and
    items, and its lease is removed.
    """
    lease = await opened(background_store)
    entry = await background_store.read("p", "resp_1")
    assert entry is not None
    assert (entry.value, entry.state) == (WAITS, "queued")
    lease.state = "in_progress"
    for _ in "12":
        assert await background_store.renew(lease)
    entry = await background_store.read("p", "resp_1")
    assert entry is not None
    assert entry.state == "in_progress"
    assert await background_store.end(lease, Ending(OVER, "", ("i1", "o1"), b"0\nevents")) is True
    await background_store.clean_up(lease)
    entry = await background_store.read("p", "resp_1")
    assert entry is not None
    assert (entry.value, entry.state, entry.version) == (OVER, "", 0)
    assert await background_store.events("p", "resp_1") == b"0\nevents"
    assert set(await memory.find("p", ["i1", "o1", lease.name])) == {"i1", "o1"}
    for partition, id in ("q", "resp_1"), ("p", "i1"), ("p", "resp_2"), ("p", lease.name):
        assert await background_store.read(partition, id) is None


async def test_answer_ends_only_once(background_store: BackgroundStore) -> None:
    """An answer can be finished or canceled only once. Later attempts have no effect."""
    lease = await opened(background_store)
    entry = await background_store.read("p", "resp_1")
    assert entry is not None
    assert await background_store.finalize(entry, CUT)
    assert not await background_store.finalize(entry, CUT)
    assert not await background_store.renew(lease)
    assert await background_store.end(lease, Ending(OVER)) is False
    lease = await background_store.open("p", "resp_2", WAITS, "", [])
    entry = await background_store.read("p", "resp_2")
    assert entry is not None
    assert await background_store.end(lease, Ending(OVER)) is True
    assert not await background_store.finalize(entry, CUT)
    await background_store.clean_up(lease)
    assert not await background_store.finalize(entry, CUT)
    entry = await background_store.read("p", "resp_2")
    assert entry is not None
    assert entry.value == OVER


async def test_deleted_answer_is_never_written_again(background_store: BackgroundStore, memory: ResponseStore) -> None:
    """After an answer has been deleted, the proxy that produces it can no longer write anything. The stored events are
    deleted as well.
    """
    lease = await opened(background_store)
    await background_store.delete("p", "resp_1")
    assert not await background_store.renew(lease)
    assert await background_store.end(lease, Ending(OVER, events=b"0\n")) is False
    assert await background_store.read("p", "resp_1") is None
    lease = await opened(background_store)
    assert await background_store.end(lease, Ending(OVER, events=b"0\n")) is True
    await background_store.delete("p", "resp_1")
    assert await background_store.events("p", "resp_1") is None
    assert await memory.find("p", ["resp_1", lease.name]) == {}


async def test_expired_lease_can_be_renewed_until_the_answer_fails(
    background_store: BackgroundStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the lease of an answer has expired, the answer counts as abandoned. The lease can still be renewed until
    another proxy marks the answer as failed.
    """
    lease = await opened(background_store)
    monkeypatch.setattr(background_store_module, "LEASE_SECONDS", -1.0)
    entry = await background_store.read("p", "resp_1")
    assert entry is not None
    assert entry.state == ""
    assert await background_store.renew(lease)
    assert not await background_store.finalize(entry, CUT)
    monkeypatch.undo()
    entry = await background_store.read("p", "resp_1")
    assert entry is not None
    assert entry.state == "queued"


async def test_write_that_was_reported_as_failed_is_recognized(
    background_store: BackgroundStore, memory: ResponseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write can succeed although the store reports an error. A repeated write then recognizes the stored data as its
    own and succeeds.
    """
    put = memory._put
    late = [True]

    async def slow(partition: str, records: Sequence[Record], expected: Any = None) -> None:
        await put(partition, records, expected)
        if late:
            late.pop()
            raise StoreError("too late")

    lease = await opened(background_store)
    monkeypatch.setattr(memory, "_put", slow)
    with pytest.raises(StoreError):
        await background_store.renew(lease)
    assert await background_store.renew(lease)
    late.append(True)
    with pytest.raises(StoreError):
        await background_store.end(lease, Ending(OVER))
    assert await background_store.end(lease, Ending(OVER)) is True


async def test_conversation_survives_concurrent_writes(
    background_store: BackgroundStore, memory: ResponseStore
) -> None:
    """An answer's items are added to its conversation even if another client writes to the conversation at the same
    time. If the conversation has been deleted, nothing is written.
    """
    await memory.write("p", [Record("conv_1", b'{"conversation":{},"items":[{"id":"i0"}]}')], {})
    lease = await opened(background_store)
    find = memory.last

    async def disturbed(partition: str, id: str) -> Record | None:
        found = await find(partition, id)
        memory.last = find  # type: ignore[method-assign]
        await memory.write("p", [Record("conv_1", b'{"conversation":{},"items":[{"id":"x"}]}')], {})
        return found

    memory.last = disturbed  # type: ignore[method-assign]
    ending = Ending(OVER, "", (), b"", "conv_1", b'[{"id":"i1"}]', [{"id": "o1"}])
    assert await background_store.end(lease, ending) is True
    found = await memory.last("p", "conv_1")
    assert found is not None
    assert [item["id"] for item in json.loads(found.value)["items"]] == ["x", "i1", "o1"]
    lease = await background_store.open("p", "resp_2", WAITS, "", [])
    await memory.forget("p", ["conv_1"])
    assert await background_store.end(lease, ending) == LOST
    assert await background_store.renew(lease)
    await memory.forget("p", [lease.name])
    await memory.write("p", [found], {})
    assert await background_store.end(lease, ending) is False


async def test_events_are_stored_for_followers_and_at_the_end(
    background_store: BackgroundStore, memory: ResponseStore
) -> None:
    """Events are stored while the answer is produced if a follower requests them, and otherwise when the answer ends.
    They are not stored if the answer has been deleted.
    """
    lease = await opened(background_store)
    assert not await background_store.events_requested(lease)
    await background_store.request_events("p", "resp_1")
    assert await background_store.events_requested(lease)
    assert await background_store.renew(lease, b"0\none")
    assert await background_store.events("p", "resp_1") == b"0\none"
    assert await background_store.renew(lease)
    assert await background_store.events("p", "resp_1") == b"0\none"
    entry = await background_store.read("p", "resp_1")
    assert entry is not None
    assert await background_store.finalize(entry, CUT)
    assert not await background_store.renew(lease, b"0\nmore")
    await background_store.store_events(lease, b"0\nall")
    assert await background_store.events("p", "resp_1") == b"0\nall"
    assert not await background_store.events_requested(lease)
    await background_store.request_events("p", "resp_1")
    await background_store.delete("p", "resp_1")
    await background_store.store_events(lease, b"0\nall")
    assert await background_store.events("p", "resp_1") is None
    assert not await background_store.events_requested(lease)


def test_damaged_lease_has_no_owner() -> None:
    """A lease record that cannot be parsed is read as a lease without an owner."""
    for wrong in b"", b"x y z", b"1", b"\xff \xff \xff":
        assert background_store_module._read(Record("lease_r", wrong)) == ("", "")
