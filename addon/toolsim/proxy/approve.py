"""Commands that list, approve and refuse the calls that are waiting for approval.

In the flow list, a comment marks the flows whose answers are waiting for approval.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from mitmproxy import command
from mitmproxy.flow import Flow
from mitmproxy.http import HTTPFlow
from mitmproxy.types import Data

from toolsim.mcp.approvals import ApprovalPrompt, OperatorApprovals
from toolsim.proxy.metadata import REPORT
from toolsim.proxy.mitmproxy12.web import updated

logger = logging.getLogger(__name__)

WAITS = "waiting for approval: "
"""The prefix of the comment on a flow whose answer is waiting for approval."""


class Approve:
    """Implements the commands ``toolsim.waiting``, ``toolsim.approve`` and ``toolsim.refuse``."""

    def __init__(self) -> None:
        self.desk = OperatorApprovals(self._changed)
        self._flows: WeakValueDictionary[str, HTTPFlow] = WeakValueDictionary()

    def watch(self, flow: HTTPFlow) -> None:
        """Remember a client's flow, in case its answer has to wait for approval."""
        self._flows[flow.id] = flow

    @command.command("toolsim.waiting")  # type: ignore[untyped-decorator]
    def waiting(self, flows: Sequence[Flow]) -> Data:
        """List the server, tool and arguments of each call in these flows that is waiting for approval."""
        questions = [question for name in _answers(flows) for question in self.desk.waiting(name)]
        table: Any = [[question.label, question.tool, question.arguments] for question in questions] or [
            ["nothing", "", ""]
        ]
        data: Data = table
        return data

    @command.command("toolsim.approve")  # type: ignore[untyped-decorator]
    def approve(self, flows: Sequence[Flow]) -> None:
        """Approve the calls in these flows that are waiting for approval. Later calls need another approval."""
        self._decide(flows, approve=True)

    @command.command("toolsim.refuse")  # type: ignore[untyped-decorator]
    def refuse(self, flows: Sequence[Flow]) -> None:
        """Refuse the calls in these flows that are waiting for approval, and inform the model."""
        self._decide(flows, approve=False)

    def _decide(self, flows: Sequence[Flow], *, approve: bool) -> None:
        decided = [question for name in _answers(flows) for question in self.desk.decide(name, approve=approve)]
        what = (
            ", ".join(f"{question.label}.{question.tool}" for question in decided)
            or "nothing, because no calls in these flows are waiting for approval"
        )
        logger.warning("toolsim: %s %s", "approved" if approve else "refused", what)

    def _changed(self, answer: str) -> None:
        questions = self.desk.waiting(answer)
        for question in questions[-1:]:
            logger.warning(
                "toolsim: the call %s.%s is waiting for toolsim.approve or toolsim.refuse",
                question.label,
                question.tool,
            )
        flow = self._flows.get(answer)
        if flow is None or (flow.comment and not flow.comment.startswith(WAITS)):
            return
        flow.comment = _comment(questions)
        updated(flow)


def _comment(questions: Sequence[ApprovalPrompt]) -> str:
    # The arguments are omitted, because they may be confidential and the comment is saved with the flow.
    return WAITS + ", ".join(f"{question.label}.{question.tool}" for question in questions) if questions else ""


def _answers(flows: Sequence[Flow]) -> list[str]:
    """Return the IDs of the clients' flows. A flow that is a round belongs to the client's flow that it is part of."""
    reports = [(flow, flow.metadata.get(REPORT) or {}) for flow in flows]
    return list(dict.fromkeys(str(report.get("part_of") or flow.id) for flow, report in reports))
