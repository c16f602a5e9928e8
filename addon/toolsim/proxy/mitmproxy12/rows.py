"""Makes the flow lists of mitmweb and the console show the URL that the client requested, and the flow's comment.

A flow contains the request that is sent to the backend. Recordings, replays and other addons depend on this request, so
the client's URL cannot be stored in its place. With a built-in backend, for example, the flow's URL has a loopback port
and the path of that backend's API. mitmweb and the console render a row from the flow alone, and the console has no
column for comments. So the rows are rendered from a changed copy of the flow.

Relies on these internals of mitmproxy 12.2:

1. mitmweb's page receives each flow as the dict that ``tools.web.app.flow_to_json`` returns, and its column "Path"
   shows the request's ``scheme``, ``pretty_host``, ``port`` and ``path``.
2. The console draws a row, and the heading of a flow's page, with ``tools.console.common.format_flow``.
3. Both functions are global names of a module that the running program has imported, and are looked up at each use.
4. A request's ``data`` has ``scheme``, ``host``, ``port``, ``path`` and ``headers``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

from mitmproxy.flow import Flow
from mitmproxy.http import Headers, HTTPFlow
from mitmproxy.net.http.url import default_port, hostport, parse_authority

from toolsim.proxy.metadata import CLIENT_URL, SENT
from toolsim.proxy.mitmproxy12 import backup

_OWN = "toolsim_replaced"
"""The attribute in which a replacement function stores the original function."""
_PATH_WIDTH = len("/v1/chat/completions")
"""The width, in characters, to which shorter paths are padded, so that the comments in most rows are aligned."""


class _Place(NamedTuple):
    scheme: str
    host: str
    port: int
    path: str


def install() -> None:
    """Replace the functions that draw rows, if the running program is mitmweb or the console."""
    for module, name, wrapped in _DRAWN:
        original = getattr(sys.modules.get(module), name, None)
        if callable(original) and not hasattr(original, _OWN):
            ours = wrapped(original)
            setattr(ours, _OWN, original)
            setattr(sys.modules[module], name, ours)


def uninstall() -> None:
    """Restore mitmproxy's functions that draw rows."""
    for module, name, _ in _DRAWN:
        if (original := getattr(getattr(sys.modules.get(module), name, None), _OWN, None)) is not None:
            setattr(sys.modules[module], name, original)


def _client_place(flow: HTTPFlow) -> _Place | None:
    """Parse the URL that the client requested. Return None if the URL is unknown or the request was edited."""
    is_edited = bool(backup.incoming(flow)) and SENT not in flow.metadata
    url = flow.metadata.get(CLIENT_URL)
    if is_edited or not isinstance(url, str):
        return None
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    host, port = parse_authority(authority, check=False)
    if not host or not slash:
        return None
    return _Place(scheme, host, port or default_port(scheme) or 0, slash + path)


def _web_row(original: Callable[[Flow], dict[str, Any]]) -> Callable[[Flow], dict[str, Any]]:
    def flow_to_json(flow: Flow) -> dict[str, Any]:
        found = original(flow)
        if isinstance(flow, HTTPFlow) and (place := _client_place(flow)) is not None:
            shown = place._asdict() | {"pretty_host": place.host}
            found["request"] = found["request"] | shown
        return found

    return flow_to_json


def _console_row(original: Callable[..., Any]) -> Callable[..., Any]:
    def format_flow(flow: Flow, **how: Any) -> Any:
        return original(_described(flow) if isinstance(flow, HTTPFlow) else flow, **how)

    return format_flow


def _described(flow: HTTPFlow) -> HTTPFlow:
    """Return a copy of a flow with the client's URL in place of the backend's, and the comment after the path.

    If the URL is unknown and there is no comment, return the flow itself.
    """
    place, comment = _client_place(flow), " ".join(flow.comment.split())
    if place is None and not comment:
        return flow
    shown, request = copy(flow), copy(flow.request)
    shown.request, request.data = request, copy(request.data)
    if place is not None:
        request.data.scheme, request.data.host, request.data.port = place.scheme.encode(), place.host, place.port
        request.data.path = place.path.encode("utf-8", "surrogateescape")
        # If the option showhost is set, the console shows the host from this header.
        request.data.headers = Headers(host=hostport(place.scheme, place.host, place.port))
    if comment:
        path = request.data.path.ljust(_PATH_WIDTH)
        request.data.path = path + f"  {comment}".encode("utf-8", "surrogateescape")
    return shown


_DRAWN = (
    ("mitmproxy.tools.web.app", "flow_to_json", _web_row),
    ("mitmproxy.tools.console.common", "format_flow", _console_row),
)
