"""The CPU time per delta of one, two and four proxies that share HAProxy and Redis. Each proxy serves 30 streams.

The benchmark machine has fewer cores than processes, so throughput cannot be measured. Instead, the rows show whether a
delta costs more CPU time if more proxies share HAProxy and Redis. If it does not, N proxies on N cores serve N times as
many streams. Runs with one proxy and with several proxies alternate.

``make bench ROWS=several``
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.paced import Case, streams
from bench.stage import Client, Proxies, cpu_seconds
from bench.table import Row
from support.haproxy import haproxy
from support.mitmdump import Mitmdump
from support.ports import free_port
from support.redis_server import RedisServer

API = "responses"
STREAMS = 30
COUNTS = (2, 4)
# The CPU times of two identical processes differ by up to a tenth.
GOAL = 1.1
WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Group:
    """Proxies behind one HAProxy."""

    url: str
    proxies: Sequence[int]
    """The process IDs of the proxies."""
    shared: Sequence[int]
    """The process IDs of HAProxy and Redis."""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time per delta in microseconds, and the busiest proxy's share of the CPU time of all proxies."""

    proxies: float
    haproxy: float
    redis: float
    busiest: float


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    """Yield rows for two and for four proxies, each compared to one proxy."""
    with tempfile.TemporaryDirectory() as folder, RedisServer() as redis, ExitStack() as stack:
        groups = {count: _group(stack, proxies, redis, Path(folder), count) for count in (1, *COUNTS)}
        for count in COUNTS:
            pairs = [(_run(groups[count]), _run(groups[1])) for _ in range(1 if quick else 5)]
            name = f"{count} proxies, {count * STREAMS} streams"
            for part in ("proxies", "haproxy", "redis"):
                ours, alone = (
                    statistics.median(getattr(cost, part) for cost in side) for side in zip(*pairs, strict=True)
                )
                goal = GOAL if part == "proxies" else None
                yield Row("several", f"{name}: CPU of {part} per delta", ours / alone, "× one", goal, ours, alone, "µs")
            busiest = statistics.median(cost.busiest for cost, _ in pairs)
            yield Row("several", f"{name}: the busiest proxy", count * busiest, "× mean")


def _group(stack: ExitStack, proxies: Proxies, redis: RedisServer, folder: Path, count: int) -> Group:
    running: list[Mitmdump] = [stack.enter_context(proxies.fresh(toolsim_store=redis.url)) for _ in range(count)]
    port = free_port()
    (own := folder / str(count)).mkdir()
    balancer = stack.enter_context(haproxy(own, port, [proxy.port for proxy in running]))
    for proxy in running:
        client = Client(proxy.url)
        for _ in range(WARM_UP):
            client.ask(API, "paced-2-20-2")
    return Group(f"http://127.0.0.1:{port}", [proxy.pid for proxy in running], [balancer, redis.pid])


def _run(group: Group) -> Cost:
    watched = [*group.proxies, *group.shared]
    before = [cpu_seconds(pid) for pid in watched]
    case = Case(STREAMS * len(group.proxies), API, API, seconds=6.0)
    run = asyncio.run(streams(group.url, group.proxies, API, case))
    *of_proxies, of_haproxy, of_redis = (cpu_seconds(pid) - cpu for pid, cpu in zip(watched, before, strict=True))
    total = sum(of_proxies)
    return Cost(run.cpu, of_haproxy * run.cpu / total, of_redis * run.cpu / total, max(of_proxies) / total)
