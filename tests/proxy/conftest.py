"""Fixtures: a backend that can misbehave, a real mitmdump process in front of it, and a client connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.line import Line
from support.mitmdump import Mitmdump
from support.raw_backend import RawBackend

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Bonn\\"}"}</tool_call>'


@pytest.fixture(scope="session")
def ask() -> Any:
    """Return a function that creates the body of a chat completions request with one tool."""

    def body(*, stream: bool = False, **more: Any) -> dict[str, Any]:
        return {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [WEATHER],
            "stream": stream,
        } | more

    return body


@pytest.fixture(scope="module")
def backend() -> Iterator[RawBackend]:
    with RawBackend() as backend:
        yield backend


@pytest.fixture(scope="module")
def proxy(backend: RawBackend) -> Iterator[Mitmdump]:
    with Mitmdump(backend.url) as proxy:
        yield proxy


@pytest.fixture
def line(proxy: Mitmdump) -> Iterator[Line]:
    with Line(proxy.url) as line:
        yield line
