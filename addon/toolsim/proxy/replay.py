"""A replayed flow: "Replay" in mitmweb, ``replay.client`` in the console, ``mitmdump -C FILE``.

mitmproxy sends the request that the flow contains. After "Revert" that is the client's own, and everything works as the
first time. Otherwise it is the rewritten one, without tools, so the answer would pass unchanged, with its calls as
text. So the client's own request is sent again, from the flow's backup, under the current options. If a person has
edited the rewritten request in between, the edited text goes to the model unchanged; the answer is still read by the
plan of the client's own request.

mitmproxy reads the body before the addon's first hook, and sets it in the flow afterwards. So a request is restored in
two steps: its head in ``requestheaders`` and its body in ``request``.
"""

from __future__ import annotations

from mitmproxy.http import HTTPFlow

from toolsim.proxy.jobs import digest
from toolsim.proxy.metadata import COMMENT, REFUSED, REPORT, SENT, is_resent
from toolsim.proxy.mitmproxy12 import backup
from toolsim.proxy.reporting import summary


class ReplayedRequest:
    """The state of a replayed flow from its first run. ``words``: the rewritten body that a person has edited."""

    def __init__(self, flow: HTTPFlow) -> None:
        sent = flow.metadata.get(SENT)
        own = backup.incoming_request(flow) if sent is not None else None
        self._body = own.raw_content if own is not None else None
        self.words: bytes | None = None
        if own is None:
            return
        edited = flow.request.raw_content
        if edited is not None and digest(edited) != sent:
            self.words = edited
        own.timestamp_start, own.timestamp_end = flow.request.timestamp_start, flow.request.timestamp_end
        flow.request = own

    def on_rewritten(self, flow: HTTPFlow) -> None:
        """Keep what a person has edited."""
        if self.words is not None:
            flow.request.content = self.words

    def give_body(self, flow: HTTPFlow) -> None:
        """Set the flow's body to that of the client's own request."""
        if self._body is not None:
            flow.request.raw_content = self._body


def forget(flow: HTTPFlow) -> None:
    """Remove what an earlier run left in a replayed flow; a person's comments and marks stay."""
    if is_resent(flow):
        # Otherwise its old answer would remain next to a new one that passes unchanged.
        backup.drop(flow)
    flow.metadata.pop(SENT, None)
    flow.metadata.pop(REFUSED, None)
    if flow.comment == flow.metadata.pop(COMMENT, None):
        flow.comment = ""
    if flow.metadata.pop(REPORT, None) is None:
        return
    if flow.marked in summary.MARKERS:
        flow.marked = ""
