"""Trailers of HTTP/1 are dropped: mitmproxy has none, and its layer crashes on them, so that the client waits for ever.

A proxy may drop trailers (RFC 9110, 6.5.1), and no API that we know sends any. What this leans on, in
``mitmproxy.proxy.layers.http._http1`` 12.2: chunked bodies are read by what the module's global name ``ChunkedReader``
stands for, h11's class, and a last chunk with trailers is an ``EndOfMessage`` with headers.
"""

from __future__ import annotations

from typing import Any

from h11 import EndOfMessage
from h11._readers import ChunkedReader
from mitmproxy.proxy.layers.http import _http1


class ReaderWithoutTrailers(ChunkedReader):
    """Reads a chunked body, and forgets what follows its last chunk."""

    def __call__(self, buf: Any) -> Any:
        """Return the next event of the body."""
        event = super().__call__(buf)
        return EndOfMessage() if isinstance(event, EndOfMessage) else event


def install() -> None:
    """Read bodies without trailers from now on; a mitmproxy that reads them otherwise is left as it is."""
    if getattr(_http1, "ChunkedReader", None) is ChunkedReader:
        _http1.ChunkedReader = ReaderWithoutTrailers  # type: ignore[attr-defined]


def uninstall() -> None:
    """Read them as mitmproxy does."""
    if getattr(_http1, "ChunkedReader", None) is ReaderWithoutTrailers:
        _http1.ChunkedReader = ChunkedReader  # type: ignore[attr-defined]
