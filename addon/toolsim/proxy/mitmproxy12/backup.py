"""Stores the two sides of a finished exchange in one flow.

The flow itself contains the sent side: the rewritten request, and the answer as the client received it. Its backup,
which mitmproxy's "revert" restores, contains the received side: the client's original request and the backend's
original answer. Both sides are ordinary mitmproxy data, so any flow file can contain them.

mitmproxy has methods to create a backup and to revert to it, but none to inspect or extend it. This file relies on
these internals of ``mitmproxy.flow`` 12.2, which are checked when the addon is loaded:

1. ``flow.backup()`` stores ``flow.get_state()``, a dict, in ``flow._backup``. None means that there is no backup.
2. The keys ``request`` and ``response`` hold the states of the two messages, or None; ``comment``, ``marked``,
   ``metadata``, ``error`` and ``intercepted`` hold the flow's attributes.
3. ``flow.revert()`` restores the entire state and removes the backup.
4. The only attributes of a message are ``stream`` and ``data``. (``Message.copy()`` is avoided. It spends most of its
   time on type checks, and the check of a union type leaves behind an exception that refers to itself and, through its
   traceback, to the caller's objects. The entire exchange would then remain in memory until the next garbage
   collection.)
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from typing import Any

from mitmproxy.connection import Client, Server
from mitmproxy.http import Headers, HTTPFlow, Message, Request, Response

from toolsim.proxy.metadata import REPORT, SENT


def incoming(flow: HTTPFlow) -> Mapping[str, Any]:
    """Return the state that "revert" would restore, or an empty state if the flow has no backup."""
    return _backup(flow) or {}


def incoming_request(flow: HTTPFlow) -> Request | None:
    """Return the client's original request, or None if the flow itself contains that request."""
    state = incoming(flow).get("request")
    return _message(Request, state)


def incoming_response(flow: HTTPFlow) -> Response | None:
    """Return the backend's original answer. Return None if the flow itself contains it, or if it was not recorded."""
    state = incoming(flow).get("response")
    return _message(Response, state)


def begin(flow: HTTPFlow) -> None:
    """Back up the flow's current request as the client's original request.

    This replaces any backup from an edit or an earlier run."""
    drop(flow)
    flow.backup()  # type: ignore[no-untyped-call]
    if (backup := _backup(flow)) is not None:
        backup |= {"response": None, "error": None, "intercepted": False}


def drop(flow: HTTPFlow) -> None:
    """Discard the flow's backup. The messages in the flow then count as both received and sent."""
    flow._backup = None


def set_incoming_response(flow: HTTPFlow, response: Response | None) -> None:
    """Store the backend's answer in the flow's backup, if any, together with the flow's comment, mark and metadata.

    Call this function after all other changes to the flow, so that a revert keeps the comment, mark and metadata.
    """
    backup = _backup(flow)
    if backup is None:
        return
    # The report is not copied, because it is plain data that no longer changes, unlike the metadata of other addons.
    metadata = {key: value if key == REPORT else deepcopy(value) for key, value in flow.metadata.items() if key != SENT}
    if REPORT in metadata:
        metadata[REPORT] = {**metadata[REPORT], "side": "backend"}
    backup |= {"comment": flow.comment, "marked": flow.marked, "metadata": metadata}
    backup["response"] = None if response is None else response.get_state()  # type: ignore[no-untyped-call]


def copied(response: Response) -> Response:
    """Return a copy of an answer that can be changed without changing the original (rule 4)."""
    other = copy(response)
    other.data = copy(response.data)
    other.headers = Headers(response.headers.fields)
    other.trailers = response.trailers and Headers(response.trailers.fields)
    other.stream = False
    return other


def split(flow: HTTPFlow) -> tuple[HTTPFlow, HTTPFlow]:
    """Return two flows without a backup: the first contains the received side, and the second the sent side."""
    backend: HTTPFlow = flow.copy()  # type: ignore[no-untyped-call]
    client: HTTPFlow = flow.copy()  # type: ignore[no-untyped-call]
    backend.revert()  # type: ignore[no-untyped-call]
    client._backup = None
    return backend, client


_KEYS = {"request", "response", "comment", "marked", "metadata", "error", "intercepted"}


def problem() -> str:
    """Return an error message if mitmproxy deviates from points 1 to 3 of the module docstring, otherwise ""."""
    flow = HTTPFlow(Client(peername=("", 0), sockname=("", 0)), Server(address=None))
    flow.request = Request.make("GET", "http://before/")
    try:
        flow.backup()  # type: ignore[no-untyped-call]
        flow.request = Request.make("GET", "http://after/")
        backup = flow._backup
        if not isinstance(backup, dict) or not set(backup) >= _KEYS:
            return "flow.backup() does not store the flow's state in flow._backup"
        set_incoming_response(flow, Response.make(200))
        before, after = split(flow)
        if (before.request.host, after.request.host) != ("before", "after") or before.response is None:
            return "flow.revert() does not restore the state in flow._backup"
    except Exception as error:
        return f"flow.backup() and flow.revert() do not work as expected: {error!r}"
    return ""


def _backup(flow: HTTPFlow) -> dict[str, Any] | None:
    # mitmproxy declares this attribute as a flow, although it contains a flow's state.
    backup: Any = flow._backup
    return backup if isinstance(backup, dict) else None


def _message[M: Message](kind: type[M], state: object) -> M | None:
    return kind.from_state(dict(state)) if isinstance(state, dict) else None  # type: ignore[no-untyped-call]
