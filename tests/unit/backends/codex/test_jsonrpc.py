"""The JSON-RPC peer: bytes in, messages out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsimlib.backends.codex import jsonrpc
from toolsimlib.backends.codex.jsonrpc import (
    ErrorResponse,
    Message,
    Notification,
    Peer,
    Request,
    Response,
    Unparsable,
)

LINES = (
    b'{"id":1,"result":{"a":"\xc3\xa9\\n"}}\n'
    b'{"method":"turn/started","params":{"threadId":"t"}}\r\n'
    b"\n"
    b'{"id":"x","method":"item/tool/call","params":{}}\n'
    b'{"id":2,"error":{"code":-32600,"message":"no"}}\n'
    b"a log line\n"
    b'{"jsonrpc":"2.0","method":"bare"}\n'
)
MESSAGES: list[Message] = [
    Response(1, {"a": "é\n"}),
    Notification("turn/started", {"threadId": "t"}),
    Request("x", "item/tool/call", {}),
    ErrorResponse(2, -32600, "no"),
    Unparsable(b"a log line"),
    Notification("bare", {}),
]


def test_each_kind_of_line_is_recognised() -> None:
    """Responses, errors, notifications and requests are recognised; everything else is unparsable."""
    assert Peer().feed(LINES) == MESSAGES


def test_the_cut_of_the_bytes_does_not_matter() -> None:
    """Single bytes give the same messages."""
    peer = Peer()
    assert [message for byte in LINES for message in peer.feed(bytes([byte]))] == MESSAGES


@given(st.lists(st.binary(max_size=40)))
def test_no_bytes_raise(chunks: list[bytes]) -> None:
    """Any bytes, cut anywhere, give the same messages as in one piece."""
    peer = Peer()
    assert [message for chunk in chunks for message in peer.feed(chunk)] == Peer().feed(b"".join(chunks))


LEAVES = st.none() | st.booleans() | st.integers() | st.text()


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_no_json_raises(value: object) -> None:
    """JSON of an unexpected shape does not raise either."""
    for message in (value, {"id": value, "result": value}, {"method": value}, {"id": 1, "error": value}):
        assert len(Peer().feed(json.dumps(message).encode() + b"\n")) == 1


def test_a_lone_surrogate_is_replaced() -> None:
    """UTF-8 and other JSON parsers refuse it: Codex would not answer."""
    _, line = Peer().request("a", {"text": "x\ud83d y\U0001f600"})
    assert json.loads(line.decode())["params"] == {"text": "x\ufffd y\U0001f600"}


def test_deep_nesting_is_unparsable() -> None:
    """A line that exceeds the decoder's recursion limit is unparsable."""
    assert isinstance(Peer().feed(b"[" * 100_000 + b"\n")[0], Unparsable)


def test_a_line_without_end_uses_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is dropped up to its end, and the next one is read."""
    monkeypatch.setattr(jsonrpc, "MAX_LINE_BYTES", 1000)
    peer = Peer()
    for _ in range(100):
        assert peer.feed(b"x" * 100) == []
    assert sum(len(chunk) for chunk in peer._chunks) <= 1000
    assert peer.feed(b'\n{"method":"m"}\n') == [Unparsable(b""), Notification("m", {})]


def test_every_message_is_one_line() -> None:
    """A message with line ends in its strings is one line too; ids count up."""
    peer = Peer()
    first, line = peer.request("a", {"text": "x\ny"})
    second, _ = peer.request("b", {})
    assert (first, second) == (1, 2)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"id": 1, "method": "a", "params": {"text": "x\ny"}}
    assert json.loads(peer.notify("initialized")) == {"method": "initialized"}
    refusal = json.loads(peer.refuse(Request("x", "m", {}), "no"))
    assert refusal == {"id": "x", "error": {"code": -32601, "message": "no"}}
