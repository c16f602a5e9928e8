"""The parser and the whole way of an answer, in microseconds per delta of four characters.

The reference is the least that any parser in Python must do with a delta: look for a tag, and keep the text.
Figures are medians over runs that take turns, so that a busy machine disturbs all alike; the ratios are what counts.
The longest delta is the largest of the shortest times that each delta took: what a scheduler adds does not repeat.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable

from support.answers import plan, tool
from support.wire import backend_answer
from toolsimlib.plan import Dialect
from toolsimlib.report import Report
from toolsimlib.response.rewrite import ResponseRewriter
from toolsimlib.response.sentinel import Sentinel

STEP = 4
RUNS = 7
LIMIT = 10_000_000
SIZES = (2_000, 20_000, 100_000, 500_000)
clock = time.perf_counter


def prose(size: int) -> str:
    """Return words with a few angle brackets, as code and mathematics have them."""
    return ("If a < b, use the <b>first</b> one; else look it up in the table below.\n" * (size // 70 + 1))[:size]


def string_block(size: int) -> str:
    """Return a call whose arguments are one JSON string, full of escapes, as files of code are written."""
    arguments = json.dumps({"path": "a.py", "text": 'print("hello, world")\n' * (size // 26)})
    return f"<tool_call>{json.dumps({'name': 'write', 'arguments': arguments})}</tool_call>"


def object_block(size: int) -> str:
    """Return a call whose arguments are an object of many small values."""
    rows = [{"id": number, "name": f"row {number}", "ok": True} for number in range(size // 45)]
    return f'<tool_call>{{"name":"write","arguments":{json.dumps({"rows": rows})}}}</tool_call>'


def reference() -> Callable[[str], object]:
    kept: list[str] = []

    def feed(text: str) -> None:
        if "<" in text:
            text.find("<tool_call>")
        kept.append(text)

    return feed


def sentinel() -> Callable[[str], object]:
    return Sentinel(limit=LIMIT).feed


def per_delta(make: Callable[[], Callable[[str], object]], deltas: list[str]) -> float:
    feed = make()
    start = clock()
    for delta in deltas:
        feed(delta)
    return (clock() - start) / len(deltas) * 1e6


def longest(deltas: list[str]) -> float:
    best = [float("inf")] * len(deltas)
    for _ in range(RUNS):
        feed = sentinel()
        for index, delta in enumerate(deltas):
            start = clock()
            feed(delta)
            best[index] = min(best[index], clock() - start)
    return max(best) * 1e6


def whole_way(client: Dialect, text: str) -> tuple[float, float]:
    """Return the time of a delta from backend bytes to client bytes, and that of reading and writing its JSON alone."""
    deltas = [text[i : i + STEP] for i in range(0, len(text), STEP)]
    kind, body = backend_answer("chat", True, deltas)
    frames = [frame + b"\n\n" for frame in body.split(b"\n\n") if frame]
    times, bare = [], []
    for _ in range(RUNS):
        rewriter = ResponseRewriter(plan(client, "chat", True, [tool("write")]), Report(), content_type=kind)
        start = clock()
        for frame in frames:
            rewriter.feed(frame)
        times.append((clock() - start) / len(deltas) * 1e6)
        start = clock()
        for frame in frames:
            if frame[6:12] != b"[DONE]":
                json.dumps(json.loads(frame[6:])).encode()
        bare.append((clock() - start) / len(deltas) * 1e6)
    return statistics.median(times), statistics.median(bare)


def main() -> None:
    gc.disable()
    print(f"Parser, µs per delta of {STEP} characters (median of {RUNS} runs, taking turns with the reference)")
    print(f"{'text':>8} {'size':>8} {'parser':>8} {'reference':>10} {'ratio':>6} {'longest delta':>14}")
    for name, make_text in (("prose", prose), ("string", string_block), ("object", object_block)):
        for size in SIZES:
            text = make_text(size)
            deltas = [text[i : i + STEP] for i in range(0, len(text), STEP)]
            pairs = [(per_delta(sentinel, deltas), per_delta(reference, deltas)) for _ in range(RUNS)]
            ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"{name:>8} {size:>8} {ours:>8.2f} {theirs:>10.2f} {ratio:>6.1f} {longest(deltas):>11.0f} µs")
    print()
    print("The whole way of an answer, µs per delta (chat backend, 100 KB of words)")
    print(f"{'client':>10} {'toolsim':>8} {'JSON alone':>11} {'ratio':>6}")
    for client in ("chat", "responses"):
        ours, bare = whole_way(client, prose(100_000))
        print(f"{client:>10} {ours:>8.2f} {bare:>11.2f} {ours / bare:>6.1f}")


if __name__ == "__main__":
    main()
