"""A store in one SQLite file, for one machine, or in this process's memory. Other processes may use the file too.

What is committed survives the end of this process at any moment (WAL, ``synchronous=NORMAL``); a machine that loses its
power may lose the last moments, but never half of a write. Only the owner can read the file and those that SQLite puts
beside it. Deleted values are overwritten.

Reads and writes have a thread and a connection each, so that no read waits for a slow disk write, and partitions take
turns. A stuck thread delays queued work only until that times out, and the queue is bounded. After an error that is not
about a lock or a full disk the connection is reopened. In memory there is only one connection, and the records are gone
once it is closed.

Large values have a third thread and connection, which also copies from the WAL into the file (the checkpoint): that
waits for the disk, and would otherwise belong to the commit of whoever writes just then. One of the two writes at a
time, by a lock of ours: SQLite's own would have the other look again after up to 100 ms. So whoever writes little waits
for the writing of a large value at most.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from toolsimlib.one_thread import Crowded, OneThread
from toolsimlib.store.record import MAX_CHAIN, Bounds, Conflict, Record, Size, Store, StoreError, check, too_long

SECONDS = 2.0
"""How long one operation may take, its wait included."""
_LOCK_SECONDS = 1.5
_MAX_WAITING = 256
_EVICTED_AT_ONCE = 1000
_EXPIRY_SECONDS = 60.0
_LARGE_BYTES = 1024 * 1024
"""What is written at once, and is larger than this, is written by the third thread."""
_CHECKPOINT_BYTES = 4 * 1024 * 1024
"""So much has been written when the WAL is copied into the file; SQLite's own measure."""
_MAX_WAL_PAGES = 4096
"""Of 4 KiB. Beyond that nobody writes until all of it is copied: only then it is written from its beginning again."""
# Names per query: SQLite accepts 32,766 variables, older versions 999.
_NAMES_AT_ONCE = 500

_VERSION = 2
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
END;
PRAGMA user_version = {_VERSION};
COMMIT;
"""
_COPY = "PRAGMA wal_checkpoint(PASSIVE)"
_ANCESTORS = f"""
WITH RECURSIVE chain (key, id, parent, depth) AS (
    SELECT key, id, parent, 1 FROM records WHERE partition = :partition AND id = :id
    UNION ALL
    SELECT records.key, records.id, records.parent, depth + 1 FROM records JOIN chain
    ON records.partition = :partition AND records.id = chain.parent WHERE depth < {MAX_CHAIN}
)
"""


def open_store(place: str, bounds: Bounds) -> Store:
    """Return the store in the file ``place``, or in memory if that is empty."""
    return SqliteStore(Path(place) if place else None, bounds)


class SqliteStore:
    """Stores records in the file ``path``, created when first needed, or in memory if it is None.

    ``clock``: seconds since 1970.
    """

    def __init__(self, path: Path | None, bounds: Bounds, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._reader, self._writer, self._hauler = _connections(path)
        self._bounds = bounds
        self._clock = clock
        self._expires_at = 0.0
        self._writing = Lock()  # Held by the thread that writes, for as long as it takes.
        self._written = 0  # Bytes since the last checkpoint, roughly.

    async def put(self, partition: str, records: Sequence[Record], expected: Mapping[str, int] | None = None) -> Size:
        """As ``Store``."""
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
        """As ``Store``."""
        return await self._reader.run(lambda base: self._chain(base, partition, id, max_bytes), partition)

    async def find(self, partition: str, names: Iterable[str]) -> dict[str, Record]:
        """As ``Store``."""
        asked = list(dict.fromkeys(names))
        return await self._reader.run(lambda base: self._find(base, partition, asked), partition)

    async def delete(self, partition: str, id: str) -> bool:
        """As ``Store``."""
        return await self._writer.run(lambda base: self._delete(base, partition, id), partition)

    async def size(self) -> Size:
        """As ``Store``."""
        return await self._reader.run(_size)

    async def close(self) -> None:
        """As ``Store``."""
        left = self._hauler, self._reader, self._writer
        self._reader, self._writer, self._hauler = _connections(self._path)
        # One after the other: the last to leave tidies up, which it can only while it is alone.
        for connection in dict.fromkeys(left):
            await connection.close()

    def _put(
        self, base: sqlite3.Connection, partition: str, records: Sequence[Record], expected: Mapping[str, int]
    ) -> Size:
        now = self._clock()
        with self._transaction(base):
            evicted = self._expire(base, now)
            for id, version in expected.items():
                if _version(base, partition, id) != version:
                    raise Conflict(f"{id} was changed meanwhile")
            for record in records:
                where = {"partition": partition, "id": record.parent, "now": now}
                if record.parent:
                    used = f"{_ANCESTORS} UPDATE records SET used = :now WHERE key IN (SELECT key FROM chain)"
                    base.execute(used, where)
                key = _insert(base, partition, record, now)
                rows = [(partition, name, key) for name in record.names]
                base.executemany("INSERT OR REPLACE INTO names VALUES (?, ?, ?)", rows)
            size = self._evict(base)
        return replace(size, evicted=size.evicted + evicted)

    @contextmanager
    def _transaction(self, base: sqlite3.Connection) -> Iterator[None]:
        """Write in turn, and all or nothing: what is raised within leaves it to the caller to roll back."""
        with self._writing:
            base.execute("BEGIN IMMEDIATE")
            yield
            base.execute("COMMIT")

    def _checkpoint(self, base: sqlite3.Connection) -> None:
        """Copy what is in the WAL into the file, while others write."""
        ((_, pages, _),) = base.execute(_COPY).fetchall()
        if pages > _MAX_WAL_PAGES:
            with self._writing:  # The rest: what was written meanwhile.
                base.execute(_COPY).fetchall()

    def _expire(self, base: sqlite3.Connection, now: float) -> int:
        """Forget some of what is too old, from time to time; the rest goes with the next ones, and is not read."""
        if now < self._expires_at:
            return 0
        oldest = now - self._bounds.seconds
        old = "SELECT key FROM records WHERE used < ? ORDER BY used, key LIMIT ?"
        gone = base.execute(f"DELETE FROM records WHERE key IN ({old})", (oldest, _EVICTED_AT_ONCE)).rowcount
        if gone < _EVICTED_AT_ONCE:
            self._expires_at = now + min(_EXPIRY_SECONDS, self._bounds.seconds / 100)
        return gone

    def _evict(self, base: sqlite3.Connection) -> Size:
        """Forget what is beyond the bounds, of the partition with the largest share first; return what is left."""
        evicted = 0
        while (size := _size(base)).records > self._bounds.records or size.bytes > self._bounds.bytes:
            over = size.records - self._bounds.records
            share = "records" if over > 0 else "bytes"
            largest = base.execute(f"SELECT partition, records FROM shares ORDER BY {share} DESC LIMIT 2").fetchall()
            (partition, records), *others = largest
            # One by one only at the end: the bytes of one record may be enough, or another share be the largest then.
            many = max(1, min(over, records - others[0][1] if others else over))
            old = "SELECT key FROM records WHERE partition = ? ORDER BY used, key LIMIT ?"
            evicted += base.execute(f"DELETE FROM records WHERE key IN ({old})", (partition, many)).rowcount
        return replace(size, evicted=evicted)

    def _chain(self, base: sqlite3.Connection, partition: str, id: str, max_bytes: int) -> list[Record]:
        rows = base.execute(
            f"{_ANCESTORS} SELECT records.id, value, records.parent, version, used "
            "FROM chain JOIN records ON records.key = chain.key ORDER BY depth",
            {"partition": partition, "id": id},
        )
        found: list[Record] = []
        left, now = max_bytes, self._clock()
        for record_id, value, parent, version, used in rows:
            if now - used > self._bounds.seconds:
                break
            left -= len(value)
            if left < 0:
                raise too_long(max_bytes)
            found.append(Record(record_id, value, parent, (), version, now - used))
        return found[::-1]

    def _find(self, base: sqlite3.Connection, partition: str, names: Sequence[str]) -> dict[str, Record]:
        found: dict[str, Record] = {}
        now = self._clock()
        for start in range(0, len(names), _NAMES_AT_ONCE):
            some = names[start : start + _NAMES_AT_ONCE]
            rows = base.execute(
                "SELECT name, id, value, parent, version, used FROM names JOIN records ON record = key "
                f"WHERE names.partition = ? AND name IN ({','.join('?' * len(some))}) AND used >= ?",
                (partition, *some, now - self._bounds.seconds),
            )
            for name, id, value, parent, version, used in rows:
                found[name] = Record(id, value, parent, (), version, now - used)
        return found

    def _delete(self, base: sqlite3.Connection, partition: str, id: str) -> bool:
        with self._transaction(base):
            self._expire(base, self._clock())
            count = base.execute("DELETE FROM records WHERE partition = ? AND id = ?", (partition, id)).rowcount
        return count > 0


class _Connection:
    """A connection with the one thread that may use it. ``run`` is awaited, and bounded."""

    def __init__(self, path: Path | None, name: str) -> None:
        self._path = path
        self._place = "memory" if path is None else str(path)
        self._thread = OneThread(f"toolsim-store-{name}", _MAX_WAITING)
        self._base: sqlite3.Connection | None = None
        self._is_left = False

    async def run[T](self, work: Callable[[sqlite3.Connection], T], partition: str = "") -> T:
        """Return what ``work`` returns, when the turn of its partition has come. Raises StoreError."""
        future = self._thread.do(lambda: self._run(work), partition)
        timer = asyncio.get_running_loop().call_later(SECONDS, _too_late, future)
        try:
            return await future
        except Crowded:
            raise StoreError("the store is too slow: too many are waiting for it") from None
        finally:
            timer.cancel()

    def later(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Do something after what is queued, for nobody; if it fails, it will be asked for again."""
        self._thread.do(lambda: self._run(work)).add_done_callback(lambda done: done.cancelled() or done.exception())

    async def close(self) -> None:
        """Close after all queued work. What has not started in time never will: it would delay the process's exit."""
        if self._thread.is_started:
            await asyncio.wait([self._thread.do_last(self._close)], timeout=SECONDS)
            self._thread.stop()
        self._is_left = True

    def _run[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._is_left:
            raise StoreError("the store was closed before it got to this")
        try:
            if self._base is None:
                self._base = _open(self._path)
            return work(self._base)
        except sqlite3.Error as problem:
            self._recover(problem)
            raise StoreError(f"{self._place}: {problem}") from problem
        except OSError as problem:
            raise StoreError(f"{self._place}: {problem.strerror or problem}") from problem
        except StoreError:
            self._roll_back()
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
        future.set_exception(StoreError(f"the store took more than {SECONDS:g} s"))


def _connections(path: Path | None) -> tuple[_Connection, _Connection, _Connection]:
    """Return the connections for reading, writing, and writing much. A database in memory has only one, for all."""
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
        with closing(base.execute("PRAGMA user_version")) as rows:
            (version,) = rows.fetchone()
        if version > _VERSION:
            raise StoreError(f"{path}: its version is {version}, which a newer toolsim has written")
        if version < _VERSION:
            base.executescript(_SCHEMA)
    except BaseException:
        base.close()
        raise
    return base


def _make(path: Path) -> None:
    """Let there be a file that only its owner reads; SQLite gives those beside it the same mode.

    A file that exists is never opened and closed here: that would take away the locks that this process has on it, and
    the next process to leave would delete what is still being written to.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def _insert(base: sqlite3.Connection, partition: str, record: Record, now: float) -> int | None:
    """Write a record, mostly one that was never there; return its key."""
    statement = "INSERT INTO records (partition, id, parent, version, size, used, value) VALUES (?, ?, ?, ?, ?, ?, ?)"
    rest = (record.size, now, record.value)
    try:
        return base.execute(statement, (partition, record.id, record.parent, 1, *rest)).lastrowid
    except sqlite3.IntegrityError:
        version = _version(base, partition, record.id) + 1
    base.execute("DELETE FROM records WHERE partition = ? AND id = ?", (partition, record.id))
    return base.execute(statement, (partition, record.id, record.parent, version, *rest)).lastrowid


def _version(base: sqlite3.Connection, partition: str, id: str) -> int:
    row = base.execute("SELECT version FROM records WHERE partition = ? AND id = ?", (partition, id)).fetchone()
    return row[0] if row else 0


def _size(base: sqlite3.Connection) -> Size:
    records, size = base.execute("SELECT records, bytes FROM total").fetchone()
    return Size(records, size)
