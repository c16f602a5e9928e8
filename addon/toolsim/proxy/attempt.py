"""A request that attempts what its backend may refuse, and the same request without it.

Some servers accept ``tools`` and some an enforced form of the answer; only the answer shows which server does, and for
which model. So with ``auto`` the first request tries. If an error names the feature, we remember that, log it once, and
rewrite the client's request without the attempt. The stream sends it in place of the first
(``mitmproxy12.resending``), so that the client sees one answer. Over HTTP/2 it cannot, and the client gets the error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import override

from mitmproxy.http import HTTPFlow

from toolsim.core.plan import Feature as BackendFeature
from toolsim.core.plan import Plan
from toolsim.core.report import Report, entry
from toolsim.proxy.decoding import decoded
from toolsim.proxy.exchange import Exchange, Feature
from toolsim.proxy.jobs import Done, RequestJob
from toolsim.proxy.known import Backend
from toolsim.proxy.metadata import NOTE, policy_as_dict
from toolsim.request.engine import is_refusal

logger = logging.getLogger(__name__)

# An error with a reason is short.
_MAX_ERROR_BYTES = 1024 * 1024
_LOGGED_CHARACTERS = 300
_WARNINGS: Mapping[BackendFeature, str] = {
    "tools": "toolsim: the backend does not accept tools for %s: from now on the prompt lists them. Its error: %s",
    "constraint": (
        "toolsim: the backend cannot enforce calls for %s: from now on the prompt asks for them. Its error: %s"
    ),
}


class Attempt(Feature):
    """How a client's request was rewritten, with something that its backend may refuse, and how it is without that."""

    def __init__(self, job: RequestJob) -> None:
        self._job = job
        """How the request was rewritten."""
        self.second: RequestJob | None = None
        """How it is to be rewritten without what was refused; None: it is not to be sent again."""

    @override
    def begins(self, exchange: Exchange, flow: HTTPFlow) -> bool:
        response = flow.response
        assert response is not None
        is_present = response.raw_content is not None
        is_attempt = exchange.plan is not None and bool(exchange.plan.attempts)
        if not is_attempt or 200 <= response.status_code < 300 or is_present:
            return False
        # The error may only refuse what was attempted: its body decides.
        response.stream = False
        return True

    def is_refused(self, exchange: Exchange, flow: HTTPFlow, *, can_resend: bool) -> bool:
        """Inspect an error that has arrived whole; return whether to send the request a ``second`` time.

        ``can_resend``: whether that is possible.
        """
        plan = exchange.plan
        if plan is None:
            return False
        backend, refused = exchange.backend, _refused(flow, plan)
        for feature in refused:
            backend.refuses(plan.form.model, feature)
        if not refused or not can_resend:
            return False
        before = exchange.report
        report = Report(client=self._job.dialect, round=before.round, part_of=before.part_of)
        report.warnings.extend(entry("REFUSED", feature) for feature in refused)
        self.second = replace(self._job, report=report, refused=frozenset(backend.refused))
        return True

    def take_resent(self, exchange: Exchange, flow: HTTPFlow, done: Done) -> None:
        """Send the request that was rewritten a ``second`` time."""
        self.second = None
        exchange.take_resent(flow, done)
        if done.rewritten is not None and NOTE in flow.metadata:
            flow.metadata[NOTE]["options"] = policy_as_dict(done.rewritten.plan.policy)

    @override
    def closed(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        if exchange.plan is not None:
            _note_missed_calls(exchange.backend, exchange.plan, exchange.report)


def _note_missed_calls(backend: Backend, plan: Plan, report: Report) -> None:
    """Remember a backend that was given tools and whose answer held a call as text: its own parser does not know it."""
    missed = any(verdict.startswith("call ") for block in report.blocks for verdict in block["verdicts"])
    if missed and "tools" in plan.attempts:
        backend.refuses(plan.form.model, "tools")


def _refused(flow: HTTPFlow, plan: Plan) -> list[BackendFeature]:
    response = flow.response
    if response is None or 200 <= response.status_code < 300:
        return []
    try:
        encoding = response.headers.get("content-encoding", "")
        message = decoded(response.raw_content or b"", encoding, _MAX_ERROR_BYTES).decode("utf-8", "replace")
    except ValueError:
        return []
    refused = [feature for feature in plan.attempts if is_refusal(feature, response.status_code, message)]
    for feature in refused:
        excerpt = " ".join(message.split())[:_LOGGED_CHARACTERS]
        logger.warning(_WARNINGS[feature], plan.form.model or "this model", excerpt)
    return refused
