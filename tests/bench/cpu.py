"""CPU time of mitmdump with the addon over that of a bare one, for one streamed answer.

Both take turns, stream by stream, so that a busy machine disturbs both alike. Across APIs the bare one streams the
backend's own API: that is what would pass if nobody translated.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from bench.stage import Client, Proxies, cpu_seconds
from bench.table import Row


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of stream. ``model``: see `backend.py`."""

    model: str
    client: str
    backend: str
    goal: float
    arguments: str = "buffered"
    quick: bool = False
    rounds: int = 5

    @property
    def name(self) -> str:
        kind, size, step, per_write = self.model.split("-")
        way = f"{self.client} ← {self.backend}" if self.client != self.backend else self.client
        told = f" {self.arguments}" if kind == "call" else ""
        return f"{kind} {int(size) / 1000:g} KB{told}, {way}, {step} chars × {per_write} a write"


def cases() -> Iterator[Case]:
    apis = ("chat", "responses")
    for client in apis:
        for backend in apis:
            same = client == backend
            yield Case("prose-8000-4-1", client, backend, 1.15 if same else 1.4, quick=same)
            yield Case("prose-16000-4-8", client, backend, 1.25 if same else 1.4, quick=True)
    for api in apis:
        for arguments, goal in (("buffered", 1.25), ("incremental", 1.5)):
            yield Case("call-2000-4-1", api, api, goal, arguments)
            yield Case("call-80000-4-8", api, api, goal, arguments, quick=api == "chat")
            yield Case("call-500000-4-8", api, api, goal, arguments, rounds=1)


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    """Yield a row for each case."""
    for case in cases():
        if quick and not case.quick:
            continue
        bare = proxies.bare()
        backend = "auto" if case.client == case.backend else case.backend
        ours = proxies.toolsim(backend, case.arguments)
        sides = ((ours, Client(ours.url), case.client), (bare, Client(bare.url), case.backend))
        costs: tuple[list[float], list[float]] = ([], [])
        for turn in range(min(case.rounds, 3 if quick else 9) + 1):
            for (proxy, client, api), cost in zip(sides, costs, strict=True):
                before = cpu_seconds(proxy.pid)
                client.ask(api, case.model)
                if turn:  # The first is to warm up.
                    cost.append(1000 * (cpu_seconds(proxy.pid) - before))
        toolsim, reference = map(statistics.median, costs)
        yield Row("cpu", case.name, toolsim / reference, "× bare", case.goal, toolsim, reference, "ms a stream")
