"""Tests for the SQLite store and for failures of its file. ``test_record.py`` covers the behavior that all stores
share.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from toolsim.stores import sqlite
from toolsim.stores.record import Conflict, Record, RecordTooLarge, StoreError, StoreLimits
from toolsim.stores.sqlite import SqliteStore
from unit.stores.conftest import Clock, in_parts

MANY = 1 << 20


async def rest(store: SqliteStore) -> None:
    """Wait until the thread that writes large values has completed its pending work."""
    await store._hauler.run(lambda _: None)


def parts(path: Path) -> tuple[int, int]:
    """Return the number of stored parts of large values, and the number of large values that do not belong to a
    record.
    """
    with closing(sqlite3.connect(path)) as base:
        (count,) = base.execute("SELECT count(*) FROM parts").fetchone()
        (unheld,) = base.execute("SELECT count(*) FROM unheld").fetchone()
    return count, unheld


async def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    """The files of the store have mode 0600, even if they had a different mode before. A new folder has mode 0700."""
    path = tmp_path / "new" / "store"
    store = SqliteStore(path, StoreLimits())
    await store.put("p", [Record("x", b"1")])
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(("store", "store-wal", "store-shm"), 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await store.close()
    path.chmod(0o644)
    await store.size()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await store.close()


async def test_records_survive_a_restart(tmp_path: Path) -> None:
    for version in 1, 2, 3:
        store = SqliteStore(tmp_path / "store", StoreLimits())
        await store.put("p", [Record("x", b"%d" % version)], {"x": version - 1})
        await store.close()
    store = SqliteStore(tmp_path / "store", StoreLimits())
    assert await store.chain("p", "x", MANY) == [Record("x", b"3", version=3)]
    await store.close()


async def test_two_processes_share_a_file(tmp_path: Path) -> None:
    """A write through one connection is immediately visible to another. A connection cannot overwrite a change that it
    has not seen.
    """
    one, other = (SqliteStore(tmp_path / "store", StoreLimits()) for _ in "12")
    await one.put("p", [Record("x", b"1")], {"x": 0})
    assert await other.chain("p", "x", MANY) == [Record("x", b"1", version=1)]
    await other.put("p", [Record("x", b"2")], {"x": 1})
    with pytest.raises(Conflict):
        await one.put("p", [Record("x", b"3")], {"x": 1})
    await one.close()
    await other.close()


async def test_failed_read_hides_no_later_write(tmp_path: Path) -> None:
    """After a failed read, the next read finds later writes, even while the exception still exists. An open cursor
    would keep the connection at an old snapshot of the file.
    """
    store = SqliteStore(tmp_path / "store", StoreLimits())
    await store.put("p", [Record(str(number), b"1", str(number - 1)) for number in range(9)])
    with pytest.raises(RecordTooLarge) as raised:
        await store.chain("p", "8", 1)
    await store.put("p", [Record("later", b"1")])
    assert [record.id for record in await store.chain("p", "later", MANY)] == ["later"]
    assert raised.value.__traceback__ is not None
    await store.close()


async def test_unexpected_exception_ends_its_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an unexpected exception during a write, no part of the write remains, and later writes succeed."""
    store, other = (SqliteStore(tmp_path / "store", StoreLimits()) for _ in "12")
    await store.put("p", [Record("a", b"1")])
    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "_evict", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await store.put("p", [Record("b", b"2")])
    await asyncio.wait_for(other.put("p", [Record("c", b"3")]), 2)
    await store.put("p", [Record("d", b"4")])
    found = [await store.chain("p", name, MANY) for name in "abcd"]
    assert [len(records) for records in found] == [1, 0, 1, 1]
    await store.close()
    await other.close()


async def test_closing_by_another_process_keeps_locks(tmp_path: Path) -> None:
    """If another process opens and closes the SQLite file, the connections of the store keep their locks and continue
    to work.
    """
    path = tmp_path / "store"
    store = SqliteStore(path, StoreLimits())
    await store.put("p", [Record("x", b"1")])
    await store.size()
    look = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM records')"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", look, str(path)], check=True)
    await store.put("p", [Record("y", b"2")])
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM records").fetchone() == (2,)
    await store.close()


async def test_lock_delays_only_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process holds the write lock, reads succeed, but writes fail after a limited time. Once the lock is
    released, writes succeed again.
    """
    monkeypatch.setattr(sqlite, "_LOCK_SECONDS", 0.1)
    store = SqliteStore(tmp_path / "store", StoreLimits())
    await store.put("p", [Record("x", b"1")])
    with closing(sqlite3.connect(tmp_path / "store", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            await store.put("p", [Record("y", b"1")])
        assert len(await store.chain("p", "x", MANY)) == 1
        other.execute("ROLLBACK")
    await store.put("p", [Record("y", b"1")])
    await store.close()


async def test_slow_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an operation takes too long, the caller receives an error, but the operation is still completed. The number of
    waiting operations is limited.
    """
    monkeypatch.setattr(sqlite, "_MAX_WAITING", 2)
    store = SqliteStore(tmp_path / "store", StoreLimits())
    await store.put("p", [Record("x", b"1")])
    monkeypatch.setattr(sqlite, "SECONDS", 0.1)
    begun, done = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        begun.set()
        done.wait(60)

    slow = asyncio.create_task(store._writer.run(hang))
    await asyncio.to_thread(begun.wait, 60)
    tries = [asyncio.create_task(store.put("p", [Record(id, b"1")])) for id in "abc"]
    results = await asyncio.gather(slow, *tries, return_exceptions=True)
    assert [type(result) for result in results] == [StoreError] * 4
    assert "too many" in str(results[-1])
    done.set()
    while store._writer._thread.waiting:
        await asyncio.sleep(0.01)
    monkeypatch.setattr(sqlite, "SECONDS", 60)
    await store.put("p", [Record("z", b"1")])
    assert [len(await store.chain("p", id, MANY)) for id in "abcz"] == [1, 1, 0, 1]
    await store.close()


async def test_large_write_does_not_delay_small_ones(tmp_path: Path) -> None:
    """While a large value waits for the disk, other clients can write small values."""
    store, go = SqliteStore(tmp_path / "store", StoreLimits()), threading.Event()
    await store.put("a", [Record("first", b"1")])
    slow = asyncio.create_task(store._hauler.run(lambda _: go.wait(60), "a"))
    large = asyncio.create_task(store.put("a", [Record("large", bytes(2 << 20))]))
    await store.put("b", [Record("small", b"1")])
    assert not large.done()
    go.set()
    await asyncio.gather(slow, large)
    assert len((await store.chain("a", "large", 4 << 20))[0].value) == 2 << 20
    await store.close()


async def test_small_write_waits_for_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small value waits for at most one part of a large value to be written. The large value cannot be found until it
    is complete.
    """
    in_parts(monkeypatch, size=100, part=10)
    begun, go = threading.Event(), threading.Event()

    def pause(_: float) -> None:
        begun.set()
        go.wait(60)

    monkeypatch.setattr("toolsim.stores.sqlite.time.sleep", pause)
    store, other = (SqliteStore(tmp_path / "store", StoreLimits()) for _ in "12")
    large = asyncio.create_task(store.put("a", [Record("large", bytes(range(101)), names=("name",))]))
    await asyncio.to_thread(begun.wait, 60)
    await store.put("b", [Record("small", b"1")])
    await other.put("b", [Record("another", b"1")])
    assert parts(tmp_path / "store") == (1, 1)
    assert (await store.chain("a", "large", MANY), await other.find("a", ["name"])) == ([], {})
    go.set()
    await large
    assert parts(tmp_path / "store") == (11, 0)
    assert (await other.chain("a", "large", MANY))[0].value == bytes(range(101))
    await store.close()
    await other.close()


async def test_parts_of_a_large_value_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a large value is deleted, replaced or evicted, its parts are deleted and overwritten. The parts of other
    values are kept.
    """
    in_parts(monkeypatch, size=100, part=10)
    store = SqliteStore(tmp_path / "store", StoreLimits(records=3))
    for id in ("deleted", "replaced", "evicted"):
        await store.put("p", [Record(id, f"secret {id}".encode() * 10)])
    await store.delete("p", "deleted")
    for id in ("replaced", "kept"):
        await store.put("p", [Record(id, b"x" * 101)])
    await store.put("p", [Record("more", b"1")])
    await rest(store)
    assert parts(tmp_path / "store") == (22, 0)
    await store.close()
    assert b"secret" not in (tmp_path / "store").read_bytes()


async def test_deletion_proceeds_in_small_amounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of deleted values are removed a few at a time, so that the next large value does not have to wait for
    all of them.
    """
    in_parts(monkeypatch, size=100, part=10)
    store = SqliteStore(tmp_path / "store", StoreLimits())
    for id in "xy":
        await store.put("p", [Record(id, bytes(101))])
    await rest(store)  # Wait for a checkpoint, because it also removes the parts of deleted values.
    monkeypatch.setattr(sqlite, "_SWEPT_AT_ONCE", 8)
    assert await store.delete("p", "x")
    for left in ((14, 1), (11, 0)):
        await rest(store)
        assert parts(tmp_path / "store") == left
        await store.put("p", [Record("small", b"1")])
    await store.close()


async def test_abandoned_parts_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a process is killed while it writes a large value, the parts of the value are deleted after a minute."""
    in_parts(monkeypatch, size=100, part=10)
    clock = Clock()
    store = SqliteStore(tmp_path / "store", StoreLimits(), clock)
    await store._hauler.run(lambda base: store._value(base, bytes(101)))
    for seconds, left in ((0.0, (22, 1)), (61.0, (11, 0))):
        clock.now += seconds
        await store.put("p", [Record("large", bytes(101))])
        await rest(store)
        assert parts(tmp_path / "store") == left
    await store.close()


@pytest.mark.parametrize("damage", ["number = 0", "number = 4", "number = 10", "1"])
async def test_incomplete_value_is_not_found(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record whose large value lacks a part cannot be found by ID, by name or as part of a chain."""
    in_parts(monkeypatch, size=100, part=10)
    store, whole = SqliteStore(tmp_path / "store", StoreLimits()), b'{"x": "%s"}' % (b"y" * 92)
    await store.put("p", [Record("large", whole, names=("ä", "b")), Record("next", b"{}", "large")])
    (large, next_), named = await store.chain("p", "next", MANY), await store.find("p", ["b"])
    assert (large.value, named["b"].value, next_.value) == (whole, whole, b"{}")
    with closing(sqlite3.connect(tmp_path / "store")) as base:
        base.execute(f"DELETE FROM parts WHERE {damage}")
        base.commit()
    assert await store.chain("p", "large", MANY) == []
    assert await store.find("p", ["ä"]) == {}
    assert [record.id for record in await store.chain("p", "next", MANY)] == ["next"]
    await store.close()


async def test_clock_jump_during_a_write_repeats_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the clock jumps forward during a write, another process might delete the parts of the value. The value is then
    written again.
    """
    in_parts(monkeypatch, size=100, part=10)
    clock = Clock()
    store, other = (SqliteStore(tmp_path / "store", StoreLimits(), clock) for _ in "12")
    write, jumps = SqliteStore._value, [61.0]

    def value(base: sqlite3.Connection, data: bytes) -> bytes | int:
        written = write(store, base, data)
        if jumps:
            clock.now += jumps.pop()
            with closing(sqlite3.connect(tmp_path / "store")) as base:
                SqliteStore._sweep(other, base)
                base.commit()
        return written

    monkeypatch.setattr(store, "_value", value)
    await store.put("p", [Record("large", bytes(101))])
    (found,) = await store.chain("p", "large", MANY)
    assert (found.value, jumps, parts(tmp_path / "store")) == (bytes(101), [], (11, 0))
    await store.close()
    await other.close()


async def test_value_whose_parts_were_deleted_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process has deleted the parts of a large value before it was complete, the write fails and leaves no
    data behind.
    """
    in_parts(monkeypatch, size=100, part=10)
    monkeypatch.setattr(sqlite, "_WRITING_SECONDS", -1.0)
    store, other = (SqliteStore(tmp_path / "store", StoreLimits()) for _ in "12")
    monkeypatch.setattr(store, "_value", lambda base, _: swept(SqliteStore._value(store, base, bytes(101))))

    def swept(value: bytes | int) -> bytes | int:
        with closing(sqlite3.connect(tmp_path / "store")) as base:
            SqliteStore._sweep(other, base)
            base.commit()
        return value

    with pytest.raises(StoreError, match="too long"):
        await store.put("p", [Record("large", bytes(101))])
    assert parts(tmp_path / "store") == (0, 0)
    assert await store.chain("p", "large", MANY) == []
    await store.close()
    await other.close()


async def test_closing_waits_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk hangs, closing the store waits only for a limited time. Queued operations are dropped, and their
    callers receive an error.
    """
    store = SqliteStore(tmp_path / "store", StoreLimits())
    await store.put("p", [Record("x", b"1")])
    monkeypatch.setattr(sqlite, "SECONDS", 0.1)
    done = threading.Event()
    slow = asyncio.create_task(store._writer.run(lambda _: done.wait(60)))
    behind = asyncio.create_task(store.put("p", [Record("y", b"1")]))
    await asyncio.sleep(0)
    # ``close`` cannot wait for the slow operation, which is released only afterward.
    await asyncio.wait_for(store.close(), 30)
    done.set()
    results = await asyncio.gather(slow, behind, return_exceptions=True)
    assert [type(result) for result in results] == [StoreError] * 2
    await asyncio.sleep(0.7)
    assert [len(await store.chain("p", id, MANY)) for id in "xy"] == [1, 0]
    await store.close()
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


async def test_full_disk_is_an_error_until_space_is_freed(tmp_path: Path) -> None:
    """If the disk is full, a write fails without storing any of its records. Once space is available, writes succeed
    again.
    """
    store = SqliteStore(tmp_path / "store", StoreLimits())
    await store.put("p", [Record("x", b"1")])
    await store._writer.run(lambda base: base.execute("PRAGMA max_page_count = 1").fetchall())
    with pytest.raises(StoreError, match="full"):
        await store.put("p", [Record("small", b"1"), Record("large", bytes(1 << 19))])
    assert await store.chain("p", "small", MANY) == []
    assert len(await store.chain("p", "x", MANY)) == 1
    await store._writer.run(lambda base: base.execute("PRAGMA max_page_count = 100000").fetchall())
    await store.put("p", [Record("large", bytes(1 << 20))])
    await store.close()


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
async def test_corrupt_file_is_an_error(content: bytes, tmp_path: Path) -> None:
    """A corrupt file is left unchanged, and the errors give its path. Once the file has been removed, the store
    works.
    """
    path = tmp_path / "store"
    path.write_bytes(content)
    store = SqliteStore(path, StoreLimits())
    for _ in "12":
        with pytest.raises(StoreError, match=str(path)):
            await store.put("p", [Record("x", b"1")])
        with pytest.raises(StoreError, match=str(path)):
            await store.chain("p", "x", MANY)
    assert path.read_bytes() == content
    path.unlink()
    await store.put("p", [Record("x", b"1")])
    await store.close()


async def test_unwritable_location_is_an_error(tmp_path: Path) -> None:
    """If the store's path is a folder, or its parent folder is a file, the error names the path."""
    (tmp_path / "file").write_text("")
    for path in tmp_path, tmp_path / "file" / "store":
        store = SqliteStore(path, StoreLimits())
        with pytest.raises(StoreError, match=str(path)):
            await store.size()
        await store.close()


async def test_newer_file_is_not_written(tmp_path: Path) -> None:
    """A file with a newer format version, which toolsim does not know, is not modified."""
    with closing(sqlite3.connect(tmp_path / "store")) as base:
        base.execute("PRAGMA user_version = 99")
    store = SqliteStore(tmp_path / "store", StoreLimits())
    with pytest.raises(StoreError, match="newer"):
        await store.put("p", [Record("x", b"1")])
    await store.close()


async def test_file_of_the_first_version_is_migrated(tmp_path: Path) -> None:
    """A file with the first format version is migrated. Its existing records count toward the shares of their
    partitions.
    """
    path, store = tmp_path / "store", SqliteStore(tmp_path / "store", StoreLimits(records=4))
    for partition, id in (("a", "1"), ("b", "1"), ("b", "2"), ("b", "3")):
        await store.put(partition, [Record(id, b"v")])
    await store.close()
    with closing(sqlite3.connect(path)) as base:
        base.executescript("DROP TABLE shares; DROP TRIGGER added; DROP TRIGGER forgotten; PRAGMA user_version = 1;")
        base.executescript(
            "CREATE TRIGGER added AFTER INSERT ON records BEGIN "
            "UPDATE total SET records = records + 1, bytes = bytes + new.size; END; "
            "CREATE TRIGGER forgotten AFTER DELETE ON records BEGIN "
            "UPDATE total SET records = records - 1, bytes = bytes - old.size; END;"
        )
    assert (await store.put("c", [Record("1", b"v")])).records == 4
    held = [bool(await store.chain(*each, MANY)) for each in (("a", "1"), ("b", "1"), ("b", "2"), ("c", "1"))]
    assert held == [True, False, True, True]
    await store.close()


async def test_large_value_of_the_second_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large value that an older version of toolsim stored in one piece can be read, replaced and deleted."""
    path, store = tmp_path / "store", SqliteStore(tmp_path / "store", StoreLimits())
    for id in "xy":
        await store.put("p", [Record(id, bytes(101))])
    await store.close()
    with closing(sqlite3.connect(path)) as base:
        base.executescript("DROP TABLE parts; DROP TABLE unheld; DROP TRIGGER forgotten; PRAGMA user_version = 2;")
    in_parts(monkeypatch, size=100, part=10)
    assert (await store.chain("p", "x", MANY))[0].value == bytes(101)
    await store.put("p", [Record("x", b"x" * 101)], {"x": 1})
    assert await store.delete("p", "y")
    assert [record.value for record in await store.chain("p", "x", MANY)] == [b"x" * 101]
    assert (await store.size()).records == 1
    assert parts(path) == (11, 0)
    await store.close()


async def test_deleted_value_is_overwritten(tmp_path: Path) -> None:
    """A deleted value is overwritten, so the file no longer contains it."""
    store = SqliteStore(tmp_path / "store", StoreLimits())
    await store.put("p", [Record("x", b"a secret of sorts")])
    await store.delete("p", "x")
    await store.close()
    assert b"a secret of sorts" not in (tmp_path / "store").read_bytes()


WRITER = """
import asyncio, sys
from pathlib import Path
from toolsim.stores.record import Record, StoreLimits
from toolsim.stores import sqlite
from toolsim.stores.sqlite import SqliteStore

async def write(path, first, large):
    sqlite._LARGE_BYTES = sqlite._PART_BYTES = int(large)
    store = SqliteStore(Path(path), StoreLimits())
    number, parent = int(first), ""
    while True:
        id = f"r{number}"
        both = [Record(id, id.encode() * 500, parent, (f"n{number}",)), Record(f"twin{number}", id.encode() * 500)]
        await store.put("p", both, {id: 0})
        print(id, flush=True)
        number, parent = number + 1, id

asyncio.run(write(*sys.argv[1:]))
"""


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("large", [MANY, 700])
async def test_kill_9_loses_no_confirmed_write(large: int, tmp_path: Path) -> None:
    """If the process is killed at any moment, all confirmed writes are in the file. Other writes are stored completely
    or not at all.
    """
    random, promised, path = Random(5), -1, tmp_path / "store"
    for _ in range(int(os.environ.get("TOOLSIM_KILLS", "20"))):
        command = [sys.executable, "-c", WRITER, str(path), str(promised + 2), str(large)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            time.sleep(random.random() * 0.05)
            writer.send_signal(signal.SIGKILL)
            confirmed = [first, *writer.stdout.read().splitlines()]
        promised = max(int(line.strip()[1:]) for line in confirmed if line.strip())
        with closing(sqlite3.connect(path)) as base:
            assert base.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            ids = {id for (id,) in base.execute("SELECT id FROM records")}
            (count,) = base.execute("SELECT records FROM total").fetchone()
            held = "SELECT value FROM records WHERE typeof(value) = 'integer'"
            lost = f"SELECT count(*) FROM parts WHERE value NOT IN ({held} UNION SELECT value FROM unheld)"
            assert base.execute(lost).fetchone() == (0,)
        assert count == len(ids)
        store = SqliteStore(path, StoreLimits())
        for line in confirmed:
            (*_, record) = await store.chain("p", line.strip(), MANY * 100)
            assert record.value == line.strip().encode() * 500
        assert {f"twin{id[1:]}" for id in ids if id[0] == "r"} == {id for id in ids if id[0] == "t"}
        await store.close()


async def test_in_memory_store_writes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In-memory stores do not write files and do not share records. When an in-memory store is closed, its records are
    lost.
    """
    monkeypatch.chdir(tmp_path)
    one, other = SqliteStore(None, StoreLimits()), SqliteStore(None, StoreLimits())
    await asyncio.gather(*[one.put("p", [Record(f"x{number}", b"1")]) for number in range(9)])
    assert (await one.size()).records == 9
    assert await one.chain("p", "x3", MANY) == [Record("x3", b"1", version=1)]
    assert (await other.size()).records == 0
    await one.close()
    assert (await one.size()).records == 0
    assert list(tmp_path.iterdir()) == []
    await one.close()
    await other.close()


async def test_in_memory_error_names_no_file() -> None:
    """The error message of an in-memory store contains "memory" instead of a path."""
    store = SqliteStore(None, StoreLimits())
    await store._writer.run(lambda base: base.execute("DROP TABLE total"))
    with pytest.raises(StoreError, match=r"^memory: no such table"):
        await store.size()
    await store.close()


async def test_wal_is_copied_into_the_file(tmp_path: Path) -> None:
    """The contents of the write-ahead log (WAL) are periodically copied into the database file. The WAL is then reused
    from its beginning.
    """
    store = SqliteStore(tmp_path / "store", StoreLimits())
    for number in range(200):
        await store.put("p", [Record(f"x{number}", b"x" * 200_000)])
        if number % 20 == 19:
            await rest(store)
    assert (tmp_path / "store-wal").stat().st_size < 30_000_000
    assert (tmp_path / "store").stat().st_size > 20_000_000
    await store.close()


async def test_failed_copy_loses_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the write-ahead log (WAL) cannot be copied into the database file, its records can still be read, and the next
    write tries to copy it again.
    """
    tries: list[int] = []

    def fail(self: SqliteStore, base: sqlite3.Connection) -> None:
        tries.append(1)
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(SqliteStore, "_checkpoint", fail)
    store = SqliteStore(tmp_path / "store", StoreLimits())
    for number in range(3):
        await store.put("p", [Record(f"x{number}", b"x" * 4 * MANY)])
    assert [record.id for record in await store.chain("p", "x2", 5 * MANY)] == ["x2"]
    await store.close()
    assert len(tries) == 3
