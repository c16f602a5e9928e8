"""Delay of the first text from a real Codex app-server with a stub model, with and without the addon.

The requests with and without the addon alternate, so that other load affects both alike. They use the same child
process, settings and model. Requests without the addon go directly to the app-server, and so skip two HTTP hops.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
from bench.table import Row
from support import programs
from support.mitmdump import MITMDUMP, Mitmdump
from support.stub_model import Reply, StubModel
from toolsim.backends.codex.child import Child
from toolsim.backends.codex.server import AppServer
from toolsim.backends.codex.text_only import settings

RUNS = 30
AT_ONCE = 8
clock = time.perf_counter
TOOLS = [{"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}]


async def bare(child: Child) -> float:
    """Return the seconds from thread/start to the first delta, without the addon."""
    began = clock()
    config = settings(child.mcp_servers)
    asked = {"ephemeral": True, "cwd": str(child.workdir), "baseInstructions": "", "config": config}
    thread = (await child.request("thread/start", asked))["thread"]["id"]
    news = child.subscribe(thread)
    text = {"type": "text", "text": "hi"}
    await child.request("turn/start", {"threadId": thread, "input": [text]})
    first = 0.0
    while (note := await news.get()) is not None and note.method != "turn/completed":
        if note.method == "item/agentMessage/delta" and not first:
            first = clock() - began
    child.unsubscribe(thread)
    await child.request("thread/unsubscribe", {"threadId": thread})
    return first


async def through(client: httpx.AsyncClient) -> float:
    """Return the seconds from the client's request to its first text, with the addon."""
    began = clock()
    first = 0.0
    body = {"input": "hi", "stream": True, "tools": TOOLS}
    async with client.stream("POST", "/v1/responses", json=body) as answer:
        async for line in answer.aiter_lines():
            if "output_text.delta" in line and not first:
                first = clock() - began
    return first


async def figures() -> list[Row]:
    """Return a row for the delay of the first text, and a row for answers per second."""
    binary = programs.codex()
    if binary is None:
        return [
            Row("codex", "first text", math.nan, "ms more", note="codex not found (make test-clients, or CODEX_BIN)")
        ]
    stub = StubModel(lambda body: Reply(["some ", "words ", "here"]))
    await stub.start()
    with tempfile.TemporaryDirectory() as home:
        stub.write_config(Path(home))
        os.environ["CODEX_HOME"] = home
        server = AppServer((binary, "app-server"))
        await server.start()
        options = {"toolsim_backend": "codex", "toolsim_codex_command": f"{binary} app-server"}
        mitmdump = await asyncio.to_thread(Mitmdump(command=MITMDUMP, **options).__enter__)
        try:
            child = await server.child()
            url = f"http://127.0.0.1:{mitmdump.port}"
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
                await bare(child), await through(client)
                pairs = [(await bare(child), await through(client)) for _ in range(RUNS)]
                reference, ours = (1000 * statistics.median(way) for way in zip(*pairs, strict=True))
                first = Row("codex", "first text", ours - reference, "ms more", None, ours, reference)
                through_rate = await rate(lambda: through(client))
                bare_rate = await rate(lambda: bare(child))
                name = f"answers a second, {AT_ONCE} at once"
                return [first, Row("codex", name, through_rate, "/s", None, through_rate, bare_rate)]
        finally:
            await asyncio.to_thread(mitmdump.__exit__, None, None, None)
            await server.stop()
            await stub.stop()


async def rate(ask: Callable[[], Awaitable[float]]) -> float:
    began = clock()
    for _ in range(3):
        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    return 3 * AT_ONCE / (clock() - began)


def measure(_quick: bool) -> Iterator[Row]:
    yield from asyncio.run(figures())
