"""The cost of a store: a stored turn, a turn that continues a stored turn, and a lookup among many records."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from bench import added
from bench.stage import Proxies, resident_megabytes
from bench.table import Row
from toolsim.stores.record import Record, Store, StoreLimits
from toolsim.stores.sqlite import SqliteStore

MODEL = "prose-100-4-1"
RECORDS = 100_000
PROCESSES = 7


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    """Yield the rows for turns, then the rows for a full store."""
    with tempfile.TemporaryDirectory() as folder:
        for stream in (False, True):
            path = Path(folder) / ("streamed" if stream else "whole")
            numbers = range(1 if quick else PROCESSES)
            pairs = ((proxies.fresh(), proxies.fresh(toolsim_store=f"sqlite:{path}{number}")) for number in numbers)
            yield from added.rows("store", "a turn that is kept, sqlite", 0.5, MODEL, pairs, stream=stream)
        records = 10_000 if quick else RECORDS
        bounds = StoreLimits(records=records, bytes=1 << 40)
        for name, place in ("memory", None), ("sqlite", Path(folder) / "full"):
            yield from asyncio.run(lookups(name, SqliteStore(place, bounds), records))


async def lookups(name: str, store: Store, records: int) -> Iterator[Row]:
    """Fill a store to 10% beyond its limit. Then measure the time to read a record by ID or name, and to write one."""
    random = Random(1)
    value = json.dumps({"response": {"output": [{"text": "x" * 1000}]}, "input": []}).encode()
    before = resident_megabytes(os.getpid())
    batch: list[Record] = []
    writes: list[float] = []
    for number in range(records + records // 10):
        batch.append(Record(f"resp_{number}", value + b" " * (number % 7 + 1), names=(f"msg_{number}",)))
        if len(batch) == 100:
            await store.put(f"p{number // 100 % 10}", batch)
            batch = []
    size = await store.size()
    assert size.records == records
    times: list[list[float]] = [[], []]
    for _ in range(1000):
        number = random.randrange(records // 2, records)
        partition = f"p{number // 100 % 10}"
        start = time.perf_counter()
        assert await store.chain(partition, f"resp_{number}", 1 << 20)
        times[0].append(1000 * (time.perf_counter() - start))
        start = time.perf_counter()
        assert await store.find(partition, [f"msg_{number}"])
        times[1].append(1000 * (time.perf_counter() - start))
        start = time.perf_counter()
        await store.put("new", [Record(f"resp_{random.random()}", value, names=(str(random.random()),))])
        writes.append(1000 * (time.perf_counter() - start))
        # Each write evicts the oldest record; the lookups use only newer records.
    grown = resident_megabytes(os.getpid()) - before
    by_id, by_name, write = map(statistics.median, (*times, writes))
    note = f"{grown:.0f} MB more in this process"
    await store.close()
    return iter(
        [
            Row("store", f"an answer among {records:,}, by id, {name}", by_id, "ms", 1.0, note=note),
            Row("store", f"an answer among {records:,}, by an item's id, {name}", by_name, "ms", 1.0),
            Row("store", f"one more where {records:,} are the limit, {name}", write, "ms"),
        ]
    )
