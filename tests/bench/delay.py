"""What waits: the first text, and each delta of streams that run side by side.

The first text and not the first byte: over chat completions the role, which a backend sends ahead, goes out with what
follows it (see ``wire/chat/writer.py``), so that a first byte's time would hold the backend's own pause behind it.

A delta's text is the time at which the backend wrote it, so that its delay is known when it arrives, whatever the
backend's own timer did. Where the machine is full even the bare proxy waits long; a note says so.

All streams begin within one second. Two hundred requests in a second are most of what a proxy can do, a bare one too,
and each delta of that second waits behind them: a question of what a request costs, which has rows of its own. So the
deltas that are written while streams still begin, or end, have a row of their own too; the goal is for the others.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.stage import PATHS, Client, Proxies, request_body
from bench.table import Row
from bench.texts import prose

RATE = 50
FIRST = b'"' + prose(4).encode()
_WRITTEN = re.compile(rb'"content":\s?"(\d{6,}) "')


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    """Yield the first text's rows, then those of 1, 50 and 200 streams."""
    bare, ours = proxies.bare(), proxies.toolsim()
    yield from first_text(bare.url, ours.url, 60 if quick else 300)
    for streams in (1, 50) if quick else (1, 50, 200):
        runs = [asyncio.run(side_by_side(url, streams, 3 if quick else 6)) for url in (bare.url, ours.url) * 2]
        of_bare, of_ours = (Delays(*map(operator.add, runs[at], runs[at + 2])) for at in (0, 1))
        (their_median, their_p99), (our_median, our_p99) = percentiles(of_bare.running), percentiles(of_ours.running)
        figures = [("median", None, our_median, their_median), ("p99", 1.0, our_p99, their_p99)]
        if streams > 1:
            ours_at_ends, theirs_at_ends = percentiles(of_ours.at_ends)[1], percentiles(of_bare.at_ends)[1]
            figures.append(("p99, begin and end", None, ours_at_ends, theirs_at_ends))
        for name, goal, our, their in figures:
            note = "the bare proxy is full as well" if their > 100 else ""
            name = f"delay of a delta, {streams} streams of {RATE} a second, {name}"
            yield Row("delay", name, our - their, "ms more", goal, our, their, note)


def first_text(bare: str, ours: str, rounds: int) -> Iterator[Row]:
    for api in PATHS:
        clients = [Client(bare), Client(ours)]
        times: list[list[float]] = [[], []]
        for turn in range(rounds):
            for client, found in zip(clients, times, strict=True):
                start = time.perf_counter()
                answer = client.begin(api, "prose-100-4-1")
                told = b""
                while FIRST not in told:
                    told += answer.read1()
                if turn > 5:
                    found.append(1000 * (time.perf_counter() - start))
                answer.read()
        reference, toolsim = map(statistics.median, times)
        yield Row("delay", f"first text, {api}", toolsim - reference, "ms more", 0.3, toolsim, reference)


class Delays(NamedTuple):
    """Milliseconds that deltas took: those that were written while all streams ran, and before or after that."""

    running: list[float]
    at_ends: list[float]


async def side_by_side(url: str, streams: int, seconds: float) -> Delays:
    """Return the milliseconds that each delta took."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(streams)]
    body = request_body("chat", f"timed-{int(RATE * seconds)}-{RATE}-1")
    host, port = urlsplit(url).hostname, urlsplit(url).port

    async def one(number: int) -> None:
        await asyncio.sleep(number / streams)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" % PATHS["chat"].encode())
        writer.write(b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        while data := await reader.read(65536):
            now = time.monotonic_ns()
            found[number].extend((int(at), now) for at in _WRITTEN.findall(data))
        writer.close()

    await asyncio.gather(*(one(number) for number in range(streams)))
    begun, over = max(stream[0][0] for stream in found), min(stream[-1][0] for stream in found)
    delays = Delays([], [])
    for at, arrived in itertools.chain.from_iterable(found):
        (delays.running if begun <= at <= over else delays.at_ends).append((arrived - at) / 1e6)
    return delays


def percentiles(delays: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(delays)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
