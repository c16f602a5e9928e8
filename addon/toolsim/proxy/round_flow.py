"""A flow that is one round of an answer, as its exchange and its recording know it."""

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
    """A flow that is one round of an answer: what its exchange needs to know of a ``rounds.course.Round``."""

    asks: frozenset[str]
    begun: str
    hosted: frozenset[str] = frozenset()
    report: Report = field(default_factory=Report)
    policy: Policy | None = None
    """That of the round, None for a flow from a file."""
    listener: Listener | None = None
    """Called with the events of its answer, as they come or all at once if it is whole; None for a flow from a file."""
    is_aside: bool = False
    """Whether it asks something about a call, and is not part of the conversation."""

    def on_job(self, job: RequestJob) -> RequestJob:
        """Return how its request is to be rewritten."""
        return replace(job, is_round=True)

    def on_plan(self, plan: Plan) -> Plan:
        """Return its plan: what it may ask again, and what it continues."""
        may_invent = plan.may_invent and SECOND_OPINION in self.asks
        return replace(plan, asks=self.asks, begun=self.begun, hosted=self.hosted, may_invent=may_invent)

    def note(self) -> dict[str, Any]:
        """Return what a recording needs so that the round can be replayed."""
        where = {"number": self.report.round, "of": self.report.part_of, "is_aside": self.is_aside}
        return {**where, "asks": sorted(self.asks), "begun": self.begun, "hosted": sorted(self.hosted)}
