"""Reports a finished exchange in the log, in the metrics, and in its flow (comment, mark and report)."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import NamedTuple, override

from mitmproxy.http import HTTPFlow

from toolsim.core.conversation import ConversationLabel
from toolsim.core.recent import RecentDict
from toolsim.core.report import Report, code_of
from toolsim.proxy.exchange import Exchange, Feature
from toolsim.proxy.guard import reporting
from toolsim.proxy.jobs import RequestResult
from toolsim.proxy.metadata import COMMENT, REPORT
from toolsim.proxy.mitmproxy12.web import updated
from toolsim.proxy.reporting import summary
from toolsim.proxy.reporting.log import Log
from toolsim.proxy.reporting.metrics import Metrics
from toolsim.proxy.reporting.open_calls import OpenCalls, OpenTurn
from toolsim.request.backend_tools import DROPPED

_MAX_KNOWN = 10_000
"""Maximum number of requests that are remembered to recognize their conversations. Each takes about 100 bytes."""
_MAX_RECENT = 20
"""Maximum number of turns on the overview page."""


class Conversations:
    """Numbers conversations in the order in which they start."""

    def __init__(self) -> None:
        self._known: RecentDict[bytes, int] = RecentDict(_MAX_KNOWN)
        self._count = 0

    def number(self, topic: ConversationLabel) -> int:
        """Return the number of the conversation that a request continues, or a new number."""
        known = (self._known[key] for key in reversed(topic.keys) if key in self._known)
        number = next(known, 0)
        if not number:
            self._count += 1
            number = self._count
        if topic.keys:
            self._known[topic.keys[-1]] = number
        return number


class DroppedTools:
    """Remembers which dropped tools have already been reported to each owner.

    Some clients send the same hosted tool with each request. Repeated warnings would hide all other warnings.
    """

    def __init__(self) -> None:
        self._known: RecentDict[tuple[str, str], None] = RecentDict(_MAX_KNOWN)

    def without_known(self, report: Report, owner: str) -> Report:
        """Return a report without the warnings about dropped tools that this owner has already received."""
        if not any(code_of(warning) == DROPPED for warning in report.warnings):
            return report
        return replace(report, warnings=[each for each in report.warnings if self._is_new(owner, each)])

    def _is_new(self, owner: str, warning: str) -> bool:
        if code_of(warning) != DROPPED:
            return True
        key = owner, warning
        is_new = key not in self._known
        self._known[key] = None
        return is_new


class _Turn(NamedTuple):
    """A finished turn, with the time at which it ended and the arguments for ``summary.log_line``."""

    ended_at: float
    report: Report
    status: int | None
    seconds: float
    problem: str
    is_ours: bool


class Reports:
    """Distributes reports about exchanges to the log, the metrics and the overview page."""

    def __init__(self) -> None:
        self.log = Log()
        self.metrics = Metrics()
        self.conversations = Conversations()
        self.dropped_tools = DroppedTools()
        self.open_calls = OpenCalls()
        self._recent: deque[_Turn] = deque(maxlen=_MAX_RECENT)

    def label(self, labels: frozenset[str]) -> None:
        """Set the additional labels of all metrics. If the labels change, all counts restart at 0."""
        if labels != self.metrics.labels:
            self.metrics = Metrics(labels)

    def add(self, report: Report, status: int | None, seconds: float) -> None:
        """Report an answer that was created in the background."""
        self.log_turn(report, status, seconds)
        self.metrics.count(report, status, seconds)
        self.metrics.count_user(report, status)

    def log_turn(
        self, report: Report, status: int | None, seconds: float, *, problem: str = "", is_ours: bool = True
    ) -> None:
        """Log a finished turn, and add it to the recent turns."""
        self.log.turn(report, status, seconds, problem=problem, is_ours=is_ours)
        self._recent.append(_Turn(time.time(), report, status, seconds, problem, is_ours))

    def recent_lines(self) -> list[str]:
        """Return the log lines of the last turns with their times, newest first."""
        return [
            f"{time.strftime('%H:%M:%S', time.localtime(turn.ended_at))} "
            + summary.log_line(turn.report, turn.status, turn.seconds, problem=turn.problem, is_ours=turn.is_ours)
            for turn in reversed(self._recent)
        ]


class OutcomeReporter(Feature):
    """Reports one exchange.

    This feature is attached first, so that its ``on_close`` is called last, when the report is complete.
    """

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._topic: ConversationLabel | None = None
        """The label of the request's conversation, or None before the request is rewritten."""
        self._conversation = 0
        self._place = ""
        """The conversation and turn number, in human-readable form."""

    @override
    def on_rewritten(self, exchange: Exchange, flow: HTTPFlow, done: RequestResult) -> None:
        if done.rewritten is None or done.topic is None:
            return
        with reporting():
            self._topic = done.topic
            asked = exchange.round
            if asked is None or not asked.is_side_request:
                self._conversation = self._reports.conversations.number(done.topic)
                self._place = done.topic.position(self._conversation)
                if lost := self._reports.open_calls.lost(self._conversation, done.report.unanswered_calls):
                    self._reports.log.lost_calls(lost.place, lost.call_ids)
                    _note_lost_calls(lost)

    @override
    def on_headers_sent(self, exchange: Exchange, flow: HTTPFlow) -> None:
        assert flow.response is not None
        is_whole = exchange.streamed is None
        with reporting():
            found = summary.headers(exchange.report) if is_whole else summary.first_headers(exchange.report)
            flow.response.headers.update(found)

    @override
    def on_close(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        if exchange.is_turn:
            with reporting():
                self._report(exchange, flow, status)

    def _report(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        report, seconds = exchange.report, exchange.timeouts.seconds()
        has_part = exchange.plan is not None or exchange.is_delegated
        is_ours = has_part or report.error is not None
        if status is None:
            report.error = report.error or "aborted"
        problem = exchange.problem() if status is not None and status >= 400 else ""
        shown = self._reports.dropped_tools.without_known(report, exchange.owner)
        self._reports.log_turn(shown, status, seconds, problem=problem, is_ours=is_ours)
        if exchange.round is None:
            self._reports.metrics.count_user(report, status)
        if not is_ours:
            # toolsim did not change this exchange, so no report is needed. The comment explains why there are no calls.
            _comment(flow, summary.comment(report))
            return
        if exchange.round is None:
            # A round is not counted separately. It is counted with the answer to which it belongs.
            self._reports.metrics.count(report, status, seconds, exchange.timeouts.first_byte)
        if flow is not None:
            outcome = {"status": status, "seconds": round(seconds, 3), "missing_bytes": exchange.recorder.missing}
            flow.metadata[REPORT] = report.as_dict() | outcome | {"place": self._place}
            _comment(flow, summary.comment(shown, status, self._words(exchange), self._place))
            flow.marked = flow.marked or summary.marker(shown, status)
            exchange.recorder.store_in(flow)
        if self._conversation:
            self._reports.open_calls.add(self._conversation, self._place, report.tool_call_ids, flow)

    def _words(self, exchange: Exchange) -> str:
        topic = exchange.topic if exchange.is_delegated else self._topic
        return topic.words if topic is not None else ""


def _note_lost_calls(turn: OpenTurn) -> None:
    """Note, in the comment and the report of a turn, that the outputs of some of its calls never arrived."""
    flow = turn.flow() if turn.flow is not None else None
    if flow is None or REPORT not in flow.metadata:
        return
    flow.metadata[REPORT] |= {"lost_calls": [*turn.call_ids]}
    if flow.comment == flow.metadata.get(COMMENT):
        flow.comment = flow.metadata[COMMENT] = f"{flow.comment} · {summary.lost_calls(turn.call_ids)}"
    flow.marked = flow.marked or summary.MARKERS[1]
    updated(flow)


def _comment(flow: HTTPFlow | None, comment: str) -> None:
    """Set a flow's comment, unless the flow already has a comment from another author, such as a user."""
    if flow is not None and not flow.comment:
        flow.comment = flow.metadata[COMMENT] = comment
