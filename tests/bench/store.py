"""What a store costs: a turn that is stored, one that continues another, and a lookup among very many."""

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

from bench.stage import Client, Proxies, cpu_seconds, resident_megabytes
from bench.table import Row
from toolsimlib.store.record import Bounds, Record, Store
from toolsimlib.store.sqlite import SqliteStore

MODEL = "prose-100-4-1"
RECORDS = 100_000
PROCESSES, TURNS = 7, 100


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    """Yield the rows of a turn, then those of a full store."""
    with tempfile.TemporaryDirectory() as folder:
        for stream in (False, True):
            path = Path(folder) / ("streamed" if stream else "whole")
            yield from turns(proxies, path, 1 if quick else PROCESSES, stream=stream)
        records = 10_000 if quick else RECORDS
        bounds = Bounds(records=records, bytes=1 << 40)
        for name, place in ("memory", None), ("sqlite", Path(folder) / "full"):
            yield from asyncio.run(lookups(name, SqliteStore(place, bounds), records))


def turns(proxies: Proxies, path: Path, processes: int, *, stream: bool) -> Iterator[Row]:
    """Compare stored turns with those of a proxy without a store, in alternation: elapsed time, and CPU time.

    We start several processes of each kind: two of the same kind already differ by a quarter of a millisecond per turn.
    """
    waited: list[tuple[float, float]] = []
    worked: list[tuple[float, float]] = []
    for number in range(processes):
        with proxies.fresh() as off, proxies.fresh(toolsim_store=f"sqlite:{path}{number}") as on:
            clients = [(proxy, Client(proxy.url)) for proxy in (off, on)]
            for _, client in clients:
                for _ in range(40):
                    client.ask("responses", MODEL, stream=stream)
            used = [cpu_seconds(proxy.pid) for proxy, _ in clients]
            for _ in range(TURNS):
                times: list[float] = []
                for _, client in clients:
                    start = time.perf_counter()
                    client.ask("responses", MODEL, stream=stream)
                    times.append(1000 * (time.perf_counter() - start))
                waited.append((times[0], times[1]))
            cost = [
                1000 * (cpu_seconds(proxy.pid) - before) / TURNS
                for (proxy, _), before in zip(clients, used, strict=True)
            ]
            worked.append((cost[0], cost[1]))
    name = f"a turn that is kept, sqlite, {'streamed' if stream else 'whole'}"
    for what, pairs in (name, waited), (f"{name}, processor", worked):
        more = sorted(kept - without for without, kept in pairs)
        without, kept = (statistics.median(times) for times in zip(*pairs, strict=True))
        note = f"quartiles {more[len(more) // 4]:.3f} to {more[-1 - len(more) // 4]:.3f} of {len(more)} pairs"
        yield Row("store", what, statistics.median(more), "ms more", 0.5, kept, without, note)


async def lookups(name: str, store: Store, records: int) -> Iterator[Row]:
    """Fill a store to its limit and a tenth beyond, then read chains of one record, by id and by name."""
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
        # Each write evicts the oldest record, which is never looked up.
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
