"""A Codex that dies at any byte of its output, and a client that disconnects at any byte of its answer.

The real app-server's output in one turn is recorded once and then replayed, because otherwise each death would require
a new process.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.answers import plan, tool
from support.effort import step
from support.stub_model import Reply
from toolsim.backends.codex import child as child_module
from toolsim.backends.codex.backend import CodexBackend
from toolsim.backends.codex.child import Child
from toolsim.backends.codex.server import _handshake
from toolsim.backends.loopback import Loopback
from toolsim.core.policy import ApiName
from toolsim.core.report import Report
from toolsim.response.rewrite import ResponseRewriter

pytestmark = [pytest.mark.slow, pytest.mark.ci]

CALL = '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'
WORDS = ["Hel", "lo ", CALL[:9], CALL[9:]]
QUESTION = {"model": "stub-1", "input": "hi"}
TOOLS = [tool("f", a="number")]
RESET = struct.pack("ii", 1, 0)
STEP = step(97)


@dataclass(frozen=True)
class Tape:
    """The output of a child: its lines, and the offsets at which the handshake, a call and the turn are complete."""

    lines: list[bytes]
    greeted: int
    called: int
    finished: int

    @property
    def size(self) -> int:
        return sum(map(len, self.lines))


def tape_of(output: bytes) -> Tape:
    lines = output.splitlines(keepends=True)
    end, text = 0, ""
    marks: dict[str, int] = {}
    for line in lines:
        end += len(line)
        message = json.loads(line)
        text += message.get("params", {}).get("delta", "") if message.get("method") == "item/agentMessage/delta" else ""
        if message.get("id") == 3 and "result" in message:
            marks["greeted"] = end
        if "</tool_call>" in text:
            marks.setdefault("called", end)
        if message.get("method") == "turn/completed":
            marks["finished"] = end
    return Tape(lines, **marks)


class Player(asyncio.SubprocessTransport):
    """A simulated child that replays the tape, each response after its request, and dies after ``size`` bytes."""

    def __init__(self, tape: Tape, size: int) -> None:
        super().__init__()
        self.left = size
        self._lines = list(tape.lines)
        self._asked: set[int] = set()
        self.asked: list[str] = []
        self.child = Child(Path("/nowhere"))
        self.is_dead = False
        self.child.connection_made(self)

    def get_pid(self) -> int:
        return 0

    def get_returncode(self) -> int | None:
        return 1 if self.is_dead else None

    def get_pipe_transport(self, fd: int) -> Any:
        return _Input(self)

    def terminate(self) -> None:
        self.die()

    def close(self) -> None:
        pass

    def write(self, line: bytes) -> None:
        message = json.loads(line)
        self.asked.append(message["method"])
        self._asked.add(message.get("id", 0))
        asyncio.get_running_loop().call_soon(self.emit)

    def emit(self) -> None:
        while self._lines and not self.is_dead:
            number = json.loads(self._lines[0]).get("id", 0)
            if number not in self._asked | {0}:
                return
            line = self._lines.pop(0)[: self.left]
            self.left -= len(line)
            self.child.pipe_data_received(1, line)
            if not self.left:
                self.die()

    def die(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            self.child.pipe_connection_lost(1, None)
            self.child.process_exited()
            self.child.connection_lost(None)


class _Input(asyncio.WriteTransport):
    def __init__(self, player: Player) -> None:
        super().__init__()
        self._player = player

    def write(self, data: Any) -> None:
        self._player.write(bytes(data))

    def close(self) -> None:
        pass


class Stage:
    """A loopback server in front of a simulated Codex that dies after ``size`` bytes."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.size = 0
        self.players: list[Player] = []
        self._running: set[asyncio.Task[None]] = set()
        backend = CodexBackend(("codex",))
        backend._server = self  # type: ignore[assignment]
        self.loopback = Loopback(backend, is_open=True)

    async def start(self) -> None:
        """Do nothing, because children are started on demand."""

    async def stop(self) -> None:
        for player in self.players:
            player.die()
        await asyncio.gather(*self._running)

    async def child(self) -> Child:
        """Return a new child whose handshake is complete."""
        player = Player(self.tape, self.size)
        self.players.append(player)
        task = asyncio.create_task(player.child.run())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await _handshake(player.child)
        return player.child


@pytest.fixture
def output() -> Iterator[bytearray]:
    """All bytes that children write to standard output during the test."""
    output, original = bytearray(), Child.pipe_data_received

    def record(self: Child, fd: int, data: bytes) -> None:
        output.extend(data if fd == 1 else b"")
        original(self, fd, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Child, "pipe_data_received", record)
        yield output


@pytest.fixture
async def tape(output: bytearray, stage: Any, monkeypatch: pytest.MonkeyPatch) -> Tape:
    """The real Codex's output for one turn with a call.

    The fixture also disables ``kill_group`` for the rest of the test, because the players that replace Codex have
    process ID 0, which stands for the process group of the tests.
    """
    stage.stub.reply = lambda body: Reply(WORDS)
    assert CALL in await stage.text("hi")
    async with asyncio.timeout(20):
        while b'"id":7' not in output.replace(b" ", b""):
            await asyncio.sleep(0.05)
    await stage.loopback.stop()
    monkeypatch.setattr(child_module, "kill_group", lambda leader: None)
    return tape_of(bytes(output))


@asynccontextmanager
async def playing(tape: Tape) -> AsyncIterator[tuple[Stage, httpx.AsyncClient]]:
    stage = Stage(tape)
    await stage.loopback.start()
    url = f"http://127.0.0.1:{stage.loopback.port}"
    async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
        yield stage, client
    await stage.loopback.stop()


def looks_complete(client: ApiName, stream: bool, response: httpx.Response) -> bool:
    """Return whether a client would consider the answer to be complete after toolsim has rewritten it."""
    kind = response.headers["content-type"]
    rewriter = ResponseRewriter(plan(client, "responses", stream, TOOLS), Report(), content_type=kind)
    body = b"".join(rewriter.feed(response.content) + rewriter.feed(b""))
    if client == "responses":
        return b'"type":"response.completed"' in body if stream else json.loads(body).get("status") == "completed"
    return rewriter.status == 200 and b'"error"' not in body


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_child_dies_after_any_byte(tape: Tape, stream: bool) -> None:
    """If the child dies after any byte, the answer ends. The answer looks complete only if the turn was complete."""
    edges = {end + beside for end in (tape.greeted, tape.called, tape.finished) for beside in (-2, -1, 0, 1)}
    sizes = sorted({*range(tape.greeted, tape.size, STEP), *edges, tape.size})
    async with playing(tape) as (stage, client):
        for stage.size in (size for size in sizes if size > tape.greeted):
            response = await client.post("/v1/responses", json={**QUESTION, "stream": stream})
            # A message from a child counts only if its line is complete.
            finished, called = stage.size >= tape.finished, stage.size >= tape.called
            if response.status_code != 200:
                assert not finished
                assert (response.status_code, response.json()["error"]["code"]) == (502, "backend_died")
                continue
            assert looks_complete("responses", stream, response) == finished, stage.size
            # In a chat stream, a failure of the backend after a call comes too late to matter.
            assert looks_complete("chat", stream, response) == (finished or (called and stream))


async def test_client_disconnects_after_any_byte(tape: Tape) -> None:
    """If a client disconnects after any byte, the thread is unloaded, and the next client receives its answer."""
    async with playing(tape) as (stage, client):
        stage.size = tape.size + 1
        body = json.dumps({**QUESTION, "stream": True}).encode()
        head = "POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        whole = len((await client.post("/v1/responses", json={**QUESTION, "stream": True})).content)
        for size in range(0, whole, STEP):
            reader, writer = await asyncio.open_connection("127.0.0.1", stage.loopback.port)
            writer.write(request)
            got = b""
            while len(got) < size and (chunk := await asyncio.wait_for(reader.read(size - len(got)), 20)):
                got += chunk
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.close()
        assert (await client.post("/v1/responses", json=QUESTION)).json()["status"] == "completed"
        async with asyncio.timeout(20):
            while not all(
                player.asked[-1] == "thread/unsubscribe" for player in stage.players if len(player.asked) > 4
            ):
                await asyncio.sleep(0.01)
        assert len(stage.players) > whole // STEP // 2
