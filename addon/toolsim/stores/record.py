"""The records in a store, and the protocol (interface) that all stores implement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

MAX_CHAIN = 10_000
"""Maximum length of a chain of records. It is far above the number of turns that fit into any model's context."""
MAX_TRIES = 20
"""Maximum number of attempts to make a change. After a ``Conflict``, the next attempt is based on the current version.
"""


class StoreError(Exception):
    """Raised if a store operation fails. The message is for operators."""


class Conflict(StoreError):
    """Raised if a record does not have the expected version, so nothing was written."""


class RecordTooLarge(StoreError):
    """Raised if a record, or the chain that it continues, exceeds the allowed size."""


@dataclass(frozen=True, slots=True)
class Record:
    """A stored record. Callers can write ``names`` but not read them, and can read ``version`` and ``age`` but not
    write them.
    """

    id: str
    """The record's ID, unique in its partition."""
    value: bytes
    parent: str = ""
    """The ID of the record that this record continues, or "" for none."""
    names: tuple[str, ...] = ()
    """Other names under which the record can be found. A name refers to the latest record written with it."""
    version: int = 0
    """The number of times a value was written under this ID, starting at 1."""
    age: float = field(default=0.0, compare=False)
    """Seconds since the last use, by the clock that all users of the store share."""

    @property
    def size(self) -> int:
        """The number of bytes counted toward the bounds."""
        return len(self.value) + len(self.id) + len(self.parent) + sum(map(len, self.names))


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The limits of a store."""

    records: int = 100_000
    bytes: int = 256 * 1024 * 1024
    seconds: float = 30 * 24 * 3600.0
    """Maximum number of seconds since a record was last used."""


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of data in a store."""

    records: int = 0
    bytes: int = 0
    evicted: int = 0
    """The number of records that the last ``put`` deleted because of a limit or because of their age."""


class Store(Protocol):
    """Stores records. Every method raises ``StoreError``, and no other exception, if its operation fails."""

    async def put(self, partition: str, records: Sequence[Record], expected: Mapping[str, int] | None = None) -> Size:
        """Write all of the records or, after an error, none of them.

        ``expected`` contains the required versions of existing records by ID. The version 0 means that the record must
        not exist. Raises ``Conflict`` for a different version, and ``RecordTooLarge`` for records that exceed the
        bounds.
        """

    async def chain(self, partition: str, id: str, max_bytes: int) -> list[Record]:
        """Return a record and all records that it continues, oldest first, or [] if the record does not exist.

        A deleted record ends the chain. In that case, the first returned record still has a ``parent``. Raises
        ``RecordTooLarge`` if the values exceed ``max_bytes``.
        """

    async def find(self, partition: str, names: Iterable[str]) -> dict[str, Record]:
        """Return the records with these names, by name. Unknown names are omitted."""

    async def delete(self, partition: str, id: str) -> bool:
        """Delete a record, and return whether it existed."""

    async def size(self) -> Size:
        """Return the total size of all partitions."""

    async def close(self) -> None:
        """Finish operations in flight and release all resources, in bounded time.

        An operation that does not finish in time fails for its caller. The store can be used again afterwards, but a
        store in memory is then empty. Never raises an exception.
        """


def check(records: Sequence[Record], bounds: StoreLimits) -> None:
    """Raise ``RecordTooLarge`` if the records would not fit into an empty store."""
    if len(records) > bounds.records or sum(record.size for record in records) > bounds.bytes:
        raise RecordTooLarge("the data exceeds the size limit of the store")


def too_long(max_bytes: int) -> RecordTooLarge:
    """Return the error for a chain whose values exceed ``max_bytes``."""
    return RecordTooLarge(f"the conversation that the request continues has more than {max_bytes} bytes")
