"""Remembers the calls of finished turns until their outputs arrive, so that a lost call is reported with its own turn.

A call is lost if the next request in its conversation contains it without an output: whether or not the client ran it,
its result never arrived. The report of that request has a warning (``UNANSWERED_CALL``), but the warning does not
identify the turn that made the call.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import NamedTuple

from mitmproxy.http import HTTPFlow

from toolsim.core.recent import RecentDict

_MAX_CONVERSATIONS = 1000


class OpenTurn(NamedTuple):
    """A turn in which the model made calls.

    ``place`` is the conversation and turn number, in human-readable form. ``flow`` is a weak reference to the turn's
    flow.
    """

    place: str
    call_ids: Sequence[str]
    flow: weakref.ref[HTTPFlow] | None


class OpenCalls:
    """Stores, for each conversation, the latest turn that made calls."""

    def __init__(self) -> None:
        self._turns: RecentDict[int, OpenTurn] = RecentDict(_MAX_CONVERSATIONS)

    def add(self, conversation: int, place: str, call_ids: Sequence[str], flow: HTTPFlow | None) -> None:
        """Store the calls that a finished turn made."""
        if call_ids:
            held = weakref.ref(flow) if flow is not None else None
            self._turns[conversation] = OpenTurn(place, tuple(call_ids), held)

    def lost(self, conversation: int, unanswered: Collection[str]) -> OpenTurn | None:
        """Return the conversation's latest turn with only its lost calls, or None if no call was lost.

        ``unanswered`` contains the IDs of the calls without an output in the next request. The turn is forgotten in any
        case, because the outputs of its calls can no longer arrive.
        """
        turn = self._turns.pop(conversation, None)
        if turn is None or not (ids := [call_id for call_id in turn.call_ids if call_id in unanswered]):
            return None
        return OpenTurn(turn.place, ids, turn.flow)
