"""CPU time of the parser, and of an answer's complete path within the process, in microseconds per delta of four
characters.

The reference for the parser is the minimum that any parser in Python must do per delta: search for a tag and store the
text. The reference for the complete path is parsing and serializing the JSON of the frames. The peer is
``@ai-sdk-tool/parser`` from npm, with its Hermes protocol and within the SDK's streams (``peer.mjs``). No other peer is
available: vLLM's Hermes parser (0.33.0) cannot be imported without torch, and SGLang's (0.5.23) cannot be imported
without numpy and torch.
"""

from __future__ import annotations

import gc
import json
import math
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.table import BUILD, Row
from bench.texts import call, object_call, pieces, prose
from support.answers import plan, tool
from support.wire import backend_answer
from toolsim.core.policy import ApiName
from toolsim.core.report import Report
from toolsim.response.rewrite import ResponseRewriter
from toolsim.response.sentinel import Sentinel

STEP = 4
RUNS = 7
MAX_BYTES = 10_000_000
SIZES = (2_000, 100_000, 500_000)
# The peer's time grows with the square of the call's length: 100 KB takes minutes.
PEER_SIZES = (2_000, 20_000)
PEER = "@ai-sdk-tool/parser@4.1.26"
PEER_SCRIPT = Path(__file__).with_name("peer.mjs")
PEER_SECONDS = 300
TEXTS = (("prose", prose, 1.0), ("string call", call, 2.0), ("object call", object_call, 2.0))


def reference() -> Callable[[str], object]:
    stored: list[str] = []

    def feed(text: str) -> None:
        if "<" in text:
            text.find("<tool_call>")
        stored.append(text)

    return feed


def sentinel() -> Callable[[str], object]:
    return Sentinel(limit=MAX_BYTES).feed


def per_delta(make: Callable[[], Callable[[str], object]], deltas: Sequence[str]) -> float:
    feed = make()
    start = time.process_time_ns()
    for delta in deltas:
        feed(delta)
    return (time.process_time_ns() - start) / len(deltas) / 1e3


def whole_way(client: ApiName, backend: ApiName, text: str, together: int) -> tuple[float, float]:
    """Return the time per delta for the path from backend bytes to client bytes, and for the JSON alone."""
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
    """Yield the rows of the parser, then the rows of the complete path."""
    gc.disable()
    try:
        yield from measure_parser(SIZES[:2] if quick else SIZES)
        yield from measure_peer(PEER_SIZES)
        for backend in ("chat", "responses"):
            for client in ("chat", "responses"):
                for together in (1, 8):
                    ours, bare = whole_way(client, backend, prose(40_000), together)
                    name = f"prose, {client} ← {backend}, {together} together: all of the way"
                    yield Row("process", name, ours, "µs/delta", None, ours, bare, "reference: its JSON alone")
    finally:
        gc.enable()


def measure_parser(sizes: Sequence[int]) -> Iterator[Row]:
    for name, make_text, goal in TEXTS:
        for size in sizes:
            deltas = pieces(make_text(size), STEP)
            pairs = [(per_delta(sentinel, deltas), per_delta(reference, deltas)) for _ in range(RUNS)]
            ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
            yield Row("parser", f"{name}, {size / 1000:g} KB", ours, "µs/delta", goal, ours, theirs)


def measure_peer(sizes: Sequence[int]) -> Iterator[Row]:
    """Yield rows with the ratio of toolsim's time to the peer's. Install the peer under ``build/`` if it is missing."""
    folder = BUILD / "peer"
    if not shutil.which("npm"):
        yield Row("parser", PEER, math.nan, "× peer", note="no npm")
        return
    if not (folder / "node_modules").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, PEER], check=True)
    for name, make_text, _ in TEXTS:
        for size in sizes:
            deltas = pieces(make_text(size), STEP)
            asked = json.dumps({"deltas": deltas, "runs": 3}).encode()
            command = ["node", PEER_SCRIPT]
            done = subprocess.run(command, cwd=folder, input=asked, stdout=subprocess.PIPE, timeout=PEER_SECONDS)
            theirs = json.loads(done.stdout)["micros"]
            ours = statistics.median(per_delta(sentinel, deltas) for _ in range(RUNS))
            yield Row("parser", f"{name}, {size / 1000:g} KB, {PEER}", ours / theirs, "× peer", 1.0, ours, theirs)
