"""Answers, logs and counts refused requests.

All refusals are passed to ``Refusals.answer``. They come from the modules ``access`` (key, host, origin or target),
``loop_detection`` (looping requests), ``incoming`` (tunnels), ``user_limits`` (users who exceed a limit) and
``upgrades`` (WebSocket connections).

The number of log lines is limited, both per source and for all sources together, because anyone who can reach the
listener can cause any number of refusals. The metric counts every refusal. A source is an IPv4 address or an IPv6 /64
network, in which one client can have any number of addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address

from mitmproxy.connection import Client
from mitmproxy.http import HTTPFlow

from toolsim.core.errors import ApiError
from toolsim.core.rate import TokenBucket
from toolsim.core.recent import RecentDict
from toolsim.proxy.access import REASONS, Refusal
from toolsim.proxy.api_format import convert
from toolsim.proxy.guard import reporting
from toolsim.proxy.head import error_response
from toolsim.proxy.metadata import COMMENT, REFUSED
from toolsim.proxy.reporting.log import Log
from toolsim.proxy.reporting.metrics import Family
from toolsim.wire.apis import api_of_path

SOURCE_LINES, ALL_LINES = 5, 60
"""Maximum number of log lines per minute, for each source and for all sources together.

They are also the maximum sizes of bursts.
"""
MAX_SOURCES = 1_000
"""Maximum number of remembered sources. Each takes about 300 bytes. The most recently refused sources are kept."""
_NETWORK_BITS = 64
_SECONDS = 60


class Refusals:
    """Answers, logs and counts refused requests."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._counts = Counter(dict.fromkeys(REASONS, 0))
        self._sources: RecentDict[str, _Source] = RecentDict(MAX_SOURCES)
        self._lines = _lines(ALL_LINES)

    def answer(self, flow: HTTPFlow, error: ApiError, headers: Mapping[str, str] | None = None) -> None:
        """Answer a flow with an error in the format of its client's API. A ``Refusal`` is logged and counted."""
        flow.response = error_response(error, headers)
        convert(flow.response, api_of_path(flow.request.path))
        if isinstance(error, Refusal):
            with reporting():
                self._note(flow, error)

    def families(self) -> list[Family]:
        """Return the metrics about refused requests."""
        known = {"reason": REASONS}
        refused = Family("refused_requests_total", "Refused requests by reason.", known=known)
        for reason, count in self._counts.items():
            refused.add({"reason": reason}, count)
        return [refused]

    def _note(self, flow: HTTPFlow, error: Refusal) -> None:
        self._counts[error.reason] += 1
        flow.metadata[REFUSED] = error.reason
        if not flow.comment:
            flow.comment = flow.metadata[COMMENT] = f"refused: {error.reason}"
        name = source_of(flow.client_conn)
        source = self._sources[name] = self._sources.get(name) or _Source()
        if source.lines.take() and self._lines.take():
            unlogged, source.unlogged = source.unlogged, 0
            request = flow.request
            target = f"{request.host}:{request.port}" if request.method == "CONNECT" else request.path
            self._log.refused(error, f"{request.method} {target.partition('?')[0]}", name, unlogged)
        else:
            source.unlogged += 1


class _Source:
    """The refused requests of one source. ``unlogged`` is the number of requests since the last log line."""

    __slots__ = ("lines", "unlogged")

    def __init__(self) -> None:
        self.lines = _lines(SOURCE_LINES)
        self.unlogged = 0


def _lines(count: int) -> TokenBucket:
    return TokenBucket(count / _SECONDS, count)


def source_of(client: Client) -> str:
    """Return the source of a client's requests, as an address or a network."""
    if not client.peername:
        return "unknown"
    host = str(client.peername[0]).partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback or address.is_link_local:
        return str(address)
    network = int(address) >> _NETWORK_BITS << _NETWORK_BITS
    return f"{IPv6Address(network)}/{_NETWORK_BITS}"
