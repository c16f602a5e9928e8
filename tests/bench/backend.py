"""A backend with negligible cost: a separate process that sends prepared answers.

The request's ``model`` selects the answer, in the form ``KIND-SIZE-STEP-PER_WRITE``:

- ``prose``, ``call``, ``object`` (a call whose arguments are an object): SIZE characters of text in deltas of STEP
  characters, with PER_WRITE deltas per write. A write is one HTTP chunk, followed by a pause, so that writes arrive
  separately.
- ``emitted``: a structured call with SIZE characters of arguments, in the same deltas and writes.
- ``asked-1-1-1``: a call whose arguments contain the time at which the request arrived.
- ``timed-COUNT-RATE-1``: COUNT deltas at RATE per second. Each contains the time at which it was written
  (``time.monotonic_ns``).
- ``paced-COUNT-RATE-1``: like ``timed``, but suitable for many concurrent streams. The first delta is written
  immediately. The frames are prepared in advance, so only the times are generated for each write. With ``-2`` at the
  end, the answer ends with a call.

When run as a module, the backend prints its ports.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import ssl
import tempfile
import time
from pathlib import Path

from bench.texts import arguments, call, object_call, pieces, prose
from mitmproxy.certs import CertStore
from support.wire import ApiName, ChatAnswer, MessagesAnswer, ResponsesAnswer, usage

# The pause after a write, in seconds: long enough for a proxy to consume the write before the next one, and short
# compared to the cost of a write.
BETWEEN_WRITES = 0.0002
TEXTS = {"prose": prose, "call": call, "object": object_call}
_CALLED = {"chat": "tool_calls", "messages": "tool_use"}
_MODEL = re.compile(rb'"model":\s?"(\w+)-(\d+)-(\d+)-(\d+)"')


def answer_of(api_name: ApiName) -> ChatAnswer | ResponsesAnswer | MessagesAnswer:
    kinds = {"chat": ChatAnswer, "responses": ResponsesAnswer, "messages": MessagesAnswer}
    return kinds[api_name](counts=usage(api_name, 3, 4))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@functools.cache
def writes(api_name: ApiName, kind: str, size: int, step: int, per_write: int) -> tuple[bytes, ...]:
    """Return the streamed answer, divided into writes."""
    answer = answer_of(api_name)
    if kind == "emitted":
        frames = [*answer.begin(), *answer.begin_call("write")]
        frames += [frame for piece in pieces(arguments(size), step) for frame in answer.add_arguments(piece)]
        frames += [*answer.end_call(), *answer.end(_CALLED.get(api_name, "stop"))]
    else:
        text = TEXTS[kind](size)
        frames = [frame for piece in pieces(text, step) for frame in answer.add_text(piece)]
        frames = [*answer.begin(), *frames, *answer.end()]
    return tuple(chunk(b"".join(frames[at : at + per_write])) for at in range(0, len(frames), per_write))


@functools.cache
def whole(api_name: ApiName, kind: str, size: int) -> bytes:
    answer = answer_of(api_name)
    answer.add_text(TEXTS[kind](size))
    return json.dumps(answer.whole()).encode()


async def timed(api_name: ApiName, count: int, rate: int, writer: asyncio.StreamWriter) -> None:
    answer = answer_of(api_name)
    writer.write(chunk(b"".join(answer.begin() + answer.begin_message())))
    start = time.monotonic()
    for number in range(1, count + 1):
        await asyncio.sleep(start + number / rate - time.monotonic())
        writer.write(chunk(b"".join(answer.add_text(f"{time.monotonic_ns()} "))))
        await writer.drain()
    writer.write(chunk(b"".join(answer.end())))


@functools.cache
def paced_frames(api_name: ApiName, count: int, ends: int) -> tuple[list[bytes], list[list[bytes]], bytes]:
    """Return the frames before the deltas, the parts of each delta before and after its timestamp, and the frames after
    the deltas.
    """
    answer = answer_of(api_name)
    opening = [*answer.begin(), *answer.begin_message()]
    around = [b"".join(answer.add_text(f"{number} @ ")).split(b"@") for number in range(count)]
    frames = [frame for piece in pieces(call(400), 20) for frame in answer.add_text(piece)] if ends == 2 else []
    return opening, around, b"".join([*frames, *answer.end()])


async def paced(api_name: ApiName, count: int, rate: int, ends: int, writer: asyncio.StreamWriter) -> None:
    opening, around, end = paced_frames(api_name, count, ends)
    writer.write(chunk(b"".join(opening)))
    start = time.monotonic()
    for number, (before, after) in enumerate(around):
        if (wait := start + number / rate - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        writer.write(chunk(b"%s%d%s" % (before, time.monotonic_ns(), after)))
        await writer.drain()
    writer.write(chunk(end))


def asked(api_name: ApiName, arrived: int) -> bytes:
    """Return an answer that contains the time at which its request arrived."""
    answer = answer_of(api_name)
    text = f'<tool_call>{{"name":"write","arguments":{{"path":"{arrived}"}}}}</tool_call>'
    return b"".join([*answer.begin(), *answer.add_text(text), *answer.end()])


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            arrived = time.monotonic_ns()
            path = head.partition(b"\r\n")[0]
            api_name: ApiName = next((api for api in ("responses", "messages") if f"/{api}".encode() in path), "chat")
            found = _MODEL.search(body)
            if found is None:  # This is toolsim's request for detecting the backend's API.
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            kind, (size, step, per_write) = found[1].decode(), map(int, found.groups()[1:])
            if not re.search(rb'"stream":\s?true', body):
                data = whole(api_name, kind, size)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
                continue
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            if kind == "timed":
                await timed(api_name, size, step, writer)
            elif kind == "paced":
                await paced(api_name, size, step, per_write, writer)
            elif kind == "asked":
                writer.write(chunk(asked(api_name, arrived)))
            else:
                for data in writes(api_name, kind, size, step, per_write):
                    writer.write(data)
                    await writer.drain()
                    await asyncio.sleep(BETWEEN_WRITES)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    """Serve on two ports, and print their numbers. The second port uses TLS with an untrusted certificate."""
    with tempfile.TemporaryDirectory() as folder:
        CertStore.from_store(Path(folder), "bench", 2048)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(f"{folder}/bench-ca.pem")
    servers = [
        await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 28, backlog=1024, ssl=context)
        for context in (None, tls)
    ]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main())
