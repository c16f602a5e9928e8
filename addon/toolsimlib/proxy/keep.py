"""What stays of an exchange for people to look at, when mitmproxy itself keeps no streamed body.

A finished flow holds both sides. The flow itself is what left us: the rewritten request, and the answer as the client
got it. Its backup, which mitmproxy's "revert" brings back, is what came in: the client's own request and the backend's
own answer. Both are mitmproxy's ordinary forms, so that any flow file holds them too.
"""

from __future__ import annotations

import copy
from typing import Any

from mitmproxy.http import HTTPFlow, Response

from toolsimlib.proxy import telemetry

MOST_BYTES = 4 * 1024 * 1024
"""Kept of each side of one answer: more than any turn that a person reads, little enough for a long-running proxy."""


def forget(flow: HTTPFlow) -> None:
    """Take away what an earlier run told of a flow that is replayed; what a person wrote or marked stays."""
    if flow.metadata.pop("toolsim", None) is None:
        return
    if flow.comment.startswith(telemetry.SIGNATURE):
        flow.comment = ""
    if flow.marked in telemetry.MARKERS:
        flow.marked = ""


class Tape:
    """A bounded copy of a stream: whole chunks, up to the first that does not fit."""

    def __init__(self, limit: int = MOST_BYTES) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._kept = 0
        self.missing = 0
        """Bytes that passed and were not kept."""

    def __repr__(self) -> str:
        return f"Tape({self._kept} bytes kept, {self.missing} not)"

    def add(self, chunk: bytes) -> None:
        """Keep one more chunk if there is room."""
        if self.missing or self._kept + len(chunk) > self._limit:
            self.missing += len(chunk)
        else:
            self._chunks.append(chunk)
            self._kept += len(chunk)

    def content(self) -> bytes:
        """Return all that was kept."""
        return b"".join(self._chunks)


class Keeper:
    """Keeps the answer of one exchange, from both sides; ``sent`` is the client's side, ``received`` the backend's."""

    def __init__(self) -> None:
        self.sent = Tape()
        self.received = Tape()
        self._answer: Response | None = None

    def begin(self, answer: Response) -> None:
        """Remember the head of the backend's answer, which must not be changed any more."""
        self._answer = answer

    def whole(self, answer: Response) -> None:
        """Remember the backend's answer, which came whole and will be changed."""
        self._answer = answer.copy()
        self.received.add(answer.raw_content or b"")

    @property
    def missing(self) -> dict[str, int]:
        """The numbers of bytes that were not kept, by side; empty if all were."""
        sides = {"client": self.sent.missing, "backend": self.received.missing}
        return {side: count for side, count in sides.items() if count}

    def settle(self, flow: HTTPFlow) -> None:
        """Give the flow its bodies, and its backup the backend's answer.

        Call it when everything else about the flow is said, since reverting must not take that away.
        """
        response = flow.response
        if response is not None and response.raw_content is None:
            response.raw_content = self.sent.content()
        # In the form of mitmproxy's flow files, as ``flow.backup()`` made it at the request.
        backup: dict[str, Any] | None = flow._backup  # type: ignore[assignment]
        if backup is None:
            return
        told = copy.deepcopy(flow.metadata)
        told.get("toolsim", {})["side"] = "backend"
        backup |= {"comment": flow.comment, "marked": flow.marked, "metadata": told}
        backup["response"] = None
        if self._answer is not None:
            self._answer.raw_content = self.received.content()
            self._answer.timestamp_end = response.timestamp_end if response is not None else None
            backup["response"] = self._answer.get_state()  # type: ignore[no-untyped-call]
