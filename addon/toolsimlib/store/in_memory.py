"""A store in this process: as fast as possible, and gone when the process ends."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from toolsimlib.store.record import MAX_CHAIN, Bounds, Conflict, Record, Size, check, too_long


@dataclass(slots=True)
class _Entry:
    record: Record
    used: float


class MemoryStore:
    """Holds records in the order in which they were last used. ``clock``: seconds."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds = bounds
        self._clock = clock
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._names: dict[tuple[str, str], str] = {}
        self._bytes = 0

    async def put(self, partition: str, records: Sequence[Record], expected: Mapping[str, int] | None = None) -> Size:
        """As ``Store``."""
        check(records, self._bounds)
        self._expire()
        for id, version in (expected or {}).items():
            if self._version(partition, id) != version:
                raise Conflict(f"{id} was changed meanwhile")
        for record in records:
            version = self._version(partition, record.id) + 1
            self._forget((partition, record.id))
            self._use(partition, record.parent)
            self._entries[partition, record.id] = _Entry(replace(record, version=version), self._clock())
            self._names |= {(partition, name): record.id for name in record.names}
            self._bytes += record.size
        evicted = 0
        while len(self._entries) > self._bounds.records or self._bytes > self._bounds.bytes:
            self._forget(next(iter(self._entries)))
            evicted += 1
        return replace(await self.size(), evicted=evicted)

    async def chain(self, partition: str, id: str, max_bytes: int) -> list[Record]:
        """As ``Store``."""
        self._expire()
        found: list[Record] = []
        left = max_bytes
        seen: set[str] = set()
        while id and id not in seen and len(found) < MAX_CHAIN and (entry := self._entries.get((partition, id))):
            found.append(self._read(entry))
            seen.add(id)
            left -= len(entry.record.value)
            if left < 0:
                raise too_long(max_bytes)
            id = entry.record.parent
        return found[::-1]

    async def find(self, partition: str, names: Iterable[str]) -> dict[str, Record]:
        """As ``Store``."""
        self._expire()
        ids = {name: self._names.get((partition, name), "") for name in names}
        entries = {name: self._entries.get((partition, id)) for name, id in ids.items()}
        return {name: self._read(entry) for name, entry in entries.items() if entry is not None}

    async def delete(self, partition: str, id: str) -> bool:
        """As ``Store``."""
        self._expire()
        return self._forget((partition, id))

    async def size(self) -> Size:
        """As ``Store``."""
        return Size(len(self._entries), self._bytes)

    async def close(self) -> None:
        """As ``Store``."""

    def _read(self, entry: _Entry) -> Record:
        return replace(entry.record, names=(), age=self._clock() - entry.used)

    def _version(self, partition: str, id: str) -> int:
        entry = self._entries.get((partition, id))
        return entry.record.version if entry is not None else 0

    def _use(self, partition: str, id: str) -> None:
        """Mark a record, and all that it continues, as used now; the oldest first, in the order of eviction."""
        chain: dict[str, None] = {}
        while id and id not in chain and len(chain) < MAX_CHAIN and (entry := self._entries.get((partition, id))):
            chain[id] = None
            id = entry.record.parent
        for member in reversed(chain):
            self._entries[partition, member].used = self._clock()
            self._entries.move_to_end((partition, member))

    def _expire(self) -> None:
        oldest = self._clock() - self._bounds.seconds
        while self._entries and next(iter(self._entries.values())).used < oldest:
            self._forget(next(iter(self._entries)))

    def _forget(self, key: tuple[str, str]) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._bytes -= entry.record.size
        partition, id = key
        for name in entry.record.names:
            if self._names.get((partition, name)) == id:
                del self._names[partition, name]
        return True
