"""``mitmdump -S FILE -s addon/toolsim.py``: a recorded backend's answers for live clients.

mitmproxy's own server replay looks for a stored flow whose request is the live one, after our hooks: then the request
is rewritten, while what was recorded is the client's own. So a live request is recognised before it is rewritten
(``ServerReplay``, listed before ToolSim), and the stored answer is handed over under the rewritten request afterwards
(``Handover``, listed after it). The rest is mitmproxy's: it answers, and the answer goes through the ordinary hooks.

Hosts and ports do not count, nor do secrets; a client that speaks to the listener itself is served too.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

from mitmproxy import ctx
from mitmproxy.addons.serverplayback import ServerPlayback
from mitmproxy.http import HTTPFlow, Request

from toolsimlib.errors import ApiError
from toolsimlib.proxy import route
from toolsimlib.proxy.address import is_listener
from toolsimlib.proxy.exchange import error_response
from toolsimlib.proxy.notes import NOTE
from toolsimlib.recordings.capture import clean
from toolsimlib.recordings.compare import differences

logger = logging.getLogger(__name__)

# What a secret has become: its length is no one's business here.
_HIDDEN = re.compile("x{4,}")


class ServerReplay:
    """Recognises requests whose answer was recorded."""

    def __init__(self) -> None:
        self.handover = Handover()

    def update(self, flows: Any) -> None:
        """Forget the clients' sides of what was just loaded: an answer that we made must not be rewritten again."""
        playback = _playback()
        if not flows and playback is not None:
            for stored in list(_stored(playback)):
                if stored.metadata[NOTE].get("side") == "client":
                    _take(playback, stored)

    def running(self) -> None:
        """The same for what was loaded before this script was."""
        self.update(())

    def requestheaders(self, flow: HTTPFlow) -> None:
        """Let a client speak to the listener as if it were the recorded backend."""
        request, playback = flow.request, _playback()
        if flow.response is not None or playback is None or route.endpoint(request.path) is None:
            return
        if is_listener(request.host, request.port, flow.client_conn.sockname):
            stored = next(_stored(playback), None)
            if stored is not None:
                request.scheme, request.host, request.port = (
                    stored.request.scheme,
                    stored.request.host,
                    stored.request.port,
                )
                self.handover.lost.add(flow.id)

    def request(self, flow: HTTPFlow) -> None:
        """Look for the recorded exchange that began with this request."""
        playback = _playback()
        if playback is None or flow.response is not None or not flow.live:
            return
        if route.dialect(flow.request.method, flow.request.path) is None:
            return
        asked = _said(flow)
        nearest: list[str] | None = None
        for stored in _stored(playback):
            found = [str(each) for each in differences(asked, _said(stored))]
            if not found:
                flow.metadata[NOTE] = stored.metadata[NOTE]
                self.handover.found[flow.id] = stored
                return
            if nearest is None or len(found) < len(nearest):
                nearest = found
        if nearest is not None:
            logger.warning("toolsim: no recorded exchange began with this request; the nearest: %s", nearest[0])


class Handover:
    """Hands a recorded answer to mitmproxy's server replay, under the request as it is by now."""

    def __init__(self) -> None:
        self.found: dict[str, HTTPFlow] = {}
        self.lost: set[str] = set()
        self._handed: dict[str, HTTPFlow] = {}

    def request(self, flow: HTTPFlow) -> None:
        """Hand over what was found for this request."""
        stored, playback = self.found.pop(flow.id, None), _playback()
        is_lost = flow.id in self.lost
        self.lost.discard(flow.id)
        if flow.response is not None or playback is None:
            return
        if stored is None or stored.response is None:
            if is_lost:
                message = "No recorded exchange began with this request; mitmproxy's log names the nearest."
                flow.response = error_response(ApiError(message, "invalid_request_error", "not_recorded", status=404))
            return
        if not ctx.options.server_replay_reuse:
            _take(playback, stored)
        handed: HTTPFlow = stored.copy()  # type: ignore[no-untyped-call]
        handed.request = flow.request.copy()
        self._handed[flow.id] = handed
        playback.add_flows([handed])

    def responseheaders(self, flow: HTTPFlow) -> None:
        """Take back what has been used, or will not be."""
        handed, playback = self._handed.pop(flow.id, None), _playback()
        if handed is not None and playback is not None:
            _take(playback, handed)

    def error(self, flow: HTTPFlow) -> None:
        """The same for a client that has gone."""
        self.responseheaders(flow)


def _playback() -> ServerPlayback | None:
    playback = ctx.master.addons.get("serverplayback")  # type: ignore[no-untyped-call]
    return playback if isinstance(playback, ServerPlayback) and playback.flowmap else None


def _stored(playback: ServerPlayback) -> Iterator[HTTPFlow]:
    for flows in list(playback.flowmap.values()):
        yield from (flow for flow in flows if NOTE in flow.metadata)


def _take(playback: ServerPlayback, flow: HTTPFlow) -> None:
    for key, flows in list(playback.flowmap.items()):
        left = [each for each in flows if each is not flow]
        if left:
            playback.flowmap[key] = left
        else:
            del playback.flowmap[key]


def _said(flow: HTTPFlow) -> dict[str, Any]:
    """Return what a request says, without secrets: so was the recorded one."""
    copy: HTTPFlow = flow.copy()  # type: ignore[no-untyped-call]
    copy.response = None
    (cleaned,) = clean([copy])
    request: Request = cleaned.request
    kind = route.endpoint(request.path)
    query = _HIDDEN.sub("x", request.path.partition("?")[2])
    text = _HIDDEN.sub("x", (request.get_content(strict=False) or b"").decode("utf-8", "surrogateescape"))
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = text
    return {"endpoint": kind, "query": query, "body": None if ctx.options.server_replay_ignore_content else body}
