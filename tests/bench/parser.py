"""The parser, and the whole way of an answer in the process, in microseconds of CPU per delta of four characters.

The reference of the parser is the least that any in Python must do with a delta: look for a tag, and keep the text.
That of the whole way is the JSON of its frames, read and written. Peers: the parsers of vLLM and SGLang come only with
their engines, and with torch; ``@ai-sdk-tool/parser`` runs in another language, inside an SDK's own streams.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from bench.table import Row
from bench.texts import call, object_call, pieces, prose
from support.answers import plan, tool
from support.wire import backend_answer
from toolsimlib.plan import Dialect
from toolsimlib.report import Report
from toolsimlib.response.rewrite import ResponseRewriter
from toolsimlib.response.sentinel import Sentinel

STEP = 4
RUNS = 7
MAX_BYTES = 10_000_000
SIZES = (2_000, 100_000, 500_000)


def reference() -> Callable[[str], object]:
    kept: list[str] = []

    def feed(text: str) -> None:
        if "<" in text:
            text.find("<tool_call>")
        kept.append(text)

    return feed


def sentinel() -> Callable[[str], object]:
    return Sentinel(limit=MAX_BYTES).feed


def per_delta(make: Callable[[], Callable[[str], object]], deltas: Sequence[str]) -> float:
    feed = make()
    start = time.process_time_ns()
    for delta in deltas:
        feed(delta)
    return (time.process_time_ns() - start) / len(deltas) / 1e3


def whole_way(client: Dialect, backend: Dialect, text: str, together: int) -> tuple[float, float]:
    """Return the time of a delta from backend bytes to client bytes, and that of its JSON alone."""
    deltas = pieces(text, STEP)
    kind, body = backend_answer(backend, True, deltas)
    frames = [frame + b"\n\n" for frame in body.split(b"\n\n") if frame]
    writes = [b"".join(frames[at : at + together]) for at in range(0, len(frames), together)]
    documents = [frame.partition(b"data: ")[2] for frame in frames]
    times, bare = [], []
    for _ in range(RUNS):
        rewriter = ResponseRewriter(plan(client, backend, True, [tool("write")]), Report(), content_type=kind)
        start = time.process_time_ns()
        for data in writes:
            rewriter.feed(data)
        times.append((time.process_time_ns() - start) / len(deltas) / 1e3)
        start = time.process_time_ns()
        for document in documents:
            if document[:6] != b"[DONE]":
                json.dumps(json.loads(document)).encode()
        bare.append((time.process_time_ns() - start) / len(deltas) / 1e3)
    return statistics.median(times), statistics.median(bare)


def measure(quick: bool) -> Iterator[Row]:
    """Yield the parser's rows, then those of the whole way."""
    gc.disable()
    try:
        yield from measure_parser(SIZES[:2] if quick else SIZES)
        for backend in ("chat", "responses"):
            for client in ("chat", "responses"):
                for together in (1, 8):
                    ours, bare = whole_way(client, backend, prose(40_000), together)
                    name = f"prose, {client} ← {backend}, {together} together: all of the way"
                    yield Row("process", name, ours, "µs/delta", None, ours, bare, "reference: its JSON alone")
    finally:
        gc.enable()


def measure_parser(sizes: Sequence[int]) -> Iterator[Row]:
    for name, make_text, goal in (("prose", prose, 1.0), ("string call", call, 2.0), ("object call", object_call, 2.0)):
        for size in sizes:
            deltas = pieces(make_text(size), STEP)
            pairs = [(per_delta(sentinel, deltas), per_delta(reference, deltas)) for _ in range(RUNS)]
            ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
            yield Row("parser", f"{name}, {size / 1000:g} KB", ours, "µs/delta", goal, ours, theirs)
