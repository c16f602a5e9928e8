"""A store in one SQLite file, which processes on one machine can share, or in the memory of this process.

Committed data survives even if this process is killed, because SQLite uses a write-ahead log (WAL) with
``synchronous=NORMAL``. After a power failure, the most recent writes can be lost, but never only part of a write. Only
the owner can read the file and the files that SQLite creates next to it. Deleted values are overwritten immediately, or
a little later if they are large.

Reads and writes each have a separate thread and connection, so that no read waits for a slow disk write. In each
thread, partitions take turns. If a thread is stuck, queued work fails after its timeout, and the length of the queue is
limited. The connection is reopened after any error, except if the file is locked or the disk is full. A database in
memory has only one connection, and its records are lost when the connection is closed.

Large values have a third thread and connection, which also copies the WAL into the file (the checkpoint). A checkpoint
waits for the disk and would otherwise delay the commit of the current writer. This module's lock lets one thread write
at a time. With SQLite's own lock alone, a waiting thread would wait up to 100 ms before each retry.

A large value is written and deleted in parts, each in a separate transaction, so that a small write waits for one part
at most. After the parts, the record is written. Instead of the value, it contains a number that identifies the parts.
While no record contains this number, the table ``unheld`` does. This is the case before the record is written and after
it is deleted. Parts that a killed process has left behind are deleted when they are ``due``.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Any

from toolsim.core.serial_executor import QueueFull, SerialExecutor
from toolsim.stores.record import MAX_CHAIN, Conflict, Record, Size, Store, StoreError, StoreLimits, check, too_long

SECONDS = 2.0
"""Timeout of one operation, including its time in the queue, in seconds."""
_LOCK_SECONDS = 1.5
_MAX_WAITING = 256
_EVICTED_AT_ONCE = 1000
_EXPIRY_SECONDS = 60.0
_LARGE_BYTES = 1024 * 1024
"""Size above which a value is written in parts by the third thread, in bytes."""
_PART_BYTES = 512 * 1024
_PART_PAUSE_SECONDS = 0.001
"""Pause between writing two parts, in seconds. It lets waiting threads acquire the lock."""
_SWEPT_AT_ONCE = 200
_MAX_WRITES = 3
"""Maximum number of attempts to write a large value. An attempt fails if another process deletes the parts of the
value. This can happen if the clock jumps.
"""
_WRITING_SECONDS = 60.0
"""Timeout for writing all parts of a value, in seconds."""
_CHECKPOINT_BYTES = 4 * 1024 * 1024
"""Number of written bytes after which the WAL is copied into the database file. This is SQLite's default."""
_MAX_WAL_PAGES = 4096
"""Number of 4 KiB pages in the WAL above which writes wait until the entire WAL has been copied, so that its space can
be reused.
"""
# Maximum number of names per query. SQLite accepts 32,766 variables, but old versions accept only 999.
_NAMES_AT_ONCE = 500

_VERSION = 3
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS records (
    key INTEGER PRIMARY KEY,
    partition TEXT NOT NULL,
    id TEXT NOT NULL,
    parent TEXT NOT NULL,
    version INTEGER NOT NULL,
    size INTEGER NOT NULL,
    used REAL NOT NULL,
    value BLOB NOT NULL,
    UNIQUE (partition, id)
);
CREATE INDEX IF NOT EXISTS records_by_use ON records (used, key);
CREATE INDEX IF NOT EXISTS records_of_each_by_use ON records (partition, used, key);
CREATE TABLE IF NOT EXISTS names (
    partition TEXT NOT NULL,
    name TEXT NOT NULL,
    record INTEGER NOT NULL REFERENCES records (key) ON DELETE CASCADE,
    PRIMARY KEY (partition, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS names_by_record ON names (record);
CREATE TABLE IF NOT EXISTS total (records INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO total SELECT 0, 0 WHERE NOT EXISTS (SELECT * FROM total);
CREATE TABLE IF NOT EXISTS shares (partition TEXT PRIMARY KEY, records INTEGER NOT NULL, bytes INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS shares_by_records ON shares (records);
CREATE INDEX IF NOT EXISTS shares_by_bytes ON shares (bytes);
CREATE TABLE IF NOT EXISTS parts (
    value INTEGER NOT NULL,
    number INTEGER NOT NULL,
    bytes BLOB NOT NULL,
    PRIMARY KEY (value, number)
);
CREATE TABLE IF NOT EXISTS unheld (value INTEGER PRIMARY KEY AUTOINCREMENT, due REAL NOT NULL);
DELETE FROM shares;
INSERT INTO shares SELECT partition, count(*), sum(size) FROM records GROUP BY partition;
DROP TRIGGER IF EXISTS added;
CREATE TRIGGER added AFTER INSERT ON records BEGIN
    UPDATE total SET records = records + 1, bytes = bytes + new.size;
    INSERT INTO shares VALUES (new.partition, 1, new.size)
    ON CONFLICT (partition) DO UPDATE SET records = records + 1, bytes = bytes + new.size;
END;
DROP TRIGGER IF EXISTS forgotten;
CREATE TRIGGER forgotten AFTER DELETE ON records BEGIN
    UPDATE total SET records = records - 1, bytes = bytes - old.size;
    UPDATE shares SET records = records - 1, bytes = bytes - old.size WHERE partition = old.partition;
    DELETE FROM shares WHERE partition = old.partition AND records = 0;
    INSERT INTO unheld SELECT old.value, 0 WHERE typeof(old.value) = 'integer';
END;
PRAGMA user_version = {_VERSION};
COMMIT;
"""
_COPY = "PRAGMA wal_checkpoint(PASSIVE)"
_RECORD = "records.id, records.value, records.parent, version, used, size, number, bytes"
_PARTS = "LEFT JOIN parts ON parts.value = records.value"
_ANCESTORS = f"""
WITH RECURSIVE chain (key, id, parent, depth) AS (
    SELECT key, id, parent, 1 FROM records WHERE partition = :partition AND id = :id
    UNION ALL
    SELECT records.key, records.id, records.parent, depth + 1 FROM records JOIN chain
    ON records.partition = :partition AND records.id = chain.parent WHERE depth < {MAX_CHAIN}
)
"""


def open_store(place: str, bounds: StoreLimits) -> Store:
    """Return the store in the file ``place``, or in memory if ``place`` is empty."""
    return SqliteStore(Path(place) if place else None, bounds)


def file_problem(path: Path) -> str:
    """Return why an existing file cannot be used as a store, or "" if it can.

    A locked file is not a problem, because it can be used later. Only SQLite opens the file, even to check its first
    bytes (see ``_make``).
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=0.0)) as base:
            _schema_version(base, path)
    except StoreError as problem:
        return str(problem)
    except sqlite3.DatabaseError as problem:
        is_damaged = getattr(problem, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
        return f"{path}: {problem}" if is_damaged else ""
    return ""


class SqliteStore:
    """Stores records in the file ``path``, or in memory if ``path`` is None. The file is created on first use.

    ``clock`` returns seconds since 1970.
    """

    def __init__(self, path: Path | None, bounds: StoreLimits, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._reader, self._writer, self._hauler = _connections(path)
        self._bounds = bounds
        self._clock = clock
        self._expires_at = 0.0
        self._writing = Lock()  # A thread that writes holds this lock for the duration of each transaction.
        self._written = 0  # The approximate number of bytes that have been written since the last checkpoint.

    async def put(self, partition: str, records: Sequence[Record], expected: Mapping[str, int] | None = None) -> Size:
        """Write records, in a separate thread if they are large. See ``Store.put``."""
        check(records, self._bounds)
        size = sum(record.size for record in records)
        writer = self._hauler if size > _LARGE_BYTES else self._writer
        left = await writer.run(lambda base: self._put(base, partition, records, expected or {}), partition)
        self._written += size
        if self._written >= _CHECKPOINT_BYTES and self._path is not None:
            self._written = 0
            self._hauler.later(self._checkpoint)
        return left

    async def chain(self, partition: str, id: str, max_bytes: int) -> list[Record]:
        """Return a record and the records that it continues. See ``Store.chain``."""
        return await self._reader.run(lambda base: self._chain(base, partition, id, max_bytes), partition)

    async def find(self, partition: str, names: Iterable[str]) -> dict[str, Record]:
        """Return the records with these names. See ``Store.find``."""
        asked = list(dict.fromkeys(names))
        return await self._reader.run(lambda base: self._find(base, partition, asked), partition)

    async def delete(self, partition: str, id: str) -> bool:
        """Delete a record. See ``Store.delete``."""
        was_there = await self._writer.run(lambda base: self._delete(base, partition, id), partition)
        if was_there:
            self._hauler.later(self._sweep)
        return was_there

    async def size(self) -> Size:
        """Return the total size of all partitions. See ``Store.size``."""
        return await self._reader.run(_size)

    async def close(self) -> None:
        """Close all connections. See ``Store.close``."""
        left = self._hauler, self._reader, self._writer
        self._reader, self._writer, self._hauler = _connections(self._path)
        # The connections are closed one at a time, because the last one removes the WAL, but only if no other
        # connection is open.
        for connection in dict.fromkeys(left):
            await connection.close()

    def _put(
        self, base: sqlite3.Connection, partition: str, records: Sequence[Record], expected: Mapping[str, int]
    ) -> Size:
        now = self._clock()
        # The versions are also checked here, because after a conflict there is no need to write large values.
        _expect(base, partition, expected)
        for _ in range(_MAX_WRITES):
            with suppress(_Swept):
                return self._write(base, partition, records, expected, now)
        raise StoreError("writing a large value took too long")

    def _write(
        self,
        base: sqlite3.Connection,
        partition: str,
        records: Sequence[Record],
        expected: Mapping[str, int],
        now: float,
    ) -> Size:
        """Write records and their values. Raises ``_Swept`` if the parts of a value have been deleted."""
        values = [self._value(base, record.value) for record in records]
        with self._transaction(base):
            evicted = self._expire(base, now)
            _expect(base, partition, expected)
            for record, value in zip(records, values, strict=True):
                where = {"partition": partition, "id": record.parent, "now": now}
                if record.parent:
                    used = f"{_ANCESTORS} UPDATE records SET used = :now WHERE key IN (SELECT key FROM chain)"
                    base.execute(used, where)
                key = _insert(base, partition, record, value, now)
                rows = [(partition, name, key) for name in record.names]
                base.executemany("INSERT OR REPLACE INTO names VALUES (?, ?, ?)", rows)
            size = self._evict(base)
        return replace(size, evicted=size.evicted + evicted)

    def _value(self, base: sqlite3.Connection, value: bytes) -> bytes | int:
        """Return the data for the value's column in the record's row.

        If the value is large, write its parts, and return the number that identifies them.
        """
        if len(value) <= _LARGE_BYTES or self._path is None:
            return value
        parts = 0
        for number, start in enumerate(range(0, len(value), _PART_BYTES)):
            with self._transaction(base):
                if not number:
                    due = (self._clock() + _WRITING_SECONDS,)
                    parts = base.execute("INSERT INTO unheld (due) VALUES (?)", due).lastrowid or 0
                elif not base.execute("SELECT 1 FROM unheld WHERE value = ?", (parts,)).fetchone():
                    base.execute("ROLLBACK")
                    raise _Swept
                part = memoryview(value)[start : start + _PART_BYTES]
                base.execute("INSERT INTO parts VALUES (?, ?, ?)", (parts, number, part))
            time.sleep(_PART_PAUSE_SECONDS)
        return parts

    def _sweep(self, base: sqlite3.Connection) -> None:
        """Delete parts that belong to no record. A call deletes a limited number, and later calls delete the rest."""
        one = "SELECT rowid FROM parts WHERE value = ? LIMIT 1"
        for _ in range(_SWEPT_AT_ONCE):
            due = base.execute("SELECT value FROM unheld WHERE due <= ? LIMIT 1", (self._clock(),)).fetchone()
            if due is None:
                return
            with self._transaction(base):
                if not base.execute(f"DELETE FROM parts WHERE rowid IN ({one})", due).rowcount:
                    base.execute("DELETE FROM unheld WHERE value = ?", due)
            time.sleep(_PART_PAUSE_SECONDS)

    @contextmanager
    def _transaction(self, base: sqlite3.Connection) -> Iterator[None]:
        """Hold the lock during a transaction. If an exception is raised, the caller has to roll back."""
        with self._writing:
            base.execute("BEGIN IMMEDIATE")
            yield
            base.execute("COMMIT")

    def _checkpoint(self, base: sqlite3.Connection) -> None:
        """Copy the WAL into the file while other threads write. Before that, delete parts that belong to no record."""
        self._sweep(base)
        ((_, pages, _),) = base.execute(_COPY).fetchall()
        if pages > _MAX_WAL_PAGES:
            with self._writing:  # Other threads may have written to the WAL during the first copy.
                base.execute(_COPY).fetchall()

    def _expire(self, base: sqlite3.Connection, now: float) -> int:
        """Delete some of the expired records, and return their number. Expired records can no longer be read.

        Do nothing if a recent call has already deleted all of them.
        """
        if now < self._expires_at:
            return 0
        oldest = now - self._bounds.seconds
        old = "SELECT key FROM records WHERE used < ? ORDER BY used, key LIMIT ?"
        gone = base.execute(f"DELETE FROM records WHERE key IN ({old})", (oldest, _EVICTED_AT_ONCE)).rowcount
        if gone < _EVICTED_AT_ONCE:
            self._expires_at = now + min(_EXPIRY_SECONDS, self._bounds.seconds / 100)
        return gone

    def _evict(self, base: sqlite3.Connection) -> Size:
        """Delete records that exceed the limits, from the partition with the largest share first.

        Return the store's new size.
        """
        evicted = 0
        while (size := _size(base)).records > self._bounds.records or size.bytes > self._bounds.bytes:
            over = size.records - self._bounds.records
            share = "records" if over > 0 else "bytes"
            largest = base.execute(f"SELECT partition, records FROM shares ORDER BY {share} DESC LIMIT 2").fetchall()
            (partition, records), *others = largest
            # Several records are deleted at once only if the partition keeps the largest share. Otherwise, they are
            # deleted one at a time, because each deletion can make the store small enough, or give another partition
            # the largest share.
            many = max(1, min(over, records - others[0][1] if others else over))
            old = "SELECT key FROM records WHERE partition = ? ORDER BY used, key LIMIT ?"
            evicted += base.execute(f"DELETE FROM records WHERE key IN ({old})", (partition, many)).rowcount
        return replace(size, evicted=evicted)

    def _chain(self, base: sqlite3.Connection, partition: str, id: str, max_bytes: int) -> list[Record]:
        rows = base.execute(
            f"{_ANCESTORS} SELECT depth, {_RECORD} FROM chain JOIN records ON records.key = chain.key {_PARTS} "
            "ORDER BY depth, number",
            {"partition": partition, "id": id},
        )
        found: list[Record] = []
        left = max_bytes
        with closing(rows):
            for _, record in _read(rows, self._clock()):
                if record is None or record.age > self._bounds.seconds:
                    break
                left -= len(record.value)
                if left < 0:
                    raise too_long(max_bytes)
                found.append(record)
        return found[::-1]

    def _find(self, base: sqlite3.Connection, partition: str, names: Sequence[str]) -> dict[str, Record]:
        found: dict[str, Record] = {}
        now = self._clock()
        for start in range(0, len(names), _NAMES_AT_ONCE):
            some = names[start : start + _NAMES_AT_ONCE]
            rows = base.execute(
                f"SELECT name, {_RECORD} FROM names JOIN records ON record = key {_PARTS} "
                f"WHERE names.partition = ? AND name IN ({','.join('?' * len(some))}) AND used >= ? "
                "ORDER BY name, number",
                (partition, *some, now - self._bounds.seconds),
            )
            with closing(rows):
                found.update((name, record) for name, record in _read(rows, now) if record is not None)
        return found

    def _delete(self, base: sqlite3.Connection, partition: str, id: str) -> bool:
        with self._transaction(base):
            self._expire(base, self._clock())
            count = base.execute("DELETE FROM records WHERE partition = ? AND id = ?", (partition, id)).rowcount
        return count > 0


class _Swept(Exception):
    """Raised if the parts of a value were deleted while the value was being written."""


class _Connection:
    """A connection to the database, and the only thread that uses it."""

    def __init__(self, path: Path | None, name: str) -> None:
        self._path = path
        self._place = "memory" if path is None else str(path)
        self._thread = SerialExecutor(f"toolsim-store-{name}", _MAX_WAITING)
        self._base: sqlite3.Connection | None = None
        self._is_left = False

    async def run[T](self, work: Callable[[sqlite3.Connection], T], partition: str = "") -> T:
        """Run ``work`` when it is the partition's turn, and return its result.

        Raises StoreError if ``work`` fails or does not finish in time, or if too many calls are waiting.
        """
        future = self._thread.submit(lambda: self._run(work), partition)
        timer = asyncio.get_running_loop().call_later(SECONDS, _too_late, future)
        try:
            return await future
        except QueueFull:
            raise StoreError("the store is too slow: too many requests are waiting for it") from None
        finally:
            timer.cancel()

    def later(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Run ``work`` after the queued work, and ignore its result.

        If ``work`` fails, it is not retried, because a later operation requests it again.
        """
        self._thread.submit(lambda: self._run(work)).add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )

    async def close(self) -> None:
        """Close the connection after all queued work.

        If the queued work takes too long, the rest of it is dropped, so that it does not delay the exit.
        """
        if self._thread.is_started:
            await asyncio.wait([self._thread.submit_last(self._close)], timeout=SECONDS)
            self._thread.stop()
        self._is_left = True

    def _run[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._is_left:
            raise StoreError("the store was closed before this operation started")
        try:
            if self._base is None:
                self._base = _open(self._path)
            return work(self._base)
        except sqlite3.Error as problem:
            self._recover(problem)
            raise StoreError(f"{self._place}: {problem}") from problem
        except Exception as problem:
            self._roll_back()
            if isinstance(problem, OSError):
                raise StoreError(f"{self._place}: {problem.strerror or problem}") from problem
            raise

    def _recover(self, problem: sqlite3.Error) -> None:
        code = getattr(problem, "sqlite_errorcode", 0) & 0xFF
        if code not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL) or not self._roll_back():
            self._close()

    def _roll_back(self) -> bool:
        if self._base is None:
            return False
        try:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    def _close(self) -> None:
        base, self._base = self._base, None
        if base is not None:
            with suppress(sqlite3.Error):
                base.close()


def _too_late(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(StoreError(f"the store did not respond within {SECONDS:g} s"))


def _connections(path: Path | None) -> tuple[_Connection, _Connection, _Connection]:
    """Return the connections for reading, for writing, and for large values.

    A database in memory uses a single connection for all three.
    """
    if path is None:
        only = _Connection(None, "memory")
        return only, only, only
    return _Connection(path, "read"), _Connection(path, "write"), _Connection(path, "large")


_opening = Lock()


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        with _opening:
            _make(path)
    base = sqlite3.connect(path or ":memory:", timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        for pragma in (
            "journal_mode=WAL",
            "synchronous=NORMAL",
            "foreign_keys=ON",
            "secure_delete=ON",
            "wal_autocheckpoint=0",
        ):
            base.execute(f"PRAGMA {pragma}")
        if _schema_version(base, path) < _VERSION:
            base.executescript(_SCHEMA)
    except BaseException:
        base.close()
        raise
    return base


def _schema_version(base: sqlite3.Connection, path: Path | None) -> int:
    """Return the version of a file's tables, or 0 for an empty file.

    Raises StoreError if a newer version of toolsim wrote the file.
    """
    with closing(base.execute("PRAGMA user_version")) as rows:
        version: int = rows.fetchone()[0]
    if version > _VERSION:
        raise StoreError(f"{path}: a newer version of toolsim wrote this file (format {version})")
    return version


def _make(path: Path) -> None:
    """Create the file, which only its owner can read. SQLite creates related files with the same permissions.

    An existing file is never opened and closed here. Closing it would release this process's locks on it, and the next
    process to exit would delete data that is still being written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def _read(rows: Iterable[tuple[Any, ...]], now: float) -> Iterator[tuple[Any, Record | None]]:
    """Yield the value of the first column, and the record, for each group of rows with the same first value.

    The other columns of each row are ``_RECORD``. If a record's value is stored in parts, there is one row per part. If
    a part is missing, None is yielded instead of the record.
    """
    for first, parts in groupby(rows, itemgetter(0)):
        (_, id, value, parent, version, used, size, *_), *_others = found = list(parts)
        if isinstance(value, int):
            value = _joined([row[-2:] for row in found], size - len(id) - len(parent))
        yield first, None if value is None else Record(id, value, parent, (), version, now - used)


def _joined(parts: Sequence[tuple[int | None, bytes | None]], size: int) -> bytes | None:
    """Join the parts of a value in the order of their numbers.

    Return None if a part is missing or the value is larger than ``size``.
    """
    pieces = [part for _, part in parts if part is not None]
    is_gapless = [number for number, _ in parts] == list(range(len(pieces)))
    if not is_gapless or any(len(piece) != len(pieces[0]) for piece in pieces[:-1]):
        return None
    value = b"".join(pieces)
    # ``size`` is only an upper bound, because it includes names that may now refer to other records. Therefore, the
    # last character is also checked, to detect truncated JSON.
    has_end = value.endswith((b"}", b"]")) or not value.startswith((b"{", b"["))
    return value if has_end and len(value) <= size else None


def _insert(base: sqlite3.Connection, partition: str, record: Record, value: bytes | int, now: float) -> int | None:
    """Insert a record, or replace an existing record, and return the key of its row."""
    statement = "INSERT INTO records (partition, id, parent, version, size, used, value) VALUES (?, ?, ?, ?, ?, ?, ?)"
    if isinstance(value, int) and not base.execute("DELETE FROM unheld WHERE value = ?", (value,)).rowcount:
        base.execute("ROLLBACK")
        raise _Swept
    rest = (record.size, now, value)
    try:
        return base.execute(statement, (partition, record.id, record.parent, 1, *rest)).lastrowid
    except sqlite3.IntegrityError:
        version = _version(base, partition, record.id) + 1
    base.execute("DELETE FROM records WHERE partition = ? AND id = ?", (partition, record.id))
    return base.execute(statement, (partition, record.id, record.parent, version, *rest)).lastrowid


def _expect(base: sqlite3.Connection, partition: str, versions: Mapping[str, int]) -> None:
    """Raise ``Conflict`` unless the records with these IDs have these versions."""
    for id, version in versions.items():
        if _version(base, partition, id) != version:
            raise Conflict(f"{id} has changed in the meantime")


def _version(base: sqlite3.Connection, partition: str, id: str) -> int:
    row = base.execute("SELECT version FROM records WHERE partition = ? AND id = ?", (partition, id)).fetchone()
    return row[0] if row else 0


def _size(base: sqlite3.Connection) -> Size:
    records, size = base.execute("SELECT records, bytes FROM total").fetchone()
    return Size(records, size)
