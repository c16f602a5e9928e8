"""Stores background answers: the record of each answer, its lease while it is in progress, and its events."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from toolsim.core.errors import ApiError
from toolsim.proxy.response_store import EVENTS, LEASE, LOST, WANTED, ResponseStore
from toolsim.stores.record import MAX_TRIES, Conflict, Record, StoreError
from toolsim.wire.responses.background import is_background_value
from toolsim.wire.responses.stored import appended

RENEW_SECONDS = 2.0
"""Seconds between renewals of a lease.

If an answer is canceled through another proxy, the model stops within this time.
"""
LEASE_SECONDS = 10.0
"""Validity period of a lease, in seconds, by the store's clock.

The lease survives several failed renewals, for example while the store restarts.
"""
FOLLOW_SECONDS = 1.0
"""Seconds between writes of new events, and between reads, while a client follows an answer through a proxy that does
not generate the answer.
"""
RETRY_SECONDS = 1.0
"""Seconds to wait before a retry after a store failure."""
PATIENCE = 20
"""Number of consecutive store failures after which the proxy abandons an answer.

A store that restarts causes several failures.
"""
_OVER = "over"


@dataclass(slots=True)
class Lease:
    """The right to end an answer, which the proxy that generates the answer holds."""

    partition: str
    id: str
    version: int = 1
    """The version of the lease's record."""
    state: str = "queued"
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """A random value that identifies the holder of the lease."""

    @property
    def name(self) -> str:
        """The ID of the lease's record."""
        return LEASE + self.id

    def record(self) -> Record:
        """Return the lease's record in its current state."""
        return _named(self.name, f"{self.state} {self.token}".encode())

    def over(self) -> Record:
        """Return the record that replaces this lease's record when the answer ends."""
        return _named(self.name, f"{_OVER} {self.token}".encode())


@dataclass(frozen=True, slots=True)
class Entry:
    """The state of an answer at one moment."""

    partition: str
    id: str
    value: bytes
    state: str
    """The state from the lease's record, or "" if no proxy is generating the answer."""
    version: int
    """The version of the lease's record."""
    record: int
    """The version of the answer's record."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The data to store when an answer ends."""

    value: bytes
    """The new value of the answer's record."""
    parent: str = ""
    names: tuple[str, ...] = ()
    """Additional names under which the answer's record can be found."""
    events: bytes = b""
    """The answer's events, or b"" for none."""
    conversation: str = ""
    """The conversation to which ``own`` and ``output`` are added, or "" if the answer has none."""
    own: bytes = b"[]"
    """The items in the request itself, as a JSON array."""
    output: object = ()


class BackgroundStore:
    """Reads and writes the records of background answers. Methods raise StoreError if the store is unavailable."""

    def __init__(self, memory: ResponseStore) -> None:
        self._memory = memory

    async def open(self, partition: str, id: str, value: bytes, parent: str, names: Sequence[str]) -> Lease:
        """Write the record of a new answer, and return its lease."""
        lease = Lease(partition, id)
        record = Record(id, value, parent, (id, *names))
        await self._memory.write(partition, [record, lease.record()], {id: 0})
        return lease

    async def read(self, partition: str, id: str) -> Entry | None:
        """Return the current state of an answer, or None if there is no background answer with this ID."""
        found = await self._memory.find(partition, [id, LEASE + id])
        record, lease = found.get(id), found.get(LEASE + id)
        if record is None or record.id != id or not is_background_value(record.value):
            return None
        state, _ = _read(lease)
        if lease is None or lease.age > LEASE_SECONDS or state == _OVER:
            state = ""
        return Entry(partition, id, record.value, state, lease.version if lease is not None else 0, record.version)

    async def renew(self, lease: Lease, events: bytes = b"") -> bool:
        """Renew the lease of an answer in progress, and store any ``events`` of the answer.

        Return whether this proxy still holds the lease.
        """
        return await self._replace(lease, [lease.record(), *_events(lease.id, events)])

    async def request_events(self, partition: str, id: str) -> None:
        """Ask the proxy that is generating an answer to store the answer's events as they arrive."""
        await self._memory.write(partition, [_named(WANTED + id)], {})

    async def events_requested(self, lease: Lease) -> bool:
        """Return whether another proxy has requested that an answer's events be stored as they arrive."""
        return bool(await self._memory.find(lease.partition, [WANTED + lease.id]))

    async def store_events(self, lease: Lease, events: bytes) -> None:
        """Store the events of an answer that another proxy has already ended. Do nothing if the answer was deleted."""
        entry = await self.read(lease.partition, lease.id)
        if entry is not None:
            with suppress(Conflict):
                await self._memory.write(lease.partition, _events(lease.id, events), {lease.id: entry.record})

    async def end(self, lease: Lease, ending: Ending) -> ApiError | bool:
        """Store a finished answer that this proxy has generated.

        Return True if the answer is stored, False if another proxy has already ended it, or an error if its
        conversation no longer exists.
        """
        records = [Record(lease.id, ending.value, ending.parent, (lease.id, *ending.names))]
        records += _events(lease.id, ending.events)
        if not ending.conversation:
            return await self._replace(lease, [*records, lease.over()])
        for _ in range(MAX_TRIES):
            found = await self._memory.last(lease.partition, ending.conversation)
            if found is None:
                return LOST
            value = appended(found.value, ending.own, ending.output)
            with suppress(Conflict):
                added = Record(found.id, value)
                expected = {found.id: found.version, lease.name: lease.version}
                await self._memory.write(lease.partition, [*records, added, lease.over()], expected)
                return True
            if (standing := await self._standing(lease)) != "held":
                return standing == "over"
        raise StoreError(f"other requests kept changing the conversation {ending.conversation}")

    async def finalize(self, entry: Entry, value: bytes) -> bool:
        """End an answer, even if another proxy is generating it. ``value`` is stored as the answer's record.

        Return False if the answer's state has changed since ``entry`` was read.
        """
        lease = Lease(entry.partition, entry.id)
        records = [_named(entry.id, value), lease.over()]
        try:
            await self._memory.write(entry.partition, records, {lease.name: entry.version})
        except Conflict:
            return False
        await self.clean_up(lease)
        return True

    async def clean_up(self, lease: Lease) -> None:
        """Delete the lease of an answer that has ended."""
        with suppress(StoreError):
            await self._memory.forget(lease.partition, [lease.name, WANTED + lease.id])

    async def events(self, partition: str, id: str) -> bytes | None:
        """Return an answer's stored events, or None if no events are stored.

        If the answer is finished, these are all of its events. Otherwise, more events may follow.
        """
        name = EVENTS + id
        found = await self._memory.find(partition, [name])
        return found[name].value if name in found else None

    async def delete(self, partition: str, id: str) -> None:
        """Delete an answer.

        The lease is deleted first, so that the proxy that generates the answer can no longer write.
        """
        await self._memory.forget(partition, [LEASE + id, id, EVENTS + id, WANTED + id])

    async def _replace(self, lease: Lease, records: Sequence[Record]) -> bool:
        """Write records, including the lease's record. Return whether this proxy still held the lease."""
        while True:
            try:
                await self._memory.write(lease.partition, records, {lease.name: lease.version})
            except Conflict:
                if (standing := await self._standing(lease)) != "held":
                    return standing == "over"
                continue
            lease.version += 1
            return True

    async def _standing(self, lease: Lease) -> Literal["held", "over", "lost"]:
        """Read the state of a lease, and update the lease's version. Return "held" if this proxy holds the lease,
        "over" if the answer has ended, and "lost" otherwise.

        The stored version can differ from the expected version, because one of this proxy's writes might have
        succeeded although it timed out.
        """
        found = (await self._memory.find(lease.partition, [lease.name])).get(lease.name)
        state, token = _read(found)
        if found is None or token != lease.token:
            return "lost"
        lease.version = found.version
        return "over" if state == _OVER else "held"


def _named(name: str, value: bytes = b"") -> Record:
    """Return a record whose ID is also its only name."""
    return Record(name, value, names=(name,))


def _events(id: str, events: bytes) -> list[Record]:
    return [_named(EVENTS + id, events)] if events else []


def _read(lease: Record | None) -> tuple[str, str]:
    """Return the answer's state and the holder's token from a lease's record, or empty strings if there are none."""
    words = lease.value.decode("utf-8", "replace").split() if lease is not None else []
    return (words[0], words[1]) if len(words) == 2 else ("", "")
