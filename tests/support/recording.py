"""Recorded exchanges for tests, created without a network, and the addon context in which they can be replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mitmproxy.http import Headers, HTTPFlow, Request, Response
from mitmproxy.test import taddons, tflow
from support import wire
from toolsim.proxy.addon import ToolSim
from toolsim.recordings.capture import Capture, write

TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Paris\\"}"}</tool_call>'


@contextmanager
def context(*others: Any) -> Iterator[Any]:
    """Yield mitmproxy's context with the addon and its options."""
    with taddons.context(ToolSim(), *others) as context:
        yield context
    ToolSim.exchanges.forget()


def question(*, stream: bool = False, path: str = "/v1/chat/completions", **more: Any) -> HTTPFlow:
    """Return the flow of a client's request, as it arrives at the proxy."""
    flow = tflow.tflow()
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], "stream": stream} | more
    headers = Headers(content_type="application/json", host="127.0.0.1:4711", user_agent="test/1 (Linux)")
    content = json.dumps(body).encode()
    flow.request = Request(
        "127.0.0.1", 4711, b"POST", b"http", b"", path.encode(), b"HTTP/1.1", headers, content, None, 50, 50.5
    )
    return flow


def chat_answer(text: str) -> tuple[str, bytes]:
    """Return the content type and body of a non-streamed chat answer."""
    return "application/json", wire.chat_whole(text)


def chat_stream(*texts: str, ended: bool = True) -> tuple[str, bytes]:
    """Return the content type and body of a streamed chat answer."""
    return "text/event-stream", wire.chat_stream(*texts, ended=ended)


def exchange(flow: HTTPFlow, kind: str, body: bytes, status: int = 200, **headers: str) -> HTTPFlow:
    """Answer a request by calling the addons' hooks in the same order as the addon script."""
    addon, capture = ToolSim(alone=True), Capture()
    for listed in (addon, capture):
        listed.configure({"toolsim_backend"})
    addon.requestheaders(flow)
    for listed in (addon, capture):
        listed.request(flow)
    if flow.response is None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        flow.response = Response.make(status, b"", {"content-type": kind, **named})
        flow.response.raw_content = None
        for listed in (addon, capture):
            listed.responseheaders(flow)
        stream = flow.response.stream
        if callable(stream):
            for data in (body[: len(body) // 2], body[len(body) // 2 :], b""):
                stream(data)
        else:
            flow.response.raw_content = body
    else:
        addon.responseheaders(flow)
    for listed in (addon, capture):
        listed.response(flow)
    return flow


def recording(folder: Path, *, stream: bool = False, text: str = CALL, **more: Any) -> Path:
    """Write a recording of one exchange, and return its path."""
    kind, body = chat_stream("Let me look. ", text) if stream else chat_answer(text)
    return write(exchange(question(stream=stream, **more), kind, body), folder)
