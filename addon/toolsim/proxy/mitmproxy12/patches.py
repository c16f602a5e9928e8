"""Replaces mitmproxy's classes with toolsim's, and checks for the mitmproxy internals on which this folder relies.

This works because mitmproxy looks up each of these classes in a module's globals whenever it creates an object. A class
is not replaced if mitmproxy already uses a different class in its place, or lacks a method that toolsim overrides.
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
"""The methods of ``HttpStream`` that toolsim's subclasses override, or use to identify the state of a stream."""


def check() -> None:
    """Log which internals are missing.

    If the missing internals are needed to store flows correctly, log an error, which prevents mitmproxy from starting.
    """
    if problem := backup.problem():
        logger.error("Unsupported mitmproxy (expected >=12.2,<13): %s.", problem)
    if missing := _missing():
        logger.warning(
            "Unsupported mitmproxy (missing %s): toolsim cannot end answers early, cannot save them when a backend "
            "dies, and does not end an exchange in which an exception occurs.",
            ", ".join(missing),
        )


_nets: list[Net] = []


def install(exchanges: Exchanges, guard: Guard) -> None:
    """Use toolsim's classes for new connections. Streams look up their exchange in ``exchanges``."""
    OwnStream.exchanges, GuardedStream.guard = exchanges, guard
    if not _missing():
        http.HttpStream = GuardedStream  # type: ignore[misc]
        guard.start()
    _nets.append(Net(guard))
    _nets[-1].install()
    if getattr(_http1, "ChunkedReader", None) is ChunkedReader:
        _http1.ChunkedReader = JoiningReader  # type: ignore[attr-defined]


def uninstall() -> None:
    """Restore mitmproxy's own classes."""
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
