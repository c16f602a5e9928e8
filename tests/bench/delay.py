"""Delay of the first text, and of each delta in concurrent streams.

We measure the first text, not the first byte. In chat completions, a backend sends the role first, and toolsim forwards
it together with the next delta (see ``wire/chat/writer.py``). So the time of the first byte would include the backend's
pause after the role.

The text of a delta is the time at which the backend wrote it. So the delay is known when the delta arrives, regardless
of the accuracy of the backend's timer. On a saturated machine, even the bare proxy is slow; in this case, a note says
so.

All streams begin within one second. Two hundred requests per second are close to the limit of any proxy, even a bare
one, and the deltas that are written during that second queue behind the requests. So deltas that are written while
streams begin or end have a separate row, to which the goal does not apply.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import operator
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bench.stage import PATHS, TOOLS, Client, Proxies, request_body
from bench.table import Row
from bench.texts import prose
from websockets.sync.client import connect

RATE = 50
CALLS = 20
FIRST = b'"' + prose(4).encode()
_WRITTEN = re.compile(rb'"content":\s?"(\d{6,}) "')


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    """Yield the rows of the first text, then the rows of 1, 50 and 200 streams."""
    bare, ours = proxies.bare(), proxies.toolsim()
    yield from first_text(bare.url, ours.url, 60 if quick else 300)
    yield calls_over_a_websocket(ours.url, 5 if quick else 20)
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
                received = b""
                while FIRST not in received:
                    received += answer.read1()
                if turn > 5:
                    found.append(1000 * (time.perf_counter() - start))
                answer.read()
        reference, toolsim = map(statistics.median, times)
        yield Row("delay", f"first text, {api}", toolsim - reference, "ms more", 1.5, toolsim, reference)


def calls_over_a_websocket(url: str, rounds: int) -> Row:
    """Return a row that compares the time until a request reaches the model over WebSocket and over HTTP.

    The requests form a loop of calls. With WebSocket, the connection remembers the conversation. With HTTP, the
    reference, the connection is also kept alive, but each request contains all earlier calls.
    """
    times: list[list[float]] = [[], []]
    sent = {"model": "asked-1-1-1", "store": False, "tools": TOOLS}
    for _ in range(rounds):
        client, items = Client(url), [_QUESTION]
        with connect(url.replace("http", "ws") + PATHS["responses"]) as connection:
            new, previous = [_QUESTION], dict[str, str]()
            for _call in range(CALLS):
                start = time.monotonic_ns()
                received = client.post(PATHS["responses"], {**sent, "stream": True, "input": items})
                response = json.loads(received.rpartition(b"event: response.completed\ndata: ")[2].split(b"\n")[0])[
                    "response"
                ]
                times[0].append(_arrival(response) - start)
                items += [*response["output"], _output(response)]
                start = time.monotonic_ns()
                connection.send(json.dumps({"type": "response.create", **sent, "input": new, **previous}))
                while (event := json.loads(connection.recv()))["type"] != "response.completed":
                    pass
                times[1].append(_arrival(event["response"]) - start)
                new, previous = [_output(event["response"])], {"previous_response_id": event["response"]["id"]}
    http, websocket = (statistics.median(found) / 1e6 for found in times)
    return Row(
        "delay",
        f"before the model, {CALLS} calls, WebSocket and HTTP",
        websocket - http,
        "ms more",
        ours=websocket,
        reference=http,
    )


_QUESTION: dict[str, Any] = {"role": "user", "content": "Write files."}


def _output(response: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": response["output"][0]["call_id"], "output": "Written.\n" * 50}


def _arrival(response: dict[str, Any]) -> int:
    return int(json.loads(response["output"][0]["arguments"])["path"])


class Delays(NamedTuple):
    """Delays in milliseconds of the deltas that were written while all streams ran, and of all other deltas."""

    running: list[float]
    at_ends: list[float]


async def side_by_side(url: str, streams: int, seconds: float) -> Delays:
    """Return the delay of each delta in concurrent streams."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(streams)]
    body = request_body("chat", f"timed-{int(RATE * seconds)}-{RATE}-1")
    host, port = urlsplit(url).hostname, urlsplit(url).port

    async def one(number: int) -> None:
        await asyncio.sleep(number / streams)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % PATHS["chat"].encode())
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
