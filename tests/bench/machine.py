"""The pace of this machine, relative to the machine that the goals in ms and µs assume.

That machine parses and serializes the JSON of a chunk in 5 µs. The speeds of machines differ by more than a factor of
three, and the speed of a shared machine changes by a factor of two from minute to minute. So the pace is measured
around each row, or the measurements of the pace and of the row alternate. A row that misses its goal, but meets its
goal times the pace, is marked "scaled".
"""

from __future__ import annotations

import json
import statistics
import time

from support.wire import backend_answer

_MICROSECONDS = 5.0
_LOOPS = 1_000
_CHUNK = backend_answer("chat", True, ["abcd"])[1].split(b"\n\n")[1].removeprefix(b"data: ")


def pace(runs: int = 9) -> float:
    """Return the time that this machine needs to parse and write a chunk's JSON, relative to what the goals assume."""
    times = []
    for _ in range(runs):
        start = time.process_time_ns()
        for _ in range(_LOOPS):
            json.dumps(json.loads(_CHUNK)).encode()
        times.append((time.process_time_ns() - start) / _LOOPS / 1e3)
    return statistics.median(times) / _MICROSECONDS
