"""A flow that is one round of an answer (``loop/``): what its exchange needs to know about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mitmproxy.http import HTTPFlow

from toolsimlib.plan import Plan, Policy
from toolsimlib.proxy.notes import NOTE
from toolsimlib.report import Report
from toolsimlib.response.rewrite import Listener


@dataclass(slots=True)
class Part:
    """The facts of a ``loop.course.Round``; ``policy`` and ``listener`` are None for a flow from a file."""

    asks: frozenset[str]
    begun: str
    hosted: frozenset[str] = frozenset()
    report: Report = field(default_factory=Report)
    policy: Policy | None = None
    listener: Listener | None = None
    is_aside: bool = False

    def planned(self, plan: Plan) -> Plan:
        """Return the plan of the round's request, with the fields of a round."""
        return replace(plan, asks=self.asks, begun=self.begun, hosted=self.hosted)

    def note(self) -> dict[str, Any]:
        """Return what a recording needs so that the round can be replayed."""
        where = {"number": self.report.round, "of": self.report.part_of, "is_aside": self.is_aside}
        return {**where, "asks": sorted(self.asks), "begun": self.begun, "hosted": sorted(self.hosted)}


PARTS: dict[str, Part] = {}
"""The rounds in flight, by flow id. A client's own flow is never one of these, whatever it sends."""


def part_of(flow: HTTPFlow) -> Part | None:
    """Return the round that a flow is, None for a client's own request."""
    if flow.id in PARTS:
        return PARTS[flow.id]
    note: Mapping[str, Any] | None = flow.metadata.get(NOTE, {}).get("round")
    if note is None or flow.live:
        return None
    report = Report(round=note["number"], part_of=note["of"])
    hosted, is_aside = frozenset(note.get("hosted", ())), note.get("is_aside") is True
    return Part(frozenset(note["asks"]), note["begun"], hosted, report, is_aside=is_aside)
