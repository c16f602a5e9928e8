"""A load test of many concurrent WebSocket connections, with failing backends and disconnecting clients.

Each connection has a unique mark. The model's prompts and the client's answers must contain this mark and no other.
Each turn continues the previous turn, unless that turn failed, and the model must receive all earlier turns. The client
is the ``websockets`` library.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.mitmdump import MITMDUMP, Mitmdump
from support.raw_backend import Answer, RawBackend
from support.wire import DONE, chat_frame

DEATHS, LEAVES, NEW_CHAINS = 0.02, 0.02, 0.1
MARK = re.compile(r"mark-\d+x")
PER_KEY = 100
"""Number of connections per key; less than the proxy's limit."""
PATIENCE = 300
"""Maximum wait of a client, in seconds. On a busy machine, a turn that normally takes one second can take many."""
SAMPLES = 20


@dataclass
class Found:
    """The result of a run.

    ``memory``: the proxy's memory in MiB, sampled during the run and once after the last connection has closed.
    """

    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        waits = sorted(self.seconds) or [0.0]
        p50, p99 = (1000 * waits[min(int(len(waits) * share), len(waits) - 1)] for share in (0.5, 0.99))
        sizes = ", ".join(f"{size:.0f}" for size in self.memory)
        return f"{dict(self.done)}; a turn takes p50 {p50:.0f} ms, p99 {p99:.0f} ms; {sizes} MiB"


def run(seconds: float, connections: int, seed: int = 1) -> Found:
    """Keep this many connections open for ``seconds``, each with a series of requests; return the result."""
    found = Found()
    with RawBackend() as backend:
        backend.play(_Backend(found, random.Random(seed)).answer)
        options: dict[str, Any] = {"toolsim_backend": "chat", "flow_detail": 0, "toolsim_connect_timeout": PATIENCE}
        with Mitmdump(backend.url, command=MITMDUMP, **options) as proxy:
            asyncio.run(_load(found, proxy, seconds, connections, random.Random(seed)))
    return found


class _Backend:
    """A backend that answers with the last user message in angle brackets."""

    def __init__(self, found: Found, chance: random.Random) -> None:
        self._found = found
        self._chance = chance

    async def answer(self, answer: Answer) -> None:
        if not answer.asked.path.endswith("/chat/completions"):
            await answer.whole(b"{}", 404)
            return
        texts = [str(message["content"]) for message in json.loads(answer.asked.body)["messages"]]
        marks = {mark for text in texts for mark in MARK.findall(text)}
        turn, depth = re.findall(r"turn (\d+) depth (\d+)", texts[-1])[0]
        if len(marks) != 1 or len(texts) != 2 * int(depth) + 1:
            self._found.wrong.append(f"turn {turn}: the model was shown {texts}")
        await answer.head(Content_Type="text/event-stream")
        for piece in ("<", texts[-1], ">"):
            await answer.send(chat_frame(piece))
            if self._chance.random() < DEATHS / 3:
                answer.hang_up()
                return
        await answer.send(chat_frame(finish="stop"))
        await answer.send(DONE)
        await answer.end()


async def _load(found: Found, proxy: Mitmdump, seconds: float, connections: int, chance: random.Random) -> None:
    everybody = asyncio.Event()
    clients = [
        asyncio.create_task(_Client(found, proxy, number, everybody, chance).run(seconds))
        for number in range(connections)
    ]
    everybody.set()
    for _ in range(SAMPLES):
        await asyncio.sleep(seconds / SAMPLES)
        found.memory.append(resident(proxy))
    await asyncio.gather(*clients)
    await asyncio.sleep(2)
    found.memory.append(resident(proxy))


def resident(proxy: Mitmdump) -> float:
    """Return a proxy's resident memory in MiB."""
    status = Path(f"/proc/{proxy.pid}/status")
    size = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(size[1]) / 1024 if size else 0.0


class _Client:
    def __init__(
        self, found: Found, proxy: Mitmdump, number: int, everybody: asyncio.Event, chance: random.Random
    ) -> None:
        self._found = found
        self._url = f"ws://127.0.0.1:{proxy.port}/v1/responses"
        self._headers = {"authorization": f"Bearer key-{number // PER_KEY}"}
        self._mark = f"mark-{number}x"
        self._everybody = everybody
        self._chance = chance
        self._turn = 0

    async def run(self, seconds: float) -> None:
        """Send requests until the time limit, over a series of connections, since the client sometimes disconnects."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                async with connect(
                    self._url, additional_headers=self._headers, open_timeout=PATIENCE, ping_timeout=PATIENCE
                ) as connection:
                    self._found.done["connected"] += 1
                    await self._everybody.wait()
                    await self._converse(connection, end)
            except InvalidStatus as refused:
                self._found.wrong.append(f"{self._mark}: {refused.response.status_code} {refused.response.body!r}")
            except (OSError, ValueError, WebSocketException) as problem:
                self._found.wrong.append(f"{self._mark}: {problem!r}")

    async def _converse(self, connection: Any, end: float) -> None:
        previous, depth = "", 0
        while time.monotonic() < end:
            self._turn += 1
            if not previous or self._chance.random() < NEW_CHAINS:
                previous, depth = "", 0
            text = f"{self._mark} turn {self._turn} depth {depth}"
            more = {"previous_response_id": previous} if previous else {}
            started = time.monotonic()
            await connection.send(
                json.dumps({"type": "response.create", "model": "m", "store": False, "input": text, **more})
            )
            if self._chance.random() < LEAVES:
                self._found.done["left"] += 1
                connection.transport.abort()
                return
            kind, last = "", {}
            while kind not in ("response.completed", "response.failed", "error"):
                received = await asyncio.wait_for(connection.recv(), PATIENCE)
                last = json.loads(received)
                kind = last["type"]
                if set(MARK.findall(received)) - {self._mark}:
                    self._found.wrong.append(f"{self._mark}: got {received}")
            self._found.seconds.append(time.monotonic() - started)
            self._found.done[kind.removeprefix("response.")] += 1
            previous, depth = "", 0 if kind != "response.completed" else depth + 1
            if kind == "response.completed":
                previous = last["response"]["id"]
                words = last["response"]["output"][0]["content"][0]["text"]
                if words != f"<{text}>":
                    self._found.wrong.append(f"{text}: got {words}")
