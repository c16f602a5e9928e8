"""The speed of this machine, for goals in ms and µs, which assume a machine that processes the JSON of a chunk in 5 µs.

Processing means parsing and serializing the JSON. The speed of machines differs by more than a factor of three, and
that of a shared machine by a factor of two from minute to minute. So the pace is measured around each row, or
alternately within it, and a row that misses its goal but not its goal times the pace is marked "scaled".
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
    """Return the time for a chunk's JSON, divided by its time on the machine for which the goals were set."""
    times = []
    for _ in range(runs):
        start = time.process_time_ns()
        for _ in range(_LOOPS):
            json.dumps(json.loads(_CHUNK)).encode()
        times.append((time.process_time_ns() - start) / _LOOPS / 1e3)
    return statistics.median(times) / _MICROSECONDS
