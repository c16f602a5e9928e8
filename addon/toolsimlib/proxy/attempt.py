"""A request that attempts what its backend may refuse, and the same request without it.

Some servers accept ``tools`` and some an enforced form of the answer; only the answer shows which server does, and for
which model. So with ``auto`` the first request tries. If an error names the feature, we remember that, log it once, and
rewrite the client's request without the attempt. The stream sends it in place of the first (``cut.py``), so that the
client sees one answer. Over HTTP/2 it cannot, and the client gets the error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mitmproxy.http import HTTPFlow

from toolsimlib.plan import Feature, Plan, Policy
from toolsimlib.proxy.decoding import decoded
from toolsimlib.proxy.jobs import RequestJob
from toolsimlib.proxy.known import Backend
from toolsimlib.report import Report, entry
from toolsimlib.request.engine import is_refusal

logger = logging.getLogger(__name__)

# An error with a reason is short.
_MAX_ERROR_BYTES = 1024 * 1024
_LOGGED_CHARACTERS = 300
_WARNINGS: Mapping[Feature, str] = {
    "tools": "toolsim: the backend takes no tools for %s: from now on they are written into its text. It said: %s",
    "constraint": "toolsim: the backend enforces no calls for %s: from now on they are asked for in words. It said: %s",
}


class Known(NamedTuple):
    """The facts about the backend that a request's job needs, as far as they are known by now."""

    policy: Policy
    refused: frozenset[tuple[str, Feature]]


def known_of(backend: Backend, policy: Policy) -> Known:
    """Return what is known of the ``backend`` that a request goes to, under the operator's policy."""
    if policy.engine == "auto":
        policy = replace(policy, engine=backend.engine or "unknown")
    return Known(policy, frozenset(backend.refused))


@dataclass(frozen=True, slots=True)
class Attempt:
    """How a client's request was rewritten, the operator's ``policy``, and the ``backend`` that it goes to."""

    job: RequestJob
    policy: Policy
    backend: Backend

    def without_refused(self, flow: HTTPFlow, plan: Plan, *, again: bool) -> RequestJob | None:
        """Return how it is rewritten without what the flow's response refuses of the attempts of ``plan``.

        None if the response is no such refusal, or cannot be asked for ``again``.
        """
        refused = _refused(flow, plan)
        for feature in refused:
            self.backend.refuses(plan.form.model, feature)
        if not refused or not again:
            return None
        report = Report(client=self.job.dialect)
        report.warnings.extend(entry("REFUSED", feature) for feature in refused)
        known = known_of(self.backend, self.policy)
        return replace(self.job, policy=known.policy, report=report, refused=known.refused)


def note_missed_calls(backend: Backend, plan: Plan, report: Report) -> None:
    """Remember a backend that was given tools and whose answer held a call as text: its own parser does not know it."""
    missed = any(verdict.startswith("call ") for block in report.blocks for verdict in block["verdicts"])
    if missed and "tools" in plan.attempts:
        backend.refuses(plan.form.model, "tools")


def _refused(flow: HTTPFlow, plan: Plan) -> list[Feature]:
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
