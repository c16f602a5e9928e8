"""The records in a store, and the protocol (interface) that all stores implement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

MAX_CHAIN = 10_000
"""Maximum length of a chain of records. It is far higher than the number of turns that fit into any model's context."""
MAX_TRIES = 20
"""Maximum number of attempts to change a record. After a ``Conflict``, the next attempt is based on the record's new
version.
"""


class StoreError(Exception):
    """Raised if a store operation fails. The message is for operators."""


class Conflict(StoreError):
    """Raised if a record does not have the expected version. In this case, nothing was written."""


class RecordTooLarge(StoreError):
    """Raised if a record, or the chain of records that it continues, exceeds the allowed size."""


@dataclass(frozen=True, slots=True)
class Record:
    """A stored record.

    When a record is written, ``version`` and ``age`` are ignored. When a record is read, ``names`` is empty.
    """

    id: str
    """The ID of the record. It is unique within the record's partition."""
    value: bytes
    parent: str = ""
    """The ID of the record that this record continues, or "" if it continues none."""
    names: tuple[str, ...] = ()
    """Other names under which the record can be found. If several records have the same name, the name refers to the
    latest of these records.
    """
    version: int = 0
    """The number of times a value was written under this ID, starting at 1."""
    age: float = field(default=0.0, compare=False)
    """Seconds since the record was last used, by the clock that all users of the store share."""

    @property
    def size(self) -> int:
        """The size of the record in bytes, as counted toward the store's limits."""
        return len(self.value) + len(self.id) + len(self.parent) + sum(map(len, self.names))


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The limits of a store."""

    records: int = 100_000
    bytes: int = 256 * 1024 * 1024
    seconds: float = 30 * 24 * 3600.0
    """Maximum number of seconds since a record was last used. Older records are deleted."""


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of data in a store."""

    records: int = 0
    bytes: int = 0
    evicted: int = 0
    """The number of records that the last ``put`` deleted because of a limit or their age."""


class Store(Protocol):
    """Stores records. Every method raises ``StoreError``, and no other exception, if its operation fails."""

    async def put(self, partition: str, records: Sequence[Record], expected: Mapping[str, int] | None = None) -> Size:
        """Write all of the records or, after an error, none of them.

        ``expected`` maps record IDs to the versions that the stored records must have. The version 0 means that the
        record must not exist. Raises ``Conflict`` if a record has a different version, and ``RecordTooLarge`` if the
        records exceed the store's limits.
        """

    async def chain(self, partition: str, id: str, max_bytes: int) -> list[Record]:
        """Return a record and all records that it continues, oldest first, or [] if the record does not exist.

        The chain ends at a record that has been deleted. In that case, the first returned record still has a
        ``parent``. Raises ``RecordTooLarge`` if the total size of the values exceeds ``max_bytes``.
        """

    async def find(self, partition: str, names: Iterable[str]) -> dict[str, Record]:
        """Return a mapping from these names to the records. Unknown names are omitted."""

    async def delete(self, partition: str, id: str) -> bool:
        """Delete a record, and return whether it existed."""

    async def size(self) -> Size:
        """Return the total size of all partitions."""

    async def close(self) -> None:
        """Finish operations in flight and release all resources, in bounded time.

        An operation that does not finish in time raises an exception in its caller. The store can be used again
        afterwards, but a store in memory has then lost its records. Never raises an exception itself.
        """


def check(records: Sequence[Record], bounds: StoreLimits) -> None:
    """Raise ``RecordTooLarge`` if the records would not fit even into an empty store."""
    if len(records) > bounds.records or sum(record.size for record in records) > bounds.bytes:
        raise RecordTooLarge("the data exceeds the size limit of the store")


def too_long(max_bytes: int) -> RecordTooLarge:
    """Return the error for a chain of records whose values exceed ``max_bytes``."""
    return RecordTooLarge(f"the stored conversation has more than {max_bytes} bytes")
