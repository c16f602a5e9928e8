"""Restores the client's own request in a replayed flow.

A flow is replayed with "Replay" in mitmweb, ``replay.client`` in the console, or ``mitmdump -C FILE``. mitmproxy then
sends the request that the flow contains. After "Revert", this is the client's own request, which is handled as it was
the first time. Otherwise, it is the rewritten request. That request declares no tools, so the answer would pass through
unchanged, with its calls as text. For this reason, the client's own request is restored from the flow's backup, and
rewritten with the current options. If the operator edited the rewritten request, the edited text is sent to the model
unchanged, but the answer is still parsed according to the plan of the client's own request.

mitmproxy reads the body before the addon's first hook, but sets it in the flow only after that hook. So a request is
restored in two steps: its headers in ``requestheaders`` and its body in ``request``.
"""

from __future__ import annotations

from mitmproxy.http import HTTPFlow

from toolsim.proxy.jobs import digest
from toolsim.proxy.metadata import COMMENT, REFUSED, REPORT, SENT, is_resent
from toolsim.proxy.mitmproxy12 import backup
from toolsim.proxy.reporting import summary


class ReplayedRequest:
    """The state that a replayed flow retains from its first run.

    ``words`` is the rewritten body with the operator's edits, or None if the body was not edited.
    """

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
        """Restore the operator's edits after the request has been rewritten."""
        if self.words is not None:
            flow.request.content = self.words

    def give_body(self, flow: HTTPFlow) -> None:
        """Replace the flow's body with the body of the client's own request."""
        if self._body is not None:
            flow.request.raw_content = self._body


def forget(flow: HTTPFlow) -> None:
    """Remove the data of an earlier run from a replayed flow, but keep a person's comments and marks."""
    if is_resent(flow):
        # The backup is dropped. Otherwise, the old answer would remain in the flow if the new answer passes through
        # unchanged.
        backup.drop(flow)
    flow.metadata.pop(SENT, None)
    flow.metadata.pop(REFUSED, None)
    if flow.comment == flow.metadata.pop(COMMENT, None):
        flow.comment = ""
    if flow.metadata.pop(REPORT, None) is None:
        return
    if flow.marked in summary.MARKERS:
        flow.marked = ""
