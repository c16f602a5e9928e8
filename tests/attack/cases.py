"""The attacks, as data: the bytes to send, the proxy to attack, and the expected result."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zstandard
from support.raw_backend import Answer, Behaviour
from support.wire import DONE, chat_frame

KEY = "s3cret-key"
MEBIBYTE = 1024 * 1024
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@dataclass(frozen=True)
class Ports:
    """The ports of the attacked proxy and of the servers around it."""

    proxy: int
    backend: int
    builtin: int
    hole: int
    """A port whose listener never accepts a connection."""


@dataclass(frozen=True)
class Attack:
    """An attack on a proxy.

    ``world``: the name of the proxy (see conftest). ``sends``: a function that returns the bytes to send over one
    connection. ``expected``: a pattern for all bytes received until the connection closes. ``reaches``: the maximum
    number of requests that may reach the backend. ``backend``: the name of the backend's behavior. ``seconds``: the
    maximum duration. ``mebibytes``: the maximum growth of the proxy's memory.
    """

    name: str
    world: str
    sends: Callable[[Ports], bytes]
    expected: str
    reaches: int = 0
    backend: str = "fine"
    seconds: float = 20.0
    mebibytes: int = 150


def request(
    path: str, body: bytes | None = None, *, method: str = "", host: str = "127.0.0.1", close: bool = True, **more: str
) -> bytes:
    """Return one HTTP/1.1 request."""
    lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def ask(**more: object) -> bytes:
    """Return the body of a chat request that declares a tool."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL]} | more
    return json.dumps(body).encode()


CALL = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
PATTERNED = '<tool_call>{"name":"f","arguments":{"a":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa%d!"}}</tool_call>'
ENDLESS = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a|a)*$"}}}
BILLION = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?:(?:a{1000}){1000}){1000}"}}}
UNEVALUATED = {"properties": {"a": {"unevaluatedItems": {}}}}
PAIRS = f'<tool_call>{{"name":"f","arguments":{{"a":[{"0," * 90_000}0]}}}}</tool_call>'


def patterns(count: int, first: int = 0) -> dict[str, object]:
    """Return a schema with ``count`` patterns of 25 characters, each of which takes 2 ms to compile."""
    texts = (f"(?:{chr(97 + number % 26)}+{number}){{900}}" for number in range(first, first + count))
    return {"type": "object", "properties": {f"a{at}": {"pattern": text} for at, text in enumerate(texts)}}


def function(number: int, **more: object) -> dict[str, object]:
    """Return a tool whose name and only parameter end with this number."""
    parameters = {"type": "object", "properties": {f"a{number}": {"type": "string"}}}
    return {"type": "function", "function": {"name": f"f{number}", "parameters": parameters, **more}}


def schema(bytes_: int) -> dict[str, object]:
    return {"type": "object", "properties": {f"a{number}": {"type": "string"} for number in range(bytes_ // 30)}}


def history(calls: int) -> list[object]:
    """Return a conversation that contains this many calls and their outputs."""
    items: list[object] = [{"role": "user", "content": "x"}]
    for number in range(calls):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        items.append({"role": "assistant", "content": None, "tool_calls": [call]})
        items.append({"role": "tool", "tool_call_id": f"c{number}", "content": "1"})
    return items


# -- backends --


async def fine(answer: Answer) -> None:
    await answer.head(Content_Type="text/event-stream")
    await answer.send(chat_frame("Hi"))
    await answer.send(chat_frame(finish="stop"))
    await answer.send(DONE)
    await answer.end()


async def huge(answer: Answer) -> None:
    await answer.head(Content_Type="application/json")
    for _ in range(64):
        await answer.send(b" " * MEBIBYTE)
    await answer.end()


async def huge_event(answer: Answer) -> None:
    await answer.head(Content_Type="text/event-stream")
    await answer.send(b"data: ")
    for _ in range(64):
        await answer.send(b"x" * MEBIBYTE)
    await answer.send(b"\n\n")
    await answer.end()


def sending(text: str, *, stream: bool = True) -> Behaviour:
    """Return a backend that sends the entire text in one delta."""

    async def behave(answer: Answer) -> None:
        if not stream:
            whole = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
            await answer.whole(json.dumps(whole).encode(), Content_Type="application/json")
            return
        await answer.head(Content_Type="text/event-stream")
        await answer.send(chat_frame(text))
        await answer.send(chat_frame(finish="stop"))
        await answer.send(DONE)
        await answer.end()

    return behave


async def dense_event(answer: Answer) -> None:
    await answer.head(Content_Type="text/event-stream")
    lists = b",".join([b"[]"] * 600_000)
    await answer.send(b'data: {"choices":[{"delta":{"content":"x"}}],"x":[%s]}\n\n' % lists)
    await answer.send(chat_frame(finish="stop"))
    await answer.send(DONE)
    await answer.end()


async def bomb(answer: Answer) -> None:
    await answer.whole(BOMB, Content_Type="application/json", Content_Encoding="zstd")


async def trailers(answer: Answer) -> None:
    await answer.head(Content_Type="text/event-stream", Trailer="X-T")
    await answer.send(chat_frame("Hi"))
    await answer.send(chat_frame(finish="stop"))
    await answer.send(DONE)
    await answer.raw(b"0\r\nX-T: 1\r\n\r\n")


async def whole_trailers(answer: Answer) -> None:
    await answer.head(Content_Type="application/json", Trailer="X-T")
    await answer.send(b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}')
    await answer.raw(b"0\r\nX-T: 1\r\n\r\n")


def empty(status: int) -> Behaviour:
    async def behave(answer: Answer) -> None:
        await answer.raw(b"HTTP/1.1 %d Nothing\r\nContent-Type: text/event-stream\r\n\r\n" % status)
        answer.hang_up()

    return behave


BACKENDS: dict[str, Behaviour] = {
    "fine": fine,
    "huge": huge,
    "huge event": huge_event,
    "bomb": bomb,
    "trailers": trailers,
    "whole trailers": whole_trailers,
    "10,000 calls": sending(CALL * 10_000),
    "10,000 calls at once": sending(CALL * 10_000, stream=False),
    "pairs": sending(PAIRS),
    "endless patterns": sending("".join(PATTERNED % number for number in range(2_000))),
    "words": sending("word " * 300_000),
    "dense event": dense_event,
    "204": empty(204),
    "205": empty(205),
}
BOMB = zstandard.compress(bytes(500 * MEBIBYTE))

# -- attacks --

# Paths that some backends treat as API paths, or that expose sensitive data.
SPELLINGS = (
    "/v1/chat/completion%73",
    "/v1//chat//completions",
    "/v1/chat/completions/.",
    "/v1/chat/completions;a=b",
    "/v1/chat/completions%20",
    "/v1/chat/completions%00",
    "/V1/CHAT/COMPLETIONS",
    "/v1/x/../chat/completions",
    "/v1/chat/completions#x",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/files",
    "/v1/responses/resp_1",
    "//toolsim/metrics",
    "/",
    "*",
    "http://127.0.0.1/v1/chat/completions",
)


def _spelling(path: str) -> Attack:
    return Attack(f"no key: {path}", "locked", lambda ports: request(path, ask(tools=[])), r"HTTP/1.1 401 ")


def _loop(host: str) -> Attack:
    def sends(ports: Ports) -> bytes:
        return request(f"http://{host}:{ports.proxy}/v1/models", host=f"{host}:{ports.proxy}")

    return Attack(f"to itself: {host}", "regular", sends, r"HTTP/1.1 (404|508|502) ")


def _tunnel(host: str) -> Attack:
    def sends(ports: Ports) -> bytes:
        connect = request(f"{host}:{ports.builtin}", method="CONNECT", host=f"{host}:{ports.builtin}", close=False)
        return connect + request("/v1/responses", b'{"input":"x"}', Origin="https://evil.example")

    return Attack(f"tunnel to the built-in backend: {host}", "scripted", sends, r"HTTP/1.1 403 (?!.*HTTP/1.1 200)")


def _keyless_tunnel(host: str) -> Attack:
    def sends(ports: Ports) -> bytes:
        connect = request(f"{host}:{ports.builtin}", method="CONNECT", host=f"{host}:{ports.builtin}", close=False)
        return connect + request("/v1/responses", b'{"input":"x"}')

    return Attack(f"tunnel without the key: {host}", "locked scripted", sends, r"HTTP/1.1 403 (?!.*HTTP/1.1 200)")


def _elsewhere(world: str, target: str, expected: str) -> list[Attack]:
    """Try to reach another host through the listener: with an absolute URL, with the Host header, or with CONNECT."""

    def host(ports: Ports) -> str:
        return target or f"127.0.0.1:{ports.backend}"

    def by_url(ports: Ports) -> bytes:
        return request(f"http://{host(ports)}/", host=host(ports))

    def by_name(ports: Ports) -> bytes:
        return request("/", host=host(ports))

    def by_tunnel(ports: Ports) -> bytes:
        return request(host(ports), method="CONNECT", host=host(ports))

    ways = {"URL": by_url, "Host": by_name, "CONNECT": by_tunnel}
    name = target or "a neighbour"
    return [Attack(f"{world}: {name} by {way}", world, sends, expected) for way, sends in ways.items()]


def _rebound(path: str, origin: str) -> Attack:
    def sends(ports: Ports) -> bytes:
        name = f"evil.test:{ports.proxy}"
        more = {"Origin": f"http://{name}"} if origin == "its own" else {"Origin": origin} if origin else {}
        host = name if origin in ("", "its own") else f"127.0.0.1:{ports.proxy}"
        return request(path, ask(tools=[]) if "chat" in path else None, host=host, **more)

    return Attack(f"page, origin {origin or 'unsaid'}: {path}", "plain", sends, r"HTTP/1.1 403 .*forbidden")


OK, TOO_LARGE, BAD = r"HTTP/1.1 200 ", r"HTTP/1.1 413 .*request_too_large", r"HTTP/1.1 400 .*invalid_request_error"
# Request bodies near and beyond the size limits: name, body, expected answer, and further fields of the attack.
LARGE: list[tuple[str, Callable[[], bytes], str, dict[str, Any]]] = [
    ("just small enough", lambda: ask(messages=history(450)), OK, {"reaches": 1}),
    ("15 MB of text", lambda: ask(messages=[{"role": "user", "content": "word " * 3_000_000}]), OK, {"reaches": 1}),
    ("15 MB with an emoji", lambda: ask(user="\N{GRINNING FACE}" + "x" * 15_000_000), OK, {"reaches": 1}),
    ("15 MB of empty lists", lambda: ask()[:-1] + b',"x":[' + b",".join([b"[]"] * 5_000_000) + b"]}", TOO_LARGE, {}),
    ("15 MB of empty lists, as they are", lambda: b'{"x":[' + b",".join([b"[]"] * 5_000_000) + b"]}", TOO_LARGE, {}),
    ("100,000 messages", lambda: ask(messages=history(50_000)), OK, {"reaches": 1}),
    ("45 MB", lambda: ask(messages=[{"role": "user", "content": "x" * 45_000_000}]), TOO_LARGE, {}),
    ("2,000 strict tools", lambda: ask(tools=[function(n, strict=True) for n in range(2_000)]), OK, {"reaches": 1}),
    ("400 strict tools", lambda: ask(tools=[function(n, strict=True) for n in range(400)]), OK, {"reaches": 1}),
    ("20,000 tools", lambda: ask(tools=[function(number) for number in range(20_000)]), BAD, {}),
    ("a schema of 60 kB", lambda: ask(tools=[function(0, strict=True, parameters=schema(60_000))]), OK, {"reaches": 1}),
    ("a schema of 10 MB", lambda: ask(tools=[function(0, strict=True, parameters=schema(10_000_000))]), BAD, {}),
    (
        "10,000 calls in a stream",
        lambda: ask(stream=True),
        OK,
        # Each call produces seven events, so the answer takes 6 to 10 s on a slow machine that also runs other tests.
        {"reaches": 1, "backend": "10,000 calls", "seconds": 30.0},
    ),
    ("10,000 calls at once", ask, OK, {"reaches": 1, "backend": "10,000 calls at once", "seconds": 30.0}),
    (
        "a pattern of a thousand million",
        lambda: ask(tools=[function(0, strict=True, parameters=BILLION)]),
        BAD,
        {},
    ),
    (
        "endless patterns",
        lambda: ask(stream=True, tools=[function(0, name="f", parameters=ENDLESS)]),
        OK,
        {"reaches": 1, "backend": "endless patterns"},
    ),
    ("500 patterns", lambda: ask(tools=[function(0, strict=True, parameters=patterns(500))]), BAD, {}),
    (
        "200 strict tools with a pattern each",
        lambda: ask(tools=[function(at, strict=True, parameters=patterns(1, at)) for at in range(200)]),
        BAD,
        {},
    ),
    (
        "an array of 180 kB with a schema that compares all pairs",
        lambda: ask(stream=True, tools=[function(0, name="f", parameters=UNEVALUATED)]),
        OK,
        {"reaches": 1, "backend": "pairs"},
    ),
    ("an event of 1.5 MB of words", lambda: ask(stream=True), OK, {"reaches": 1, "backend": "words"}),
    ("an event of 1.8 MB of empty lists", lambda: ask(stream=True), OK, {"reaches": 1, "backend": "dense event"}),
]

ATTACKS = [
    *map(_spelling, SPELLINGS),
    Attack(
        "no key: preflight of a stranger",
        "locked",
        lambda ports: request(
            "/v1/chat/completions",
            method="OPTIONS",
            Origin="https://evil.example",
            Access_Control_Request_Method="POST",
        ),
        r"HTTP/1.1 401 ",
    ),
    *map(_loop, ("LOCALHOST", "127.1", "0.0.0.0", "127.0.0.1", "localhost.", "[::ffff:127.0.0.1]")),
    *map(_tunnel, ("127.0.0.1", "127.1", "0.0.0.0", "localhost")),
    *map(_keyless_tunnel, ("127.1", "0.0.0.0", "127.0.0.1")),
    *_elsewhere("scripted", "", r"HTTP/1.1 403 "),
    *_elsewhere("scripted", "169.254.169.254:80", r"HTTP/1.1 403 "),
    *_elsewhere("locked scripted", "", r"HTTP/1.1 403 "),
    *_elsewhere("locked forward", "", r"HTTP/1.1 407 .*[Pp]roxy-[Aa]uthenticate: "),
    *_elsewhere("locked forward", "169.254.169.254:80", r"HTTP/1.1 407 "),
    *(
        _rebound(path, origin)
        for path in ("/v1/chat/completions", "/v1/models", "/toolsim/metrics", "/v1/responses/resp_1", "/")
        for origin in ("", "its own", "https://evil.test")
    ),
    Attack(
        "tunnel to itself",
        "regular",
        lambda ports: (
            request(f"127.1:{ports.proxy}", method="CONNECT", host="x", close=False)
            + request("http://x.invalid/", host="x.invalid")
        ),
        r"HTTP/1.1 200 .*HTTP/1.1 (404|508) ",
    ),
    Attack(
        "DNS rebinding",
        "scripted",
        lambda ports: request(
            f"http://127.0.0.1:{ports.builtin}/v1/responses", b'{"input":"x"}', Origin="https://evil.example"
        ),
        r"HTTP/1.1 403 ",
    ),
    Attack(
        "a zstd bomb",
        "plain",
        lambda ports: request("/v1/chat/completions", BOMB, Content_Encoding="zstd"),
        r"HTTP/1.1 413 .*request_too_large",
    ),
    Attack(
        "a gzip bomb",
        "plain",
        lambda ports: request(
            "/v1/chat/completions", gzip.compress(bytes(200 * MEBIBYTE), mtime=0), Content_Encoding="gzip"
        ),
        r"HTTP/1.1 413 .*request_too_large",
    ),
    Attack(
        "a body beyond the limit",
        "plain",
        lambda ports: request("/v1/chat/completions", ask() + b" " * (80 * MEBIBYTE)),
        r"HTTP/1.1 413 .*request_too_large",
        mebibytes=200,
    ),
    Attack(
        "a bomb as an answer",
        "plain",
        lambda ports: request("/v1/chat/completions", ask()),
        r"HTTP/1.1 502 .*toolsim_max_body_bytes",
        reaches=1,
        backend="bomb",
    ),
    Attack(
        "an answer beyond the limit",
        "plain",
        lambda ports: request("/v1/chat/completions", ask()),
        r"HTTP/1.1 502 .*toolsim_max_body_bytes",
        reaches=1,
        backend="huge",
        mebibytes=200,
    ),
    Attack(
        "an event beyond the limit",
        "plain",
        lambda ports: request("/v1/chat/completions", ask(stream=True)),
        r'HTTP/1.1 200 .*"error"',
        reaches=1,
        backend="huge event",
        mebibytes=250,
    ),
    Attack(
        "nested too deeply to be read",
        "plain",
        lambda ports: request("/v1/chat/completions", ask()[:-1] + b',"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
        r"HTTP/1.1 400 .*invalid_request_error",
    ),
    Attack(
        "a number too long to be read",
        "plain",
        lambda ports: request("/v1/chat/completions", ask()[:-1] + b',"seed":' + b"1" * 4_301 + b"}"),
        r"HTTP/1.1 400 .*invalid_request_error",
    ),
    Attack(
        "NaN",
        "plain",
        lambda ports: request("/v1/chat/completions", ask()[:-1] + b',"seed":NaN}'),
        r"HTTP/1.1 400 .*invalid_request_error",
    ),
    Attack(
        "trailers of a request",
        "plain",
        lambda ports: (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTrailer: X-T\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nX-T: 1\r\n\r\n" % (len(ask()), ask())
        ),
        r"HTTP/1.1 200 ",
        reaches=1,
    ),
    Attack(
        "trailers of a stream",
        "plain",
        lambda ports: request("/v1/chat/completions", ask(stream=True)),
        r"HTTP/1.1 200 .*DONE",
        reaches=1,
        backend="trailers",
    ),
    Attack(
        "trailers of a whole answer",
        "plain",
        lambda ports: request("/v1/chat/completions", ask()),
        r"HTTP/1.1 200 .*Hi",
        reaches=1,
        backend="whole trailers",
    ),
    *(
        Attack(
            f"{status} for a stream",
            "plain",
            lambda ports: request("/v1/chat/completions", ask(stream=True)),
            r"HTTP/1.1 200 .*\"error\"",
            reaches=1,
            backend=status,
        )
        for status in ("204", "205")
    ),
    Attack(
        "a backend that never accepts",
        "hole",
        lambda ports: request("/v1/chat/completions", ask()),
        r"HTTP/1.1 504 .*backend_timeout",
        seconds=8,
    ),
    *(
        Attack(
            f"large: {name}",
            "plain",
            lambda ports, body=body: request("/v1/chat/completions", body()),
            expected,
            **more,
        )
        for name, body, expected, more in LARGE
    ),
]
