"""Tests with a backend, or a client, that disconnects at any byte of an answer."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from typing import Any

import pytest
from attack.cases import TOOL, ask, request
from support.effort import step
from support.line import Line
from support.mitmdump import Mitmdump
from support.raw_backend import Answer, Behaviour
from support.wire import DONE, chat_frame

pytestmark = [pytest.mark.slow, pytest.mark.ci]

CALL = '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'
STREAM = b"".join([*map(chat_frame, ("Hel", "lo ", CALL[:9], CALL[9:])), chat_frame(finish="stop"), DONE])
WHOLE = json.dumps(
    {"choices": [{"index": 0, "message": {"content": "Hello " + CALL}, "finish_reason": "stop"}]}
).encode()
RESET = struct.pack("ii", 1, 0)
# The JSON in a frame is complete two bytes before the end of the frame. In chat, a backend failure after a call comes
# too late to matter (see ``response/answer.py``), and after the finish chunk nothing can be lost.
CALLED = len(b"".join(map(chat_frame, ("Hel", "lo ", CALL[:9], CALL[9:])))) - 2
FINISHED = len(STREAM) - len(DONE) - 2
STEP = step(9)


def ask_responses(*, stream: bool) -> bytes:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    return json.dumps({"model": "m", "input": "x", "stream": stream, "tools": [tool]}).encode()


def ask_messages(*, stream: bool) -> bytes:
    tool = {"name": "f", "input_schema": {"type": "object"}}
    messages = [{"role": "user", "content": "x"}]
    return json.dumps({"model": "m", "max_tokens": 9, "messages": messages, "stream": stream, "tools": [tool]}).encode()


QUESTIONS = {
    ("chat", True): ("/v1/chat/completions", ask(stream=True, tools=[TOOL])),
    ("chat", False): ("/v1/chat/completions", ask(tools=[TOOL])),
    ("responses", True): ("/v1/responses", ask_responses(stream=True)),
    ("responses", False): ("/v1/responses", ask_responses(stream=False)),
    ("messages", True): ("/v1/messages", ask_messages(stream=True)),
    ("messages", False): ("/v1/messages", ask_messages(stream=False)),
}


def cut_after(body: bytes, size: int, *, reset: bool, length: int | None) -> Behaviour:
    async def behave(answer: Answer) -> None:
        kind = "application/json" if body is WHOLE else "text/event-stream"
        await answer.head(length=length, Content_Type=kind)
        await answer.send(body[:size]) if size else None
        if reset:
            answer.reset()
        else:
            answer.hang_up()

    return behave


def looks_complete(api: str, status: int, body: bytes) -> bool:
    """Return whether a client would consider this answer to be complete."""
    if status != 200:
        return False
    if api == "responses":
        return b'"type":"response.completed"' in body or b'"status":"completed","background"' in body
    if api == "messages":
        return b'"type":"message_stop"' in body or body.startswith(b'{"id":"msg_')
    return b'"error"' not in body


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_backend_disconnects_after_any_byte(api: str, stream: bool, reset: bool, worlds: Any) -> None:
    """If the backend disconnects after any byte, the client's answer ends, but does not look complete."""
    world = worlds("over chat")
    path, question = QUESTIONS[api, stream]
    body = STREAM if stream else WHOLE
    # Without a length, a non-streamed answer ends with its connection, and only its JSON shows whether it is complete.
    length = None if stream else len(body)
    with Line(world.proxy.url, timeout=20) as line:
        edges = [*range(CALLED - 3, CALLED + 3), *range(FINISHED - 3, FINISHED + 3)] if stream else []
        for size in sorted({*range(0, len(body), STEP), *edges}):
            world.backend.play(cut_after(body, size, reset=reset, length=length), "/v1")
            reply = line.post(path, question)
            too_late = stream and size >= (FINISHED if api == "responses" else CALLED)
            assert too_late or not looks_complete(api, reply.status, reply.body), (size, reply.body[-300:])
            assert reply.status in (200, 502)


@pytest.mark.parametrize("world_name", ["over chat", "scripted"])
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_client_disconnects_after_any_byte(api: str, world_name: str, worlds: Any) -> None:
    """If a client disconnects after any byte, its exchange is closed, and the next client receives its answer."""
    world = worlds(world_name)
    path, question = QUESTIONS[api, True]

    async def speak(answer: Answer) -> None:
        await answer.head(Content_Type="text/event-stream")
        await answer.send(STREAM)
        await answer.end()

    world.backend.play(speak, "/v1")
    host = f"127.0.0.1:{world.ports.proxy}"
    data, last = request(path, question, close=False, host=host), request(path, question, host=host)
    whole = len(world.send(last, 20))
    for size in range(0, whole, STEP if world_name == "over chat" else 20 * STEP):
        with socket.create_connection(("127.0.0.1", world.ports.proxy), timeout=20) as client:
            client.sendall(data)
            got = b""
            # The answer may be shorter than expected, because its number of chunks depends on timing.
            while len(got) < size and not got.endswith(b"\r\n0\r\n\r\n") and (chunk := client.recv(size - len(got))):
                got += chunk
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    assert b"HTTP/1.1 200 " in world.send(last, 20)
    wait_until_over(world.proxy)


def wait_until_over(proxy: Mitmdump) -> None:
    """Wait until the proxy's metrics show no exchange in progress."""
    end = time.monotonic() + 30
    with Line(proxy.url) as line:
        while True:
            text = line.request("GET", "/toolsim/metrics").body.decode()
            found = re.search(r"^toolsim_exchanges_in_progress(?:\{[^}]*\})? (\d+)", text, re.MULTILINE)
            if found is not None and found[1] == "0":
                return
            assert time.monotonic() < end, found
            time.sleep(0.1)
