"""The throughput of non-streamed answers, and the proxy's memory with many streams and many requests."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator

from bench.delay import side_by_side
from bench.stage import PATHS, Client, Proxies, cpu_seconds, resident_megabytes
from bench.table import Row
from support.mitmdump import Mitmdump

# A full garbage collection occurs about every 1,000 requests, and frees the reference cycles that requests leave
# behind. Between collections, memory varies by about 8 MB, so two measurements are not sufficient. The warm-up covers
# the first collections and the filling of bounded caches. The measurement then covers ten such periods.
WARM_UP, COUNTED, BETWEEN = 2_500, 10_000, 250


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    """Yield rows for the throughput and the CPU time of requests, for each API."""
    sides = (proxies.toolsim(), proxies.bare())
    for api in PATHS:
        clients = [Client(side.url) for side in sides]
        rates: list[list[float]] = [[], []]
        costs: list[list[float]] = [[], []]
        for _ in range(6):
            for side, client, rate, cost in zip(sides, clients, rates, costs, strict=True):
                count = 10 if quick else 40
                start, before = time.perf_counter(), cpu_seconds(side.pid)
                for _ in range(count):
                    client.ask(api, "call-2000-4-1", stream=False)
                rate.append(count / (time.perf_counter() - start))
                cost.append(1000 * (cpu_seconds(side.pid) - before) / count)
        toolsim, reference = (statistics.median(rate[1:]) for rate in rates)
        yield Row("whole", f"requests a second, {api}", toolsim, "/s", None, toolsim, reference)
        toolsim, reference = (statistics.median(cost[1:]) for cost in costs)
        yield Row("whole", f"CPU of a request, {api}", toolsim - reference, "ms more", None, toolsim, reference)


def measure_memory(proxies: Proxies, quick: bool) -> Iterator[Row]:
    """Yield rows for the memory of many streams and for the memory growth per request, compared to a bare proxy."""
    sides = (proxies.toolsim(), proxies.bare())
    peaks = []
    for side in sides:
        before = resident_megabytes(side.pid)
        asyncio.run(side_by_side(side.url, 50 if quick else 200, 2))
        peaks.append(resident_megabytes(side.pid) - before)
    yield Row("memory", f"{50 if quick else 200} streams", peaks[0], "MB more", None, *peaks)
    counted = 1_000 if quick else COUNTED
    slopes, ranges = [], []
    # Use new proxies, so that the figure does not depend on earlier measurements.
    for fresh in (proxies.fresh(), proxies.fresh_bare()):
        with fresh:
            sizes = resident_over_requests(fresh, WARM_UP + counted)
        slopes.append(1024 * statistics.linear_regression(list(sizes), list(sizes.values())).slope)
        ranges.append(f"{min(sizes.values()):.0f} to {max(sizes.values()):.0f}")
    # A short run covers only a few periods, so its slope has no goal.
    goal, note = None if quick else 1.0, f"{ranges[0]} MB, bare {ranges[1]}"
    name = f"growth, requests {WARM_UP:,} to {WARM_UP + counted:,}, fitted"
    yield Row("memory", name, slopes[0] - slopes[1], "KB/req", goal, *slopes, note=note)


def resident_over_requests(side: Mitmdump, total: int) -> dict[int, float]:
    """Return the memory in megabytes by number of requests, measured every ``BETWEEN`` requests after the warm-up."""
    client, sizes = Client(side.url), {}
    for number in range(total + 1):
        if number >= WARM_UP and number % BETWEEN == 0:
            sizes[number] = resident_megabytes(side.pid)
        client.ask("chat", "call-200-4-8" if number % 2 else "prose-400-4-8", stream=bool(number % 3))
    return sizes
