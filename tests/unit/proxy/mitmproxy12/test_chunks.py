"""toolsim's reader for chunked bodies, compared with the h11 reader that it replaces in mitmproxy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from h11 import Data, EndOfMessage, RemoteProtocolError
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer
from h11._util import LocalProtocolError
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.proxy.layers.http import _http1
from toolsim.proxy.exchange import Exchanges
from toolsim.proxy.guard import Guard
from toolsim.proxy.mitmproxy12 import chunks, patches


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    patches.uninstall()  # An earlier test might have loaded the addon, which installs the patches.
    yield
    patches.uninstall()


def events(reader: Any, reads: Sequence[bytes]) -> list[list[Any]]:
    """Return the fragments that the reader emits for each network read. The last entry is the end of the body or an
    error.
    """
    buffer = ReceiveBuffer()
    found: list[list[Any]] = []
    for data in reads:
        buffer += data  # type: ignore[no-untyped-call]
        found.append([])
        try:
            while (event := reader(buffer)) is not None:
                if isinstance(event, EndOfMessage):
                    return [*found, ["end", bytes(buffer)]]
                assert isinstance(event, Data)
                found[-1].append(bytes(event.data))
        except (LocalProtocolError, RemoteProtocolError):
            return [*found, ["error"]]
    return found


def joined(found: list[list[Any]]) -> list[list[Any]]:
    """Join the fragments that belong to the same network read."""
    return [[b"".join(read)] if read and isinstance(read[0], bytes) else read for read in found]


def last_event(body: bytes) -> Any:
    buffer = ReceiveBuffer()
    buffer += body  # type: ignore[no-untyped-call]
    reader = _http1.make_body_reader(None)
    event = None
    while (found := reader(buffer)) is not None and not isinstance(event, EndOfMessage):
        event = found
    return event


def test_trailers_are_dropped() -> None:
    """While toolsim's reader is installed, trailers are dropped. After it is uninstalled, mitmproxy parses trailers
    again.
    """
    with_trailers, without = b"1\r\na\r\n0\r\nX-T: 1\r\n\r\n", b"1\r\na\r\n0\r\n\r\n"
    assert list(last_event(with_trailers).headers) == [(b"x-t", b"1")]
    patches.install(Exchanges(), Guard())
    patches.install(Exchanges(), Guard())
    assert last_event(with_trailers) == last_event(without) == EndOfMessage()
    patches.uninstall()
    assert list(last_event(with_trailers).headers) == [(b"x-t", b"1")]


def test_chunks_of_one_read_are_one_piece() -> None:
    """Complete chunks that arrive in one network read are joined into one fragment. If the last chunk is incomplete,
    its available part is returned without delay.
    """
    reads = [b"1\r\na\r\n2\r\nbc\r\n", b"1\r\nd", b"\r\n1\r\ne\r\n3\r\nfg", b"h\r\n0\r\n\r\n"]
    assert events(chunks.JoiningReader(), reads) == [[b"abc"], [b"d"], [b"e", b"fg"], [b"h"], ["end", b""]]


BODIES = (
    b"1\r\na\r\n2\r\nbc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n",
    b"A;x=y\r\n0123456789\r\n1\r\n\r\r\n2\r\n\r\n\r\n1\r\nz\r\n0\r\nX-T: 1\r\n\r\nHTTP/1.1",
    b"1\r\na\r\n1\r\nbb\r\n0\r\n\r\n",
    b"1\r\na\r\n\r\n1\r\nb\r\n0\r\n\r\n",
    b"1\r\na\r\nx\r\nb\r\n",
    b"1 \r\na\r\n 1\r\nb\r\n",
    b"000000001\r\na\r\n00\r\n\r\n",
    b"5\r\n0\r\n\r\n\r\n0\r\n\r\nrest",
)


@pytest.mark.parametrize("body", BODIES)
def test_splits_read_as_by_h11(body: bytes) -> None:
    """Wherever a body is split, each network read returns the same bytes as with h11's reader."""
    cuts = [[body], [body[at : at + 1] for at in range(len(body))]]
    cuts += [[body[:i], body[i:j], body[j:]] for i in range(1, len(body)) for j in range(i + 1, len(body))]
    for reads in cuts:
        assert joined(events(chunks.JoiningReader(), reads)) == joined(events(ChunkedReader(), reads))


@given(st.lists(st.binary(min_size=1, max_size=40)), st.lists(st.integers(1, 50)), st.binary(max_size=6))
def test_random_bodies_read_as_by_h11(pieces: list[bytes], steps: list[int], noise: bytes) -> None:
    """For random chunks, splits and trailing bytes, the result is exactly the same as with h11's reader."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + noise + b"0\r\n\r\n"
    reads = []
    for step in steps:
        reads, body = [*reads, body[:step]], body[step:]
    reads = [read for read in [*reads, body] if read]
    assert joined(events(chunks.JoiningReader(), reads)) == joined(events(ChunkedReader(), reads))


@given(
    st.lists(st.binary(max_size=20)), st.integers(0, 80), st.sampled_from([b"", b"\r\n", b"0\r\n\r\n", b"1;x\r\na\r\n"])
)
def test_complete_chunks_are_decoded_as_by_h11(pieces: list[bytes], size: int, rest: bytes) -> None:
    """If the data consists of complete chunks, ``whole_chunks`` returns the same content as h11's reader. For any other
    data, it returns None.
    """
    whole = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + rest
    raw, reader = whole[:size], ChunkedReader()
    found, data = events(reader, [raw, b""]), chunks.whole_chunks(raw)
    if data is not None:
        assert data == b"".join(found[0])
        assert (reader._bytes_in_chunk, reader._bytes_to_discard) == (0, b"")
        assert ["error"] not in found
    assert (data is not None) >= (raw == whole and all(pieces) and not rest)


def test_unknown_mitmproxy_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of mitmproxy that does not use h11's reader is not patched."""
    monkeypatch.setattr(_http1, "ChunkedReader", None)
    patches.install(Exchanges(), Guard())
    assert _http1.ChunkedReader is None  # type: ignore[attr-defined]
