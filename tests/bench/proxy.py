"""What a request costs on its way: the backend alone, a bare mitmdump before it, and mitmdump with the addon.

They take turns, request by request, so that a busy machine disturbs all alike. Figures are medians in milliseconds;
ratios are to the bare mitmdump, told to stream.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import statistics
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says

ROUNDS = 60
SIDE_BY_SIDE = 8
clock = time.perf_counter

TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}}
WORDS = says(*("word " for _ in range(50)), '<tool_call>{"name":"get_weather","arguments":{"city":"Bonn"}}</tool_call>')


class Client:
    """One connection that is kept, as clients keep theirs."""

    def __init__(self, url: str, with_tools: bool) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc)
        tools = {"tools": [TOOL]} if with_tools else {}
        self._body = json.dumps({"model": "m", "input": "Hi", "stream": True, **tools})

    def ask(self) -> tuple[float, float]:
        """Return the milliseconds to the first byte of the answer's body, and to its last."""
        start = clock()
        self._connection.request("POST", "/v1/responses", self._body, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        answer.read(1)
        first = clock() - start
        answer.read()
        assert answer.status == 200
        return first * 1e3, (clock() - start) * 1e3


def side_by_side(make: Callable[[], Client]) -> float:
    """Return the requests per second that eight clients get served."""

    def run(_: int) -> None:
        client = make()
        for _ in range(ROUNDS // SIDE_BY_SIDE):
            client.ask()

    start = clock()
    with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(run, range(SIDE_BY_SIDE)))
    return SIDE_BY_SIDE * (ROUNDS // SIDE_BY_SIDE) / (clock() - start)


def main() -> None:
    with (
        TextBackend(lambda _: WORDS) as backend,
        Mitmdump(backend.url, script=None, stream_large_bodies="1") as bare,
        Mitmdump(backend.url) as addon,
    ):
        ways = {
            "backend alone": lambda: Client(backend.url, False),
            "bare mitmdump": lambda: Client(bare.url, False),
            "toolsim, no tools": lambda: Client(addon.url, False),
            "toolsim, tools": lambda: Client(addon.url, True),
        }
        clients = {name: make() for name, make in ways.items()}
        for client in clients.values():
            client.ask()
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, client in clients.items():
                times[name].append(client.ask())
        first = {name: statistics.median(each[0] for each in times[name]) for name in ways}
        last = {name: statistics.median(each[1] for each in times[name]) for name in ways}
        print(f"A streamed answer of 51 deltas, ms (median of {ROUNDS}); requests per second of {SIDE_BY_SIDE} clients")
        print(f"{'':>18} {'first byte':>11} {'ratio':>6} {'last byte':>10} {'ratio':>6} {'requests/s':>11}")
        for name, make in ways.items():
            ratios = first[name] / first["bare mitmdump"], last[name] / last["bare mitmdump"]
            rate = side_by_side(make)
            print(
                f"{name:>18} {first[name]:>11.2f} {ratios[0]:>6.2f} {last[name]:>10.2f} {ratios[1]:>6.2f} {rate:>11.0f}"
            )


if __name__ == "__main__":
    main()
