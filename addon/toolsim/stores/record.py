"""Records, and the protocol of a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

MAX_CHAIN = 10_000
"""The maximum length of a chain of records: more turns than any model reads."""
MAX_TRIES = 20
"""How often a change is retried after a ``Conflict``, on the then current version."""


class StoreError(Exception):
    """An operation of the store failed; the message is for operators."""


class Conflict(StoreError):
    """A record is not at the version that was expected: nothing was written."""


class TooLarge(StoreError):
    """A record, or all that it continues, is larger than allowed."""


@dataclass(frozen=True, slots=True)
class Record:
    """A stored record. Names are written and not read, versions and ages are read and not written."""

    id: str
    """Unique in its partition."""
    value: bytes
    parent: str = ""
    """The id of the record that it continues, "" for none."""
    names: tuple[str, ...] = ()
    """By which it is found too; a name that two records have belongs to the later one."""
    version: int = 0
    """1 for the first value under its id, and one more for each that replaced it."""
    age: float = field(default=0.0, compare=False)
    """Seconds since it was last used, by the one clock of all who share the store."""

    @property
    def size(self) -> int:
        """Bytes that it counts for."""
        return len(self.value) + len(self.id) + len(self.parent) + sum(map(len, self.names))


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a store may hold."""

    records: int = 100_000
    bytes: int = 256 * 1024 * 1024
    seconds: float = 30 * 24 * 3600.0
    """Since a record was last used."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much a store holds."""

    records: int = 0
    bytes: int = 0
    evicted: int = 0
    """Records that the last ``put`` deleted, because of a bound or their age."""


class Store(Protocol):
    """Stores records. All methods raise ``StoreError``, and nothing else, when the store cannot do it."""

    async def put(self, partition: str, records: Sequence[Record], expected: Mapping[str, int] | None = None) -> Size:
        """Write all records or none.

        ``expected``: versions that records of these ids must have, 0 = there must be none. Raises ``Conflict``
        otherwise, and ``TooLarge`` for records that the bounds have no place for.
        """

    async def chain(self, partition: str, id: str, max_bytes: int) -> list[Record]:
        """Return a record after all that it continues, the oldest first; [] if there is none.

        A deleted record in between ends it: the first one then still has a ``parent``. Raises ``TooLarge`` beyond
        ``max_bytes`` of values.
        """

    async def find(self, partition: str, names: Iterable[str]) -> dict[str, Record]:
        """Return the records that hold these names, by name; those that are not there are left out."""

    async def delete(self, partition: str, id: str) -> bool:
        """Delete a record; return whether there was one."""

    async def size(self) -> Size:
        """Return the size of all partitions together."""

    async def close(self) -> None:
        """Finish operations in flight and release everything, in bounded time.

        The store may still be used again; one in memory is then empty.
        An operation that is not done by then fails for its caller. Raises nothing.
        """


def check(records: Sequence[Record], bounds: Bounds) -> None:
    """Raise ``TooLarge`` for records that would not fit even in an empty store."""
    if len(records) > bounds.records or sum(record.size for record in records) > bounds.bytes:
        raise TooLarge("this is larger than the whole store may be")


def too_long(max_bytes: int) -> TooLarge:
    """Return the error for a chain of more than ``max_bytes``."""
    return TooLarge(f"what it continues has more than {max_bytes} bytes")
