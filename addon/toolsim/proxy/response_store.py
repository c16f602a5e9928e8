"""The interface between turns and the store, which contains the data that the proxy keeps between requests.

    request ──▶ recall the data it refers to ──▶ resolved body ──▶ rewritten like any other
    answer  ──▶ store ──▶ the final event is sent to the client

1. A turn without references never waits for the store before its answer, and is answered even if the store fails.
2. A turn with references is answered with a 503 while the store fails, because the turn would have a different meaning
   without its context.
3. An answer is stored before its final event is sent. If storing fails, the answer has ``store: false``. However, if
   the answer belongs to a conversation, the client receives an error, because the next turn would lack the answer.
4. All data is stored in the partition of the client's key. The store receives only a hash of the key.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from toolsim.core.errors import ApiError
from toolsim.core.report import Report
from toolsim.core.tasks import spawn
from toolsim.proxy.jobs import PageResult
from toolsim.proxy.reporting.metrics import Family
from toolsim.proxy.stored_context import StoredContext
from toolsim.stores.record import MAX_TRIES, Conflict, Record, RecordTooLarge, Size, Store, StoreError
from toolsim.stores.url import StoreUrl, open_store
from toolsim.wire.json_codec import parse_object
from toolsim.wire.responses.stored import Recalled, References, appended, not_found

logger = logging.getLogger(__name__)

UNAVAILABLE = ApiError(
    "This request requires the proxy's store, which is not available.",
    code="store_unavailable",
    status=503,
    retry_after=1,
)
LOST = ApiError(
    "The answer could not be added to its conversation, because the proxy's store is not available.",
    code="store_unavailable",
    status=503,
    retry_after=1,
)
INTERNAL = LEASE, EVENTS, WANTED = ("lease_", "events_", "wanted_")
"""Name prefixes of the records that background answers need. Clients cannot read these records."""
_LARGE_BYTES = 1024 * 1024


class ResponseStore:
    """The proxy's interface to the store."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._address: StoreUrl | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self.size = Size()
        self.evicted = 0
        self.errors: dict[str, int] = dict.fromkeys(("read", "write"), 0)
        self._down: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Whether the proxy has a store."""
        return self._store is not None

    def families(self) -> list[Family]:
        """Return the store's metrics, or an empty list if the proxy has no store."""
        if not self.is_on:
            return []
        records = Family("store_records", "Number of stored answers and conversations, as of the last write.", "gauge")
        records.add({}, self.size.records)
        size = Family(
            "store_bytes", "Size of stored answers and conversations in bytes, as of the last write.", "gauge"
        )
        size.add({}, self.size.bytes)
        evicted = Family("store_evicted_total", "Records that this proxy evicted because of a limit or their age.")
        evicted.add({}, self.evicted)
        errors = Family("store_errors_total", "Store errors by operation.")
        for what, count in self.errors.items():
            errors.add({"what": what}, count)
        return [records, size, evicted, errors]

    def configure(self, address: StoreUrl | None) -> None:
        """Use this store from now on, or no store if ``address`` is None.

        The previous store is closed once its pending writes have finished. Turns in progress write to the new store.
        """
        if address != self._address:
            left, self._address = self._store, address
            self._store = open_store(address) if address is not None else None
            self._leave(left)

    async def close(self) -> None:
        """Finish pending writes and close the store, within a limited time. The store can be used again afterwards."""
        self._leave(self._store)
        if self._closing:
            await asyncio.wait(self._closing)

    async def recall(self, partition: str, references: References, max_bytes: int) -> Recalled | ApiError:
        """Return the data that a request refers to, or an error."""
        first = references.previous or references.conversation
        records: list[Record] = []
        holders: dict[str, Record] = {}
        try:
            store = self._used()
            with self._counting("read"):
                if first and not first.startswith(INTERNAL):
                    records = await store.chain(partition, first, max_bytes)
                if references.items:
                    holders = await store.find(partition, references.items)
        except RecordTooLarge as problem:
            message = "The request, including the stored data that it refers to, is too large: "
            message += f"{problem} (toolsim_max_body_bytes)."
            return ApiError(message, "invalid_request_error", "request_too_large", status=413)
        except StoreError:
            # The request fails, because it would have a different meaning without its stored context.
            return UNAVAILABLE
        if first and not records:
            return not_found(references, first)
        if first and records[0].parent:
            return not_found(references, records[0].parent)
        if missing := [name for name in references.items if name not in holders]:
            return not_found(references, missing[0])
        values = {name: record.value for name, record in holders.items()}
        return Recalled(references, tuple(record.value for record in records), values)

    async def store(self, context: StoredContext, answer: bytes, names: Sequence[str]) -> ApiError | bool:
        """Store a complete answer. Return whether it was stored, or an error for the client.

        ``answer`` is the Response object, and ``names`` contains the IDs of its items.
        """
        own, references = context.own or b"[]", context.references
        if self._store is None:
            # The store was disabled while the model was answering.
            return LOST if references.conversation else False
        parts = b'{"response":', answer, b',"input":', own, b"}"
        is_large = len(answer) + len(own) > _LARGE_BYTES
        # Large values are joined in a separate thread, so as not to block the event loop.
        value = await asyncio.to_thread(b"".join, parts) if is_large else b"".join(parts)
        record = Record(context.stored_as.id, value, references.previous, (*context.names, *names))
        try:
            with self._counting("write"):
                if references.conversation:
                    await self._add(context.partition, references.conversation, record, own, answer)
                else:
                    await self._put(context.partition, [record])
        except StoreError:
            return LOST if references.conversation else False
        return True

    async def serve(
        self, partition: str, id: str, respond: Callable[[bytes | None], Awaitable[PageResult]]
    ) -> PageResult:
        """Answer a request for the resource ``id``, and store any changes that the request makes.

        ``respond`` is called with the value of the record, and called again if the record was changed in the meantime.
        """
        if self._store is None:
            return PageResult(Report(), UNAVAILABLE)
        try:
            for _ in range(MAX_TRIES):
                record = None
                if id and not id.startswith(INTERNAL):
                    record = await self.last(partition, id)
                done = await respond(record.value if record is not None else None)
                if done.error is not None or done.change is None:
                    return done
                name, value = done.change
                if not value:
                    await self.forget(partition, [name])
                    return done
                with suppress(Conflict):
                    version = record.version if record is not None else 0
                    await self.write(partition, [Record(name, value)], {name: version})
                    return done
            with self._counting("write"):
                raise StoreError(f"other requests kept changing {id}")
        except RecordTooLarge as problem:
            return PageResult(
                Report(), ApiError(str(problem), "invalid_request_error", "request_too_large", status=413)
            )
        except StoreError:
            return PageResult(Report(), UNAVAILABLE)

    async def write(self, partition: str, records: Sequence[Record], expected: Mapping[str, int]) -> None:
        """Write records if the stored records still have the versions in ``expected``, a dict of versions by name.

        Raises Conflict, a subclass of StoreError, if a version differs, and StoreError if the write fails.
        """
        with self._counting("write"):
            await self._put(partition, records, expected)

    async def find(self, partition: str, names: Sequence[str]) -> dict[str, Record]:
        """Return a consistent snapshot of the records with these names, by name. Raises StoreError if reading fails."""
        with self._counting("read"):
            return await self._used().find(partition, names)

    async def last(self, partition: str, id: str) -> Record | None:
        """Return a record, or None if it does not exist. Raises StoreError if reading fails."""
        with self._counting("read"):
            found = await self._used().chain(partition, id, sys.maxsize)
        return found[-1] if found else None

    async def forget(self, partition: str, ids: Sequence[str]) -> None:
        """Delete records, one after another. Raises StoreError if this fails."""
        with self._counting("write"):
            for id in ids:
                await self._used().delete(partition, id)

    async def _add(self, partition: str, conversation: str, record: Record, own: bytes, answer: bytes) -> None:
        """Store an answer, and add the answer's items to its conversation."""
        output = (parse_object(answer) or {}).get("output")
        for _ in range(MAX_TRIES):
            found = await self._used().chain(partition, conversation, sys.maxsize)
            if not found:
                raise StoreError(f"the conversation {conversation} has been deleted")
            value = appended(found[0].value, own, output)
            try:
                await self._put(partition, [record, Record(conversation, value)], {conversation: found[0].version})
            except Conflict:
                continue
            return
        raise StoreError(f"other requests kept changing the conversation {conversation}")

    async def _put(self, partition: str, records: Sequence[Record], expected: Mapping[str, int] | None = None) -> None:
        self.size = await self._used().put(partition, records, expected)
        self.evicted += self.size.evicted

    def _used(self) -> Store:
        """Return the current store. Raises StoreError if the store has been disabled in the meantime."""
        if self._store is None:
            raise StoreError("the store has been disabled")
        return self._store

    def _leave(self, store: Store | None) -> None:
        """Close a store in the background."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            # No event loop is running, so no connection can have been opened.
            return
        if store is not None:
            spawn(store.close(), self._closing)

    @contextmanager
    def _counting(self, what: str) -> Iterator[None]:
        """Count failures of an operation, and convert exceptions of unknown types to StoreError."""
        try:
            yield
        except Conflict:
            raise
        except RecordTooLarge as problem:
            if what == "write":
                self._failed(what, problem)
            raise
        except Exception as problem:
            # Any type of exception is possible, because a server can send any data.
            self._failed(what, problem)
            raise StoreError(str(problem)) from problem
        self._works(what)

    def _failed(self, what: str, problem: Exception) -> None:
        """Count a failed operation, and log the error unless the previous operation of the same type also failed."""
        self.errors[what] += 1
        if what not in self._down:
            words = problem if isinstance(problem, StoreError) else repr(problem)
            logger.warning("toolsim: the store cannot %s: %s", what, words)
        self._down.add(what)

    def _works(self, what: str) -> None:
        if what in self._down:
            logger.warning("toolsim: the store can %s again", what)
        self._down.discard(what)
