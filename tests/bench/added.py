"""The cost of a feature per turn: the same turns alternate between a proxy with the feature and a proxy without it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator

from bench.stage import Client, cpu_seconds
from bench.table import Row
from support.mitmdump import Mitmdump

TURNS = 100


def rows(
    group: str, name: str, goal: float, model: str, pairs: Iterable[tuple[Mitmdump, Mitmdump]], *, stream: bool
) -> Iterator[Row]:
    """Yield rows for the elapsed time of a turn, its 99th percentile, and its CPU time, for both kinds of proxies.

    ``pairs``: pairs of proxies, without and with the feature, not yet started. Several pairs are needed, because even
    two processes of the same kind differ by a quarter of a millisecond per turn.
    """
    waited: list[tuple[float, float]] = []
    worked: list[tuple[float, float]] = []
    for off, on in pairs:
        with off, on:
            clients = [(proxy, Client(proxy.url)) for proxy in (off, on)]
            for _, client in clients:
                for _ in range(40):
                    client.ask("responses", model, stream=stream)
            used = [cpu_seconds(proxy.pid) for proxy, _ in clients]
            for _ in range(TURNS):
                times: list[float] = []
                for _, client in clients:
                    start = time.perf_counter()
                    client.ask("responses", model, stream=stream)
                    times.append(1000 * (time.perf_counter() - start))
                waited.append((times[0], times[1]))
            cost = [
                1000 * (cpu_seconds(proxy.pid) - before) / TURNS
                for (proxy, _), before in zip(clients, used, strict=True)
            ]
            worked.append((cost[0], cost[1]))
    name = f"{name}, {'streamed' if stream else 'whole'}"
    for what, measured in (name, waited), (f"{name}, processor", worked):
        more = sorted(added - without for without, added in measured)
        without, added = (statistics.median(times) for times in zip(*measured, strict=True))
        note = f"quartiles {more[len(more) // 4]:.3f} to {more[-1 - len(more) // 4]:.3f} of {len(more)} pairs"
        yield Row(group, what, statistics.median(more), "ms more", goal, added, without, note)
        if measured is waited:
            without, added = (statistics.quantiles(times, n=100)[98] for times in zip(*measured, strict=True))
            yield Row(group, f"{name}, p99", added - without, "ms more", None, added, without)
