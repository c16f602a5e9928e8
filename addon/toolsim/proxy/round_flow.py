"""The data about a round that its exchange and its recording need."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from toolsim.core.plan import Plan
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy.jobs import RequestJob
from toolsim.response.retry import SECOND_OPINION
from toolsim.response.rewrite import Listener


@dataclass(slots=True)
class RoundFlow:
    """The fields of a round (``rounds.round_planner.Round``) that the round's exchange needs."""

    retries_allowed: frozenset[str]
    partial_call: str
    hosted: frozenset[str] = frozenset()
    report: Report = field(default_factory=Report)
    policy: Policy | None = None
    """The round's policy, or None if the flow was loaded from a file."""
    listener: Listener | None = None
    """A function that receives the answer's events as they arrive. The events of a non-streamed answer arrive together.

    It is None if the flow was loaded from a file.
    """
    is_side_request: bool = False
    """Whether the round asks the model about a call, and is therefore not part of the conversation."""

    def on_job(self, job: RequestJob) -> RequestJob:
        """Return the job that rewrites the round's request."""
        return replace(job, is_round=True)

    def on_plan(self, plan: Plan) -> Plan:
        """Return ``plan`` with the round's allowed retries, and with the partial call that the round continues."""
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
        """Return the data that is needed to replay a recording of the round."""
        where = {"number": self.report.round, "of": self.report.part_of, "is_aside": self.is_side_request}
        return {
            **where,
            "asks": sorted(self.retries_allowed),
            "begun": self.partial_call,
            "hosted": sorted(self.hosted),
        }
