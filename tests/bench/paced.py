"""Many streams at the pace of real models: 20 deltas per second each, in separate packets, all different.

A bare mitmdump and toolsim take turns processing the same streams. Each is pinned to the first core; the backend and
the client use the second core. All streams begin within four seconds, and one stream in ten ends with a call. CPU time
per delta, the figure that other load affects least, is the proxy's CPU time, including requests, divided by the number
of deltas that the client has read. Delays are measured only for deltas that were written while all streams ran.

``make bench ROWS=paced``
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import override
from urllib.parse import urlsplit

from bench.delay import percentiles
from bench.stage import PATHS, Client, Proxies, cpu_seconds, request_body, resident_megabytes
from bench.table import Row
from support.mitmdump import Mitmdump

RATE = 20
BEGIN_SECONDS = 4.0
CALL_EVERY = 10
_WRITTEN = re.compile(rb"\d+ (\d{9,}) ")


@dataclass(frozen=True, slots=True)
class Case:
    """A number of concurrent ``streams`` that last ``seconds`` each."""

    streams: int
    client: str = "chat"
    backend: str = "chat"
    seconds: float = 10.0
    goal: float | None = None
    """Maximum additional CPU time per delta compared to a bare mitmdump, in microseconds."""
    p99: float | None = None
    first_text: float | None = None
    """``p99``: the delay, in milliseconds, that 99% of the deltas must not exceed. ``first_text``: the corresponding
    limit for the first text of each stream.
    """

    @property
    def name(self) -> str:
        way = self.client if self.client == self.backend else f"{self.client} ← {self.backend}"
        return f"{self.streams} streams, {way}"


CASES = (
    Case(50),
    Case(200, goal=0.65),
    Case(400, p99=20.0),
    Case(600, p99=100.0, first_text=200.0),
    Case(200, "responses", "responses", goal=0.65),
    Case(200, "messages", "messages", goal=0.65),
    Case(200, "messages", "chat"),
)
QUICK = (Case(50, seconds=6.0), Case(200, seconds=6.0, goal=0.65))
MEMORY_GOAL = 100.0
WARM_UP = 20


@dataclass(slots=True)
class Run:
    """The results of one proxy: CPU time per delta in µs, delays in ms, and memory per stream in KB."""

    cpu: float = 0.0
    memory: float = 0.0
    delays: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    with pinned():
        for case in QUICK if quick else CASES:
            backend = case.backend if case.client != case.backend or case.client == "messages" else "auto"
            # The memory that a process uses is determined by its first run, so new proxies are started for each case.
            with proxies.fresh_bare() as bare, proxies.fresh(backend) as ours:
                sides = ((bare, case.backend), (ours, case.client))
                runs = [[_run(side, api, case) for side, api in sides] for _ in range(1 if quick else 3)]
            yield from _rows(case, [pair[0] for pair in runs], [pair[1] for pair in runs])


def _rows(case: Case, bare: list[Run], ours: list[Run]) -> Iterator[Row]:
    costs = [[run.cpu for run in side] for side in (ours, bare)]
    ratios = sorted(one / other for one, other in zip(*costs, strict=True))
    note = f"µs a delta; {ratios[0]:.2f} to {ratios[-1]:.2f} of {len(ratios)} pairs"
    ratio, cost = statistics.median(ratios), [statistics.median(side) for side in costs]
    yield Row("paced", f"{case.name}: CPU per delta", ratio, "× bare", case.goal, *cost, note)
    for what, goal, kind in (
        ("delay of a delta", case.p99, "delays"),
        ("first text", case.first_text, "first"),
    ):
        found = [percentiles([delay for run in side for delay in getattr(run, kind)]) for side in (ours, bare)]
        for at, name in enumerate(("median", "p99")):
            own, their = (figures[at] for figures in found)
            yield Row("paced", f"{case.name}: {what}, {name}", own, "ms", goal if at else None, own, their)
    memory = [side[0].memory for side in (ours, bare)]
    goal = MEMORY_GOAL if case.streams == 200 and case.client == "chat" else None
    yield Row("paced", f"{case.name}: memory per stream", memory[0], "KB", goal, *memory)


@contextmanager
def pinned() -> Iterator[None]:
    """Run this process and the backend on the second core. ``_run`` pins the proxies to the first core."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield
        return
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    processes = [os.getpid(), *map(int, children)]
    for process in processes:
        os.sched_setaffinity(process, cores[1:2])
    try:
        yield
    finally:
        for process in processes:
            os.sched_setaffinity(process, cores)


def _run(side: Mitmdump, api: str, case: Case) -> Run:
    for task in Path(f"/proc/{side.pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {min(os.sched_getaffinity(1))})
    client = Client(side.url)
    for _ in range(WARM_UP):
        client.ask(api, "paced-2-20-2")
    return asyncio.run(streams(side.url, [side.pid], api, case))


async def streams(url: str, proxies: Sequence[int], api: str, case: Case) -> Run:
    """Run all streams of a case through ``url``; ``proxies`` are the process IDs of the proxies behind it."""
    run, loop = Run(), asyncio.get_running_loop()
    address = urlsplit(url)
    memory, cpu = (sum(map(measured, proxies)) for measured in (resident_megabytes, cpu_seconds))
    readers: list[Reader] = []

    async def one(number: int) -> None:
        await asyncio.sleep(BEGIN_SECONDS * number / case.streams)
        ends = 2 if number % CALL_EVERY == 0 else 1
        body = request_body(api, f"paced-{int(RATE * case.seconds)}-{RATE}-{ends}")
        head = f"POST {PATHS[api]} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json"
        request = f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        _, reader = await loop.create_connection(lambda: Reader(request), address.hostname, address.port)
        readers.append(reader)
        await reader.ended

    async def weigh() -> None:
        await asyncio.sleep((BEGIN_SECONDS + case.seconds) / 2)
        run.memory = 1024 * (sum(map(resident_megabytes, proxies)) - memory) / case.streams

    await asyncio.gather(weigh(), *(one(number) for number in range(case.streams)))
    found = [list(reader.found.items()) for reader in readers]
    assert all(found), f"{sum(not each for each in found)} streams without a delta"
    assert all(len(each) == int(RATE * case.seconds) for each in found), sorted({len(each) for each in found})
    run.cpu = 1e6 * (sum(map(cpu_seconds, proxies)) - cpu) / sum(map(len, found))
    begun, over = max(each[0][0] for each in found), min(each[-1][0] for each in found)
    run.delays = [(now - at) / 1e6 for each in found for at, now in each if begun <= at <= over]
    run.first = [(each[0][1] - reader.sent) / 1e6 for reader, each in zip(readers, found, strict=True)]
    return run


class Reader(asyncio.Protocol):
    """A protocol that sends a request, and records in nanoseconds when each delta was written and read."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.sent = 0
        self.found: dict[int, int] = {}
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.sent = time.monotonic_ns()
        transport.write(self._request)

    @override
    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        for at in _WRITTEN.findall(data):
            # The last event of an answer may repeat the complete text.
            self.found.setdefault(int(at), now)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)
