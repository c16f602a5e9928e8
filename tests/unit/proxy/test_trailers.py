"""Trailers are dropped, in the very reader that mitmproxy uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from h11 import EndOfMessage
from h11._receivebuffer import ReceiveBuffer
from mitmproxy.proxy.layers.http import _http1
from toolsimlib.proxy import trailers


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    trailers.uninstall()  # Another test may have loaded the addon.
    yield
    trailers.uninstall()


def last_event(body: bytes) -> Any:
    buffer = ReceiveBuffer()
    buffer += body  # type: ignore[no-untyped-call]
    reader = _http1.make_body_reader(None)
    event = None
    while (found := reader(buffer)) is not None and not isinstance(event, EndOfMessage):
        event = found
    return event


def test_trailers_are_dropped() -> None:
    """With them and without, a body ends in the same way; unloaded, mitmproxy reads them as it always did."""
    with_trailers, without = b"1\r\na\r\n0\r\nX-T: 1\r\n\r\n", b"1\r\na\r\n0\r\n\r\n"
    assert list(last_event(with_trailers).headers) == [(b"x-t", b"1")]
    trailers.install()
    trailers.install()
    assert last_event(with_trailers) == last_event(without) == EndOfMessage()
    trailers.uninstall()
    assert list(last_event(with_trailers).headers) == [(b"x-t", b"1")]


def test_unknown_mitmproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another reader than h11's is left alone."""
    monkeypatch.setattr(_http1, "ChunkedReader", None)
    trailers.install()
    assert _http1.ChunkedReader is None  # type: ignore[attr-defined]
