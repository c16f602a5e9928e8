"""The end of an exchange: caches facts about its backend, logs it, counts it, and annotates its flow.

mitmproxy's streams are cycles of objects, which stay in memory until a garbage collection finds them, 1,000 requests
later. Nobody needs more of an answer that is over, so its flow releases the exchange: with the reader and writer of the
answer, that is most of what would stay in memory, 30 MB.
"""

from __future__ import annotations

from mitmproxy.http import HTTPFlow

from toolsimlib.proxy.attempt import note_missed_calls
from toolsimlib.proxy.exchange import Exchange
from toolsimlib.proxy.known import KnownBackends
from toolsimlib.proxy.notes import COMMENT, REPORT
from toolsimlib.proxy.reporting import summary
from toolsimlib.proxy.reporting.log import Log
from toolsimlib.proxy.reporting.metrics import Metrics


def close(
    exchange: Exchange, flow: HTTPFlow | None, status: int | None, *, known: KnownBackends, log: Log, metrics: Metrics
) -> None:
    """Finish a turn that is over; ``status``: of its answer, None if none reached the client."""
    if flow is not None and flow.response is not None and callable(flow.response.stream):
        flow.response.stream = True
    report, seconds = exchange.report, exchange.clocks.seconds()
    if exchange.plan is not None:
        note_missed_calls(exchange.backend, exchange.plan, report)
    if report.error in ("backend_unavailable", "backend_timeout"):
        known.forget(exchange.backend)
    is_ours = exchange.plan is not None or exchange.handed_over is not None or report.error is not None
    if status is None:
        report.error = report.error or "aborted"
    problem = exchange.problem() if status is not None and status >= 400 else ""
    log.turn(report, status, seconds, problem=problem, is_ours=is_ours)
    if not is_ours:
        # Explain in the comment why there are no calls. There is no report: nothing of a recording depends on it.
        _comment(flow, summary.NO_TOOLS)
        return
    if exchange.part is None:
        # Rounds are counted once, with the answer that they are part of.
        metrics.count(report, status, seconds, exchange.clocks.first_byte)
    if flow is not None:
        outcome = {"status": status, "seconds": round(seconds, 3), "missing_bytes": exchange.recorder.missing}
        flow.metadata[REPORT] = report.as_dict() | outcome
        words = exchange.topic.words if exchange.topic is not None else ""
        _comment(flow, summary.comment(report, status, words, exchange.place))
        flow.marked = flow.marked or summary.marker(report, status)
        exchange.recorder.store_in(flow)


def _comment(flow: HTTPFlow | None, comment: str) -> None:
    """Give a flow its comment, unless a person has."""
    if flow is not None and not flow.comment:
        flow.comment = flow.metadata[COMMENT] = comment
