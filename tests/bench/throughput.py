"""Whole answers, and the memory of the proxy: with many streams open, and after many requests."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator

from bench.delay import side_by_side
from bench.stage import PATHS, Client, Proxies, cpu_seconds, resident_megabytes
from bench.table import Row

# A stream is kept until its last timer has run, which mitmproxy cannot cancel.
TIMER_SECONDS = 12


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    """Yield requests a second for each API."""
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
    """Yield the memory of 200 streams, and how it grows over 10,000 requests, by what a bare proxy does not."""
    sides = (proxies.toolsim(), proxies.bare())
    peaks = []
    for side in sides:
        before = resident_megabytes(side.pid)
        asyncio.run(side_by_side(side.url, 50 if quick else 200, 2))
        peaks.append(resident_megabytes(side.pid) - before)
    yield Row("memory", f"{50 if quick else 200} streams", peaks[0], "MB more", None, *peaks)
    total = 1_000 if quick else 10_000
    growth = []
    for side in sides:
        client = Client(side.url)
        before = 0.0
        for number in range(total):
            if number == total // 2:
                time.sleep(TIMER_SECONDS)
                before = resident_megabytes(side.pid)
            client.ask("chat", "call-200-4-8" if number % 2 else "prose-400-4-8", stream=bool(number % 3))
        time.sleep(TIMER_SECONDS)
        growth.append(resident_megabytes(side.pid) - before)
    per_request = 1024 * (growth[0] - growth[1]) / (total // 2)
    yield Row("memory", f"growth, {total // 2:,} to {total:,} requests", per_request, "KB/req", 1.0, *growth, note="MB")
