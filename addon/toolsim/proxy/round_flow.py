"""A flow that is a round of an answer, in the form needed by its exchange and its recording."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from toolsim.core.plan import Plan, Policy
from toolsim.core.report import Report
from toolsim.proxy.jobs import RequestJob
from toolsim.response.retry import SECOND_OPINION
from toolsim.response.rewrite import Listener


@dataclass(slots=True)
class RoundFlow:
    """A flow that is a round of an answer: the part of a ``rounds.course.Round`` that its exchange needs."""

    retries_allowed: frozenset[str]
    partial_call: str
    hosted: frozenset[str] = frozenset()
    report: Report = field(default_factory=Report)
    policy: Policy | None = None
    """The round's policy, None for a flow from a file."""
    listener: Listener | None = None
    """Called with the events of its answer, as they arrive or all at once if it is not streamed; None for a flow from a
    file.
    """
    is_side_request: bool = False
    """Whether it is a question about a call and not part of the conversation."""

    def on_job(self, job: RequestJob) -> RequestJob:
        """Return the job that rewrites its request."""
        return replace(job, is_round=True)

    def on_plan(self, plan: Plan) -> Plan:
        """Return its plan: the allowed retries, and the partial call that it continues."""
        may_invent = plan.may_invent and SECOND_OPINION in self.retries_allowed
        return replace(
            plan,
            retries_allowed=self.retries_allowed,
            partial_call=self.partial_call,
            hosted=self.hosted,
            may_invent=may_invent,
            may_retry_json=False,
        )

    def note(self) -> dict[str, Any]:
        """Return the data with which a recording of the round can be replayed."""
        where = {"number": self.report.round, "of": self.report.part_of, "is_aside": self.is_side_request}
        return {
            **where,
            "asks": sorted(self.retries_allowed),
            "begun": self.partial_call,
            "hosted": sorted(self.hosted),
        }
