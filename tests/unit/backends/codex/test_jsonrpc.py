"""Tests for line-based JSON-RPC, and for how each kind of line from the child process is handled."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.backends.codex import jsonrpc
from toolsim.backends.codex.child import Child
from toolsim.backends.codex.errors import RpcError
from toolsim.backends.codex.jsonrpc import Notification, Peer


def a_child() -> Child:
    """Return a child process whose standard input is a mock."""
    child = Child(Path())
    child._stdin = Mock()
    return child


async def test_lines_reach_their_recipients() -> None:
    """Even if Codex's output arrives byte by byte, results and errors reach the pending requests, and notifications
    reach the subscriber. Requests from Codex are refused, and other lines are ignored.
    """
    child = a_child()
    queue = child.subscribe("t")
    asked = [asyncio.create_task(child.request("m", {})) for _ in range(2)]
    await asyncio.sleep(0)
    lines = (
        b'{"id":1,"result":{"a":"\xc3\xa9\\n"}}\n'
        b'{"method":"turn/started","params":{"threadId":"t"}}\r\n'
        b"\n"
        b'{"id":"x","method":"item/tool/call","params":{}}\n'
        b'{"id":2,"error":{"code":-32600,"message":"no"}}\n'
        b"a log line\n"
        b'{"jsonrpc":"2.0","method":"bare"}\n'
    )
    for byte in lines:
        child.pipe_data_received(1, bytes([byte]))
    first, second = await asyncio.gather(*asked, return_exceptions=True)
    assert first == {"a": "é\n"}
    assert isinstance(second, RpcError)
    assert (second.code, second.message) == (-32600, "no")
    assert queue.get_nowait() == Notification("turn/started", {"threadId": "t"})
    assert queue.empty()
    refusal = json.loads(child._stdin.write.call_args.args[0])  # type: ignore[attr-defined]
    assert (refusal["id"], refusal["error"]["code"]) == ("x", -32601)


@given(st.lists(st.binary(max_size=40)))
def test_splitting_bytes_anywhere_yields_the_same_lines(chunks: list[bytes]) -> None:
    peer = Peer()
    assert [line for chunk in chunks for line in peer.feed(chunk)] == Peer().feed(b"".join(chunks))


LEAVES = st.none() | st.booleans() | st.integers() | st.text()


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_unexpected_json_does_not_raise(value: object) -> None:
    """No exception is raised for JSON that has unexpected values or is nested too deeply."""
    child = a_child()
    for message in (value, {"id": value, "result": value}, {"method": value}, {"id": 1, "error": value}):
        child.pipe_data_received(1, json.dumps(message).encode() + b"\n")
    child.pipe_data_received(1, b"[" * 100_000 + b"\n")


def test_lone_surrogate_is_replaced() -> None:
    """A lone surrogate in a message is replaced, because Codex's JSON parser would reject the message."""
    _, line = Peer().request("a", {"text": "x\ud83d y\U0001f600"})
    assert json.loads(line.decode())["params"] == {"text": "x\ufffd y\U0001f600"}


def test_oversized_line_is_not_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line over the size limit is dropped without being buffered, and the next line is read."""
    monkeypatch.setattr(jsonrpc, "MAX_LINE_BYTES", 1000)
    peer = Peer()
    for _ in range(100):
        assert peer.feed(b"x" * 100) == []
    assert sum(len(chunk) for chunk in peer._chunks) <= 1000
    assert peer.feed(b"\n{}\n") == [b"{}"]


def test_every_message_is_one_line() -> None:
    """Each message is written as one line, even if its strings contain line breaks."""
    peer = Peer()
    first, line = peer.request("a", {"text": "x\ny"})
    second, _ = peer.request("b", {})
    assert (first, second) == (1, 2)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"id": 1, "method": "a", "params": {"text": "x\ny"}}
    assert json.loads(peer.notify("initialized")) == {"method": "initialized"}
