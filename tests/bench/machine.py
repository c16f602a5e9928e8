"""How fast this machine is, for goals in ms and µs: they were set where the JSON of a delta takes 5 µs.

Speed differs by more than three between machines, and by two on a shared one from minute to minute. So the pace is
measured around each row, and a row that misses its goal but not its goal times the pace is marked "scaled".
"""

from __future__ import annotations

import json
import statistics
import time

_MICROSECONDS = 5.0
_RUNS, _LOOPS = 9, 1_000
_DELTA = {"index": 0, "delta": {"content": "abcd"}, "finish_reason": None}
_CHUNK = json.dumps(
    {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [_DELTA]}
).encode()


def pace() -> float:
    """Return how many times as long as on the machine of the goals a delta's JSON takes, to read and write."""
    times = []
    for _ in range(_RUNS):
        start = time.process_time_ns()
        for _ in range(_LOOPS):
            json.dumps(json.loads(_CHUNK)).encode()
        times.append((time.process_time_ns() - start) / _LOOPS / 1e3)
    return statistics.median(times) / _MICROSECONDS
