"""The response store, with storage that works and with storage that fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from toolsim.core.errors import ApiError
from toolsim.core.plan import StoredAs
from toolsim.core.report import Report
from toolsim.proxy.jobs import PageResult
from toolsim.proxy.response_store import LOST, UNAVAILABLE, ResponseStore
from toolsim.proxy.stored_context import StoredContext
from toolsim.stores.record import Conflict, Record, Size, StoreError, StoreLimits
from toolsim.stores.url import StoreUrl
from toolsim.wire.responses.stored import Recalled, References, items_of

MANY = 1 << 20
ANSWER = json.dumps({"id": "resp_1", "status": "completed", "output": [{"id": "o1"}]}).encode()


def memory(bounds: StoreLimits | None = None) -> ResponseStore:
    made = ResponseStore()
    made.configure(StoreUrl("memory", bounds=bounds or StoreLimits()))
    return made


def turn(id: str, references: References | None = None) -> StoredContext:
    return StoredContext(
        "p", stored_as=StoredAs(id), references=references or References(), own=b'[{"id":"i1"}]', names=("i1",)
    )


async def test_stored_answer_is_found() -> None:
    """A stored answer is found by its ID, together with its items and the answers that it continues. Other owners
    cannot find it.
    """
    made = memory()
    assert await made.store(turn("resp_1"), ANSWER, ["o1"]) is True
    assert await made.store(turn("resp_2", References("resp_1")), ANSWER, ["o2"]) is True
    recalled = await made.recall("p", References("resp_2", items=("i1", "o2")), MANY)
    assert isinstance(recalled, Recalled)
    assert [len(items_of(json.loads(record))) for record in recalled.records] == [2, 2]
    assert set(recalled.holders) == {"i1", "o2"}
    for partition, references in (
        ("q", References("resp_1")),
        ("p", References("resp_3")),
        ("q", References("", "", ("o1",))),
    ):
        refused = await made.recall(partition, references, MANY)
        assert isinstance(refused, ApiError)
        assert "not found" in refused.message


async def test_conversation_without_its_beginning_is_not_found() -> None:
    """If the first answer of a conversation has been evicted, the conversation cannot be continued. The error names the
    missing answer.
    """
    made = memory(StoreLimits(records=1))
    await made.store(turn("resp_1"), ANSWER, [])
    await made.store(turn("resp_2", References("resp_1")), ANSWER, [])
    refused = await made.recall("p", References("resp_2"), MANY)
    assert isinstance(refused, ApiError)
    assert (refused.message, refused.status) == ("Previous response with id 'resp_1' not found.", 400)
    assert made.evicted == 1


async def test_oversized_context_is_a_413() -> None:
    """If the stored data that a request refers to exceeds the size limit for requests, the result is an error with
    status 413.
    """
    made = memory()
    await made.store(turn("resp_1"), ANSWER, [])
    refused = await made.recall("p", References("resp_1"), 10)
    assert isinstance(refused, ApiError)
    assert refused.status == 413


async def test_answer_is_added_to_its_conversation() -> None:
    """An answer is appended to its conversation even if other writers change the conversation at the same time."""
    made = memory()
    store = made._store
    assert store is not None
    await store.put("p", [Record("conv_1", b'{"conversation":{},"items":[{"id":"i0"}]}')])
    conflicts = [Conflict("x")] * 3
    put = store.put

    async def disturbed(*arguments: Any) -> Size:
        if conflicts:
            raise conflicts.pop()
        return await put(*arguments)

    store.put = disturbed  # type: ignore[method-assign]
    assert await made.store(turn("resp_1", References(conversation="conv_1")), ANSWER, ["o1"]) is True
    recalled = await made.recall("p", References(conversation="conv_1", items=("o1",)), MANY)
    assert isinstance(recalled, Recalled)
    assert [item["id"] for item in items_of(json.loads(recalled.records[0]))] == ["i0", "i1", "o1"]


async def test_answer_of_a_deleted_conversation_fails() -> None:
    """If a conversation has been deleted during a turn, storing its answer fails, and the client receives an error."""
    assert await memory().store(turn("resp_1", References(conversation="conv_1")), ANSWER, []) == LOST


class Broken:
    """A store on which every operation fails."""

    async def put(self, *_: object) -> Size:
        raise StoreError("down")

    async def chain(self, *_: object) -> list[Record]:
        raise StoreError("down")

    find = chain


async def test_store_failures_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A failed read is an error for the client. A failed write is an error only if the answer belongs to a
    conversation. Every failure is counted, but only the first is logged.
    """
    made = memory()
    works, made._store = made._store, Broken()  # type: ignore[assignment]
    for _ in "12":
        assert await made.recall("p", References("resp_1"), MANY) == UNAVAILABLE
        assert await made.recall("p", References(items=("o1",)), MANY) == UNAVAILABLE
        assert await made.store(turn("resp_1"), ANSWER, []) is False
        assert await made.store(turn("resp_1", References(conversation="conv_1")), ANSWER, []) == LOST
    assert made.errors == {"read": 4, "write": 4}
    made._store = works
    assert await made.store(turn("resp_1"), ANSWER, []) is True
    assert [record.getMessage() for record in caplog.records] == [
        "toolsim: the store cannot read: down",
        "toolsim: the store cannot write: down",
        "toolsim: the store can write again",
    ]
    lines = [line for family in made.families() for line in family.lines()]
    assert 'toolsim_store_errors_total{what="read"} 4' in lines
    assert "toolsim_store_records 1" in lines


class Lying(Broken):
    """A store that raises an unexpected exception."""

    async def chain(self, *_: object) -> list[Record]:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    find = chain


async def test_any_store_exception_is_a_failure() -> None:
    """Any exception raised by a store counts as a failure, so no request is answered without its context."""
    made = memory()
    made._store = Lying()  # type: ignore[assignment]

    async def respond(_: bytes | None) -> PageResult:
        raise AssertionError

    assert await made.recall("p", References("resp_1"), MANY) == UNAVAILABLE
    assert await made.recall("p", References(items=("o1",)), MANY) == UNAVAILABLE
    assert (await made.serve("p", "resp_1", respond)).error == UNAVAILABLE
    assert made.errors["read"] == 3


async def test_background_records_are_inaccessible() -> None:
    """Internal records about background answers cannot be read or continued through the API, not even by their
    owner.
    """
    made = memory()
    for name in ("events_resp_1", "lease_resp_1", "wanted_resp_1"):
        await made.write("p", [Record(name, b'{"response":{"output":[]},"input":[]}')], {})
        seen: list[bytes | None] = []

        async def respond(value: bytes | None, seen: list[bytes | None] = seen) -> PageResult:
            seen.append(value)
            return PageResult(Report(), UNAVAILABLE)

        await made.serve("p", name, respond)
        assert seen == [None]
        refused = await made.recall("p", References(name), MANY)
        assert isinstance(refused, ApiError)
        assert "not found" in refused.message


async def test_records_are_written_with_versions(caplog: pytest.LogCaptureFixture) -> None:
    """A record is written only if the stored version is the expected version. A failed read or write is counted, but a
    version conflict is not.
    """
    made = memory()
    await made.write("p", [Record("a", b"1", names=("n",)), Record("conv_1", b"2")], {"a": 0})
    assert made.size.records == 2
    assert {name: record.value for name, record in (await made.find("p", ["n", "m"])).items()} == {"n": b"1"}
    found = await made.last("p", "conv_1")
    assert found is not None
    assert (found.value, found.version) == (b"2", 1)
    with pytest.raises(Conflict):
        await made.write("p", [Record("a", b"3")], {"a": 0})
    await made.forget("p", ["a", "conv_1", "b"])
    assert await made.last("p", "conv_1") is None
    assert (await made.find("p", ["n"]), made.errors) == ({}, {"read": 0, "write": 0})
    made._store = Broken()  # type: ignore[assignment]
    for work in made.write("p", [], {}), made.find("p", ["n"]), made.last("p", "conv_1"):
        with pytest.raises(StoreError):
            await work
    made._store = None
    with pytest.raises(StoreError):
        await made.forget("p", ["a"])
    assert made.errors == {"read": 2, "write": 2}
    assert "cannot write" in caplog.text


def test_store_is_reopened_only_if_it_changes(tmp_path: Path) -> None:
    """The store is reopened only if its URL changes. If the store is removed, its metrics are removed as well."""
    made = memory()
    first = made._store
    made.configure(StoreUrl("memory"))
    assert made._store is first
    made.configure(StoreUrl("sqlite", str(tmp_path / "store")))
    assert made._store is not first
    made.configure(None)
    assert not made.is_on
    assert made.families() == []


async def test_replaced_store_is_closed(tmp_path: Path) -> None:
    """If a store is replaced, or is closed at shutdown, its pending writes are completed and its files are closed."""
    made, file = ResponseStore(), tmp_path / "store"
    made.configure(StoreUrl("sqlite", str(file)))
    stored = [asyncio.create_task(made.store(turn(f"resp_{number}"), ANSWER, [])) for number in range(20)]
    await asyncio.sleep(0)
    made.configure(StoreUrl("sqlite", str(tmp_path / "other")))
    assert await asyncio.gather(*stored) == [True] * 20
    await made.store(turn("resp_20"), ANSWER, [])
    await made.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "store"]
    made.configure(StoreUrl("sqlite", str(file)))
    assert isinstance(await made.recall("p", References("resp_19"), MANY), Recalled)
    await made.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "store"]


async def _never(_: bytes | None) -> PageResult:
    raise AssertionError("there is nothing to be asked about")


async def test_store_removed_during_a_turn_is_reported() -> None:
    """If the store is removed during a turn, requests that need the store fail, and other answers report ``store:
    false``."""
    made = memory()
    made.configure(None)
    assert await made.recall("p", References("resp_1"), MANY) == UNAVAILABLE
    assert await made.store(turn("resp_1"), ANSWER, []) is False
    assert await made.store(turn("resp_1", References(conversation="conv_1")), ANSWER, []) == LOST
    done = await made.serve("p", "resp_1", _never)
    assert done.error == UNAVAILABLE
    assert made.errors == {"read": 0, "write": 0}
    await made.close()
