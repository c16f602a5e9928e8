"""A load test of a real mitmdump: many concurrent exchanges, with failing backends and disconnecting clients.

Each exchange has a unique nonce. Its request must reach the backend exactly once. Its answer must contain all the text
that the backend sent, in order, and no other nonce. If the backend died, the answer must not look complete. At the end,
the proxy must have counted as many exchanges as the test.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak.story import NONCE, Story, draw, story_of
from support.line import Line
from support.mitmdump import MITMDUMP, Mitmdump
from support.raw_backend import Answer, RawBackend
from support.wire import DONE, chat_frame

DEATHS, ABORTS = 0.1, 0.05
# Seconds after which an exchange counts as hung. A hundred streams share one core with the machine's other load.
PATIENCE = 300
_ENDINGS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}


@dataclass
class Outcome:
    """The result of a run. ``wrong``: the failures. ``memory``: pairs of a time in seconds and the proxy's memory in
    MiB.
    """

    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    counted: int = 0
    slowest: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.done.values())

    @property
    def growth(self) -> float:
        """Growth of the proxy's memory in MiB, from the second to the last fifth of the run."""
        fifth = max(len(self.memory) // 5, 1)
        early = sorted(size for _, size in self.memory[fifth : 2 * fifth] or self.memory)
        late = sorted(size for _, size in self.memory[-fifth:])
        return late[len(late) // 2] - early[len(early) // 2] if early and late else 0.0


class Soak:
    """A soak run. ``say`` is called with a progress line once per minute."""

    def __init__(self, seconds: float, streams: int, seed: int, say: Callable[[str], None] = print) -> None:
        self._seconds, self._streams, self._chance, self._say = seconds, streams, random.Random(seed), say
        self.outcome = Outcome()
        self._asked: Counter[str] = Counter()

    def run(self) -> Outcome:
        with RawBackend() as backend:
            backend.play(self._answer)
            # Under this load, connecting can take as long as any other operation.
            options: dict[str, Any] = {"toolsim_backend": "chat", "flow_detail": 0, "toolsim_connect_timeout": PATIENCE}
            with Mitmdump(backend.url, command=MITMDUMP, **options) as proxy:
                asyncio.run(self._load(proxy, backend))
                time.sleep(1)
                with Line(proxy.url) as line:
                    text = line.request("GET", "/toolsim/metrics").body.decode()
        counts = re.findall(r"^toolsim_exchanges_total\{[^}]*\} (\d+)", text, re.MULTILINE)
        self.outcome.counted = sum(map(int, counts))
        still_open = re.search(r"^toolsim_exchanges_in_progress(?:\{[^}]*\})? (\d+)", text, re.MULTILINE)
        if still_open is None or int(still_open[1]):
            self._is_wrong(f"exchanges are open at the end: {still_open and still_open[1]}")
        return self.outcome

    # -- the backend --

    async def _answer(self, answer: Answer) -> None:
        if not answer.asked.path.endswith("/chat/completions"):
            await answer.whole(b"{}", 404)
            return
        story = story_of(answer.asked.body)
        self._asked[story.nonce] += 1
        if not story.stream:
            message = {"role": "assistant", "content": "".join(story.pieces)}
            body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
            await answer.head(200, len(body), Content_Type="application/json")
            await answer.send(body if story.dies_after < 0 else body[: len(body) // 2])
            if story.dies_after >= 0:
                answer.hang_up()
            return
        await answer.head(Content_Type="text/event-stream")
        for number, piece in enumerate(story.pieces):
            if number == story.dies_after:
                answer.hang_up()
                return
            await answer.send(chat_frame(piece))
            await asyncio.sleep(random.random() * 0.02)
        if story.dies_after >= 0:
            answer.hang_up()
            return
        await answer.send(chat_frame(finish="stop"))
        await answer.send(DONE)
        await answer.end()

    # -- the clients --

    async def _load(self, proxy: Mitmdump, backend: RawBackend) -> None:
        end = time.monotonic() + self._seconds
        watcher = asyncio.create_task(self._watch(proxy, backend))
        async with asyncio.TaskGroup() as group:
            for _ in range(self._streams):
                group.create_task(self._client(proxy.port, end))
        watcher.cancel()

    async def _watch(self, proxy: Mitmdump, backend: RawBackend) -> None:
        start, minute = time.monotonic(), 0
        while True:
            seconds = time.monotonic() - start
            status = Path(f"/proc/{proxy.pid}/status")
            found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
            self.outcome.memory.append((seconds, int(found[1]) / 1024 if found else 0.0))
            backend.asked.clear()
            if seconds // 60 > minute:
                minute = int(seconds // 60)
                size = self.outcome.memory[-1][1]
                done, wrong = self.outcome.total, len(self.outcome.wrong)
                self._say(f"{minute:3} min  {done:7} exchanges  {size:6.1f} MiB  {wrong} wrong")
            await asyncio.sleep(1)

    async def _client(self, port: int, end: float) -> None:
        """Run exchanges over a series of connections until the end of the run."""
        while time.monotonic() < end:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                for _ in range(self._chance.randrange(1, 20)):
                    story = draw(self._chance, DEATHS, ABORTS)
                    start = time.monotonic()
                    async with asyncio.timeout(PATIENCE):
                        is_alive = await self._exchange(story, reader, writer)
                    self.outcome.slowest = max(self.outcome.slowest, time.monotonic() - start)
                    if not is_alive or time.monotonic() > end:
                        break
            except (OSError, EOFError, TimeoutError) as problem:
                self._is_wrong(f"{story}: {problem!r}")
            finally:
                writer.close()

    async def _exchange(self, story: Story, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send a request, and read and check its answer. Return whether the connection can be reused."""
        body = story.body()
        head = f"POST {_ENDINGS[story.api]} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        received = bytearray()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        status = int(lines[0].split()[1])
        lengths = [int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")]
        async for chunk in _chunks(reader, lengths[0] if lengths else None):
            received += chunk
            if 0 <= story.aborts_after <= len(received):
                self.outcome.done["left"] += 1
                self._look_for_strangers(story, bytes(received))
                self._forget(story, reached=True)
                return False
        self._judge(story, status, bytes(received))
        return not any(line.startswith("connection: close") for line in lines)

    # -- the judgment --

    def _judge(self, story: Story, status: int, received: bytes) -> None:
        self._look_for_strangers(story, received)
        self._forget(story, reached=True)
        text, calls, is_complete = _read(story, status, received)
        if story.dies_after >= 0:
            self.outcome.done["died"] += 1
            # In chat, a turn ends with its complete calls, even if the backend dies after them.
            is_cut_after_calls = story.api == "chat" and story.stream and calls and text == story.text
            if is_complete and not is_cut_after_calls:
                self._is_wrong(f"{story}: the backend died, and the answer looks complete: {received[-500:]!r}")
            return
        self.outcome.done["whole"] += 1
        if not is_complete or text.strip() != story.text.strip() or calls != [story.nonce] * story.calls:
            self._is_wrong(f"{story}: got {status}, {text!r}, {calls}, {is_complete}: {received[-500:]!r}")

    def _look_for_strangers(self, story: Story, received: bytes) -> None:
        strangers = {found.decode() for found in NONCE.findall(received)} - {story.nonce}
        if strangers:
            self._is_wrong(f"{story}: answered with what belongs to {strangers}")

    def _forget(self, story: Story, *, reached: bool) -> None:
        times = self._asked.pop(story.nonce, 0)
        if times != reached:
            self._is_wrong(f"{story}: reached the backend {times} times")

    def _is_wrong(self, what: str) -> None:
        self.outcome.wrong.append(what)
        self._say(f"WRONG {what[:600]}")


async def _chunks(reader: asyncio.StreamReader, length: int | None) -> Any:
    """Yield the parts of a body as they arrive."""
    if length is not None:
        while length > 0:
            data = await reader.read(min(length, 65536))
            if not data:
                raise EOFError("the body ended early")
            length -= len(data)
            yield data
        return
    while size := int((await reader.readline()).strip() or b"x", 16):
        yield await reader.readexactly(size)
        await reader.readline()
    await reader.readline()


def _read(story: Story, status: int, received: bytes) -> tuple[str, list[str], bool]:
    """Return an answer's text, the arguments of its calls, and whether it is marked as complete."""
    if not story.stream:
        return _read_whole(story, status, json.loads(received))
    if status != 200:
        return "", [], False
    frames = [line[6:] for line in received.decode().split("\n") if line.startswith("data: ")]
    events = [json.loads(frame) for frame in frames if frame != "[DONE]"]
    if story.api == "responses":
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        calls = [json.loads(item["arguments"])["about"] for item in done if item["type"] == "function_call"]
        return text, calls, any(event["type"] == "response.completed" for event in events)
    text, arguments, is_complete = "", {}, False
    for event in events:
        for choice in event.get("choices", []):
            delta = choice["delta"]
            text += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                arguments[call["index"]] = arguments.get(call["index"], "") + call["function"].get("arguments", "")
            is_complete |= choice["finish_reason"] in ("stop", "tool_calls")
    return text, [json.loads(text)["about"] for text in arguments.values()], is_complete and frames[-1] == "[DONE]"


def _read_whole(story: Story, status: int, body: Any) -> tuple[str, list[str], bool]:
    if status != 200:
        return "", [], False
    if story.api == "chat":
        message = body["choices"][0]["message"]
        calls = [json.loads(call["function"]["arguments"])["about"] for call in message.get("tool_calls") or []]
        return message["content"] or "", calls, True
    texts = [part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]]
    calls = [json.loads(item["arguments"])["about"] for item in body["output"] if item["type"] == "function_call"]
    return "".join(texts), calls, body["status"] == "completed"
