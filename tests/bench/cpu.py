"""CPU time of mitmdump with the addon for one streamed answer, divided by the CPU time of a bare mitmdump.

The two proxies alternate stream by stream, so that other load affects both alike. If the client and the backend use
different APIs, the bare proxy streams the backend's API, since it cannot translate.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from bench.stage import Client, Proxies, cpu_seconds
from bench.table import Row
from support.mitmdump import Mitmdump


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of stream. ``model``: see `backend.py`.

    ``processes``: the number of pairs of new proxies to measure. Several pairs are needed for streams with eight events
    per write, because two identical processes can differ permanently by a tenth of such a stream's cost. ``tls``:
    whether the backend uses TLS, in which case every delta passes through mitmproxy's TLS layers.
    """

    model: str
    client: str
    backend: str
    goal: float
    arguments: str = "buffered"
    quick: bool = False
    rounds: int = 5
    processes: int = 1
    tls: bool = False

    @property
    def name(self) -> str:
        kind, size, step, per_write = self.model.split("-")
        way = f"{self.client} ← {self.backend}" if self.client != self.backend else self.client
        mode = f" {self.arguments}" if kind != "prose" else ""
        tls = ", TLS" if self.tls else ""
        return f"{kind} {int(size) / 1000:g} KB{mode}, {way}{tls}, {step} chars × {per_write} a write"


PROSE, PROSE_OVER_TLS, CALLS = 1.0, 1.3, 1.25


def cases() -> Iterator[Case]:
    apis = ("chat", "responses")
    for client in apis:
        for backend in apis:
            yield Case("prose-8000-4-1", client, backend, PROSE, quick=client == backend)
            yield Case("prose-16000-4-8", client, backend, PROSE, quick=True, processes=5)
    for api in apis:
        yield Case("prose-8000-4-1", api, api, PROSE_OVER_TLS, quick=api == "chat", tls=True)
        yield Case("prose-16000-4-8", api, api, PROSE_OVER_TLS, tls=True)
    for api in apis:
        for arguments in ("buffered", "incremental"):
            yield Case("call-2000-4-1", api, api, CALLS, arguments)
            yield Case("call-80000-4-8", api, api, CALLS, arguments, quick=api == "chat")
            yield Case("call-500000-4-8", api, api, CALLS, arguments, rounds=1)
        yield Case("emitted-2000-4-1", api, api, CALLS, "incremental")
        yield Case("emitted-80000-4-8", api, api, CALLS, "incremental", quick=api == "chat")

    # Claude Code's API with a chat backend, which is the usual case, and with a backend that has the same API.
    for backend in ("chat", "messages"):
        yield Case("prose-8000-4-1", "messages", backend, PROSE, quick=backend == "chat")
        yield Case("prose-16000-4-8", "messages", backend, PROSE, processes=5)
        yield Case("call-2000-4-1", "messages", backend, CALLS)
        yield Case("call-80000-4-8", "messages", backend, CALLS, "incremental", quick=backend == "chat")


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    for case in cases():
        if quick and not case.quick:
            continue
        backend = "auto" if case.client == case.backend != "messages" else case.backend
        pairs: list[tuple[float, float]] = []
        if case.processes == 1 or quick:
            ours, bare = proxies.toolsim(backend, case.arguments, tls=case.tls), proxies.bare(tls=case.tls)
            pairs.append(costs(case, ours, bare, min(case.rounds, 3) if quick else case.rounds))
        else:
            for _ in range(case.processes):
                with proxies.fresh(backend) as ours, proxies.fresh_bare() as bare:
                    pairs.append(costs(case, ours, bare, case.rounds))
        ratios = sorted(ours / bare for ours, bare in pairs)
        note = f"ms a stream; {ratios[0]:.2f} to {ratios[-1]:.2f} of {len(pairs)} pairs" if pairs[1:] else "ms a stream"
        toolsim, reference = map(statistics.median, zip(*pairs, strict=True))
        yield Row("cpu", case.name, statistics.median(ratios), "× bare", case.goal, toolsim, reference, note)


def costs(case: Case, ours: Mitmdump, bare: Mitmdump, rounds: int) -> tuple[float, float]:
    """Return the milliseconds of CPU time per stream for toolsim and for the bare proxy."""
    sides = ((ours, Client(ours.url), case.client), (bare, Client(bare.url), case.backend))
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for (proxy, client, api), cost in zip(sides, taken, strict=True):
            before = cpu_seconds(proxy.pid)
            client.ask(api, case.model)
            if turn:  # The first round is a warm-up.
                cost.append(1000 * (cpu_seconds(proxy.pid) - before))
    return statistics.median(taken[0]), statistics.median(taken[1])
