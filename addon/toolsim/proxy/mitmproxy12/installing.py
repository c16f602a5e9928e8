"""Puts our classes in the place of mitmproxy's, and checks that mitmproxy is as this folder expects.

Both places are global names of a module, which mitmproxy looks up whenever it creates an object. A
mitmproxy that has another class there is left alone, and so is one that lacks what ours override.
"""

from __future__ import annotations

import logging

from h11._readers import ChunkedReader
from mitmproxy.proxy.layers import http
from mitmproxy.proxy.layers.http import HttpStream, _http1

from toolsim.proxy.exchange import Exchanges
from toolsim.proxy.guard import Guard
from toolsim.proxy.mitmproxy12 import backup
from toolsim.proxy.mitmproxy12.chunks import JoiningReader
from toolsim.proxy.mitmproxy12.guarded import GuardedStream, Net
from toolsim.proxy.mitmproxy12.stream import OwnStream

logger = logging.getLogger(__name__)

OVERRIDDEN = (
    "_handle_event",
    "check_body_size",
    "flow_done",
    "handle_protocol_error",
    "make_server_connection",
    "send_response",
    "start_response_stream",
    "state_consume_request_body",
    "state_consume_response_body",
    "state_done",
    "state_errored",
    "state_stream_response_body",
    "state_wait_for_response_headers",
)
"""The methods of ``HttpStream`` that our streams override or compare with."""


def check() -> None:
    """Log what this mitmproxy lacks: an error, which ends its start, if flows would be stored wrongly."""
    if problem := backup.problem():
        logger.error("Unsupported mitmproxy (expected >=12.2,<13): %s.", problem)
    if missing := _missing():
        logger.warning(
            "Unsupported mitmproxy (missing %s): answers cannot be ended early, nor saved when a backend dies, "
            "and an exception does not end its exchange.",
            ", ".join(missing),
        )


_nets: list[Net] = []


def install(exchanges: Exchanges, guard: Guard) -> None:
    """Make new connections use our classes; ``exchanges``: where they find what they carry."""
    OwnStream.exchanges, GuardedStream.guard = exchanges, guard
    if not _missing():
        http.HttpStream = GuardedStream  # type: ignore[misc]
        guard.start()
    _nets.append(Net(guard))
    _nets[-1].install()
    if getattr(_http1, "ChunkedReader", None) is ChunkedReader:
        _http1.ChunkedReader = JoiningReader  # type: ignore[attr-defined]


def uninstall() -> None:
    """Restore mitmproxy's own."""
    if http.HttpStream is GuardedStream:
        http.HttpStream = HttpStream  # type: ignore[misc]
    GuardedStream.guard.stop()
    while _nets:
        _nets.pop().uninstall()
    if getattr(_http1, "ChunkedReader", None) is JoiningReader:
        _http1.ChunkedReader = ChunkedReader  # type: ignore[attr-defined]


def _missing() -> list[str]:
    missing = [name for name in OVERRIDDEN if not callable(getattr(HttpStream, name, None))]
    if getattr(http, "HttpStream", None) not in (HttpStream, GuardedStream):
        missing.append("HttpStream")
    return missing
