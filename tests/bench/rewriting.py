"""The CPU time of rewriting a request, for short and long lists of tools and histories, both new and repeated.

All these requests are so large that toolsim rewrites them in a worker process. A worker runs no garbage collection
during a job, so the benchmark does not run it either.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

from bench.machine import pace
from bench.table import Row
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy.jobs import LOOP_BYTES
from toolsim.request.rewrite import rewrite_request

GROUP = "rewriting"


def tools(count: int, salt: int) -> list[dict[str, Any]]:
    """Return tools like those of a typical client. A new ``salt`` produces new tools, which no cache contains."""
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": f"Do number {number} to a file, and tell what became of it ({salt}).",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string", "description": f"Where it is, {salt}"},
                        "lines": {"type": "array", "items": {"type": "integer", "minimum": number}},
                        "mode": {"enum": ["read", "write", str(number)]},
                    },
                    "required": ["path"],
                    "additionalProperties": False,
                },
                "strict": number % 2 == 0,
            },
        }
        for number in range(count)
    ]


def history(count: int, salt: int) -> list[dict[str, Any]]:
    """Return messages: a question, then alternating calls and outputs. A longer history begins with the shorter one."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Look at the files ({salt})."}]
    for number in range(1, count // 2):
        path = f"src/{salt}/file_{number}.py"
        call_id, arguments = f"call_{number:03}", json.dumps({"path": path, "lines": [number]})
        call = {"id": call_id, "type": "function", "function": {"name": "tool_0", "arguments": arguments}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call_id, "content": f"# {path}\ndef f():\n    return 1\n" * 3})
    return messages


def body(tool_count: int, item_count: int, salt: int) -> bytes:
    return json.dumps({"model": "m", "messages": history(item_count, salt), "tools": tools(tool_count, salt)}).encode()


def cost(data: bytes) -> float:
    assert len(data) > LOOP_BYTES
    gc.disable()
    start = time.process_time_ns()
    rewritten = rewrite_request("chat", "/v1/chat/completions", data, Policy(), output_mode=None, report=Report())
    taken = time.process_time_ns() - start
    gc.enable()
    assert rewritten is not None
    return taken / 1e6


def json_alone(data: bytes) -> float:
    """Return the cost of parsing and serializing the body's JSON, to compare costs between machines."""
    gc.disable()
    start = time.process_time_ns()
    json.dumps(json.loads(data))
    taken = time.process_time_ns() - start
    gc.enable()
    return taken / 1e6


def first_time(tool_count: int, item_count: int, rounds: int) -> float:
    return statistics.median(cost(body(tool_count, item_count, -2 - salt)) for salt in range(rounds))


def first_and_again(tool_count: int, item_count: int, rounds: int) -> tuple[float, ...]:
    """Return the costs of a conversation's first request, of the same request again, and of requests that continue it.

    The last two values are the cost of the body's JSON alone, and the pace of the machine. Measurements of both
    alternate with the requests.
    """
    figures = []
    for salt in range(rounds):
        data = body(tool_count, item_count, salt)
        first = cost(data)
        again = min(cost(data) for _ in range(3))
        further = min(cost(body(tool_count, item_count + 2 * more, salt)) for more in (1, 2, 3))
        figures.append((first, again, further, json_alone(data), pace(1)))
    return tuple(map(statistics.median, zip(*figures, strict=True)))


def measure(quick: bool) -> Iterator[Row]:
    """Yield the costs for one size, and their growth with the size."""
    cost(body(128, 2, -1))
    first, again, further, alone, now = first_and_again(128, 200, 25)
    name, note = "128 tools, 200 items", "reference: its JSON alone"
    yield Row(GROUP, f"{name}, first", first, "ms", 10.0, first, alone, note, now)
    yield Row(GROUP, f"{name}, again", again, "ms", 4.0, pace=now)
    yield Row(GROUP, f"{name}, two items more each time", further, "ms", 4.0, pace=now)
    for name, smaller, larger in (
        ("2,000 tools over 1,000, first", (1_000, 2), (2_000, 2)),
        ("100,000 items over 50,000", (1, 50_000), (1, 100_000)),
    ):
        if quick and larger[1] > 1000:
            smaller, larger, name = (1, 5_000), (1, 10_000), "10,000 items over 5,000"
        reference, ours = (first_time(*size, 3) for size in (smaller, larger))
        # A factor of two means linear growth. The goal is higher because more memory makes the processor's cache less
        # effective.
        yield Row(GROUP, name, ours / reference, "×", 2.5, ours, reference, "ms")
