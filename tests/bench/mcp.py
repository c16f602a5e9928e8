"""The cost of MCP tools per turn, with parallel calls to the client's tool, to a stdio server and to an HTTP server.

The reference is the same model answer through a proxy without MCP servers, where all three tools are functions of the
client. Both servers add two numbers and use the official package. The figures include the servers' work, as they do for
an operator. In the rows of a single server, the model calls one tool of that server and one tool of the client.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.stage import Client
from bench.table import Row
from support.mcp_servers import OFFICIAL, over_http
from support.mitmdump import MITMDUMP, Mitmdump
from support.text_backend import TextBackend, says

_NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
_SIDES = {"a stdio and an HTTP server": ("stdio", "http"), "a stdio server": ("stdio",), "an HTTP server": ("http",)}
_WARM_UP = 10


def measure(quick: bool) -> Iterator[Row]:
    """Yield the row of a turn with both servers, and the rows of a turn with only one server."""
    with tempfile.TemporaryDirectory() as folder, over_http() as url, TextBackend() as backend:
        never = {"require_approval": "never", "allowed_tools": ["add"]}
        servers = {"stdio": OFFICIAL | never, "http": {"url": url} | never}
        (config := Path(folder) / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        options: dict[str, Any] = {"command": MITMDUMP, "toolsim_backend": "chat"}
        with (
            Mitmdump(backend.url, **options) as without,
            Mitmdump(backend.url, toolsim_mcp_config=str(config), **options) as own,
        ):
            for name, labels in _SIDES.items():
                yield _row(name, labels, backend, Client(without.url), Client(own.url), 20 if quick else 100)


def _row(name: str, labels: tuple[str, ...], backend: TextBackend, without: Client, own: Client, turns: int) -> Row:
    calls = [{"name": f"{label}__add", "arguments": {"a": 1, "b": 2}} for label in labels]
    calls.append({"name": "write", "arguments": {"a": 3, "b": 4}})
    text = "\n".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
    functions = [{"type": "function", "name": call["name"], "parameters": _NUMBERS} for call in calls]
    times: list[list[float]] = [[], []]
    for turn in range(turns + _WARM_UP):
        for client, tools, found in zip((without, own), (functions, functions[-1:]), times, strict=True):
            backend.play([says(text)])
            start = time.perf_counter()
            answer = client.post("/v1/responses", {"model": "m", "input": "hi", "tools": tools})
            if turn >= _WARM_UP:
                found.append(1000 * (time.perf_counter() - start))
            kinds = [item["type"] for item in json.loads(answer)["output"]]
            assert kinds.count("mcp_call") == (len(labels) if client is own else 0), answer
            assert kinds.count("function_call") == (1 if client is own else len(calls)), answer
    reference, ours = map(statistics.median, times)
    more = sorted(mine - theirs for theirs, mine in zip(*times, strict=True))
    note = f"quartiles {more[len(more) // 4]:.1f} to {more[-1 - len(more) // 4]:.1f} of {len(more)} pairs"
    name = f"a tool of the client beside {name}"
    return Row("mcp", name, statistics.median(more), "ms more", 15.0, ours, reference, note)
