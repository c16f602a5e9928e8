"""Serves a backend's recorded answers to live clients, with ``mitmdump -S FILE -s addon/toolsim.py``.

mitmproxy's own server replay looks for a stored flow with the same request, but only after the addon's hooks. By then,
the live request has been rewritten, while the recorded request is the client's original request. A live request is
therefore matched before it is rewritten (``ServerReplay``, listed before ToolSim). Afterwards, the stored answer is
registered for the rewritten request (``Handover``, listed after ToolSim). mitmproxy then sends the answer, which passes
through the ordinary hooks.

Hosts, ports and secrets are not compared. Clients that send requests to the listener's own address are also served.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mitmproxy import ctx
from mitmproxy.addons.serverplayback import ServerPlayback
from mitmproxy.exceptions import FlowReadException
from mitmproxy.http import HTTPFlow, Request
from mitmproxy.io import read_flows_from_paths

from toolsim.core.errors import ApiError
from toolsim.proxy import route
from toolsim.proxy.address import is_listener
from toolsim.proxy.head import error_response
from toolsim.proxy.metadata import NOTE

logger = logging.getLogger(__name__)

NOT_RECORDED = "No recorded exchange began with this request"
NORMALISE = "normalise"
"""The key of the patterns for ignored text in a recording's ``toolsim_capture`` metadata."""
_MAX_SHOWN = 5

# Matches a hidden secret. The lengths of hidden secrets are not compared.
_HIDDEN = re.compile("x{4,}")


class ServerReplay:
    """Finds the recorded exchange for each live request."""

    def __init__(self) -> None:
        self.handover = Handover()

    def running(self) -> None:
        """Remove the client's sides of exchanges in files that were loaded before this script."""
        if (playback := _playback()) is not None:
            _drop_clients_sides(playback)

    def requestheaders(self, flow: HTTPFlow) -> None:
        """If a request addresses the listener itself, redirect it to the recorded backend."""
        request, playback = flow.request, _playback()
        if playback is None:
            return
        # Files can be loaded at any time, so the client's sides of recordings are removed before each request. The
        # ``update`` hook is not suitable, because mitmproxy also calls it after every other hook.
        _drop_clients_sides(playback)
        if flow.response is not None or not route.endpoint(request.path):
            return
        if is_listener(request.host, request.port, flow.client_conn.sockname):
            stored = next(_stored(playback), None)
            if stored is not None:
                request.scheme, request.host, request.port = (
                    stored.request.scheme,
                    stored.request.host,
                    stored.request.port,
                )
                self.handover.redirected.add(flow.id)
                # The recording's ``toolsim_capture`` note marks the flow as a request for a model.
                flow.metadata[NOTE] = stored.metadata[NOTE]

    def request(self, flow: HTTPFlow) -> None:
        """Find the recorded exchange that began with this request, or log the closest recording."""
        playback = _playback()
        if playback is None or flow.response is not None or not flow.live:
            return
        if route.api_of(flow.request.method, flow.request.path) is None:
            return
        # The ``compare`` module is needed only for API requests during a replay, so it is imported here.
        from toolsim.recordings.compare import differences

        nearest: tuple[HTTPFlow, list[str]] | None = None
        wanted = cache(lambda patterns: _comparable(flow, patterns))
        for stored in _stored(playback):
            patterns = tuple(stored.metadata[NOTE].get(NORMALISE, ()))
            found = [str(difference) for difference in differences(wanted(patterns), _comparable(stored, patterns))]
            if not found:
                flow.metadata[NOTE] = stored.metadata[NOTE]
                self.handover.found[flow.id] = stored
                return
            if nearest is None or len(found) < len(nearest[1]):
                nearest = stored, found
        if nearest is not None:
            message = f"{NOT_RECORDED}; the closest is {_file_of(nearest[0])}:{_listed(nearest[1])}"
            self.handover.missed[flow.id] = message
            logger.warning("%s", message)


class Handover:
    """Registers a recorded answer with mitmproxy's server replay, as the answer to the rewritten request."""

    def __init__(self) -> None:
        self.found: dict[str, HTTPFlow] = {}
        self.redirected: set[str] = set()
        self.missed: dict[str, str] = {}
        self._handed: dict[str, HTTPFlow] = {}

    def request(self, flow: HTTPFlow) -> None:
        """Register the recorded answer to this request."""
        stored, playback = self.found.pop(flow.id, None), _playback()
        missed = self.missed.pop(flow.id, f"{NOT_RECORDED}.")
        was_redirected = flow.id in self.redirected
        self.redirected.discard(flow.id)
        if flow.response is not None or playback is None:
            return
        if stored is None or stored.response is None:
            if was_redirected:
                flow.response = error_response(ApiError(missed, "invalid_request_error", "not_recorded", status=404))
            return
        if not ctx.options.server_replay_reuse:
            _take(playback, stored)
        handed: HTTPFlow = stored.copy()  # type: ignore[no-untyped-call]
        handed.request = flow.request.copy()
        self._handed[flow.id] = handed
        playback.add_flows([handed])

    def responseheaders(self, flow: HTTPFlow) -> None:
        """Remove the recorded answer, which has been used or is no longer needed."""
        handed, playback = self._handed.pop(flow.id, None), _playback()
        if handed is not None and playback is not None:
            _take(playback, handed)

    def error(self, flow: HTTPFlow) -> None:
        """Remove the recorded answer, because the client has disconnected."""
        self.responseheaders(flow)


def _playback() -> ServerPlayback | None:
    playback = ctx.master.addons.get("serverplayback")  # type: ignore[no-untyped-call]
    return playback if isinstance(playback, ServerPlayback) and playback.flowmap else None


def _file_of(stored: HTTPFlow) -> str:
    """Return the name of a recording's file. mitmproxy does not store the name, so all files are searched."""
    for path in map(Path, ctx.options.server_replay):
        try:
            if any(flow.id == stored.id for flow in read_flows_from_paths([path])):
                return path.name
        except (OSError, FlowReadException):
            continue
    return "a recording that was loaded manually"


def _listed(found: list[str]) -> str:
    """Return the first few differences, one per line."""
    more = [f"and {len(found) - _MAX_SHOWN} more"] if len(found) > _MAX_SHOWN else []
    return "".join(f"\n  {line}" for line in [*found[:_MAX_SHOWN], *more])


def _stored(playback: ServerPlayback) -> Iterator[HTTPFlow]:
    for flows in list(playback.flowmap.values()):
        yield from (flow for flow in flows if NOTE in flow.metadata)


def _drop_clients_sides(playback: ServerPlayback) -> None:
    """Remove the client's side of each recorded exchange, because toolsim would process its answer again."""
    for stored in list(_stored(playback)):
        if stored.metadata[NOTE].get("side") == "client":
            _take(playback, stored)


def _take(playback: ServerPlayback, flow: HTTPFlow) -> None:
    for key, flows in list(playback.flowmap.items()):
        rest = [stored for stored in flows if stored is not flow]
        if rest:
            playback.flowmap[key] = rest
        else:
            del playback.flowmap[key]


def _comparable(flow: HTTPFlow, patterns: Sequence[str] = ()) -> dict[str, Any]:
    """Return the parts of a request that are compared.

    Secrets are hidden as in recordings, and text that matches ``patterns`` is replaced.
    """
    from toolsim.recordings.capture import clean

    copy: HTTPFlow = flow.copy()  # type: ignore[no-untyped-call]
    copy.response = None
    (cleaned,) = clean([copy])
    request: Request = cleaned.request
    query = _HIDDEN.sub("x", request.path.partition("?")[2])
    text = _HIDDEN.sub("x", (request.get_content(strict=False) or b"").decode("utf-8", "surrogateescape"))
    for pattern in patterns:
        query, text = (re.sub(pattern, "x", part) for part in (query, text))
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = text
    if ctx.options.server_replay_ignore_content:
        body = None
    return {"endpoint": route.endpoint(request.path), "query": query, "body": body}
