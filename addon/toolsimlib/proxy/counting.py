"""Answers to requests for an action instead of a turn: see ``wire/responses/actions.py``."""

from __future__ import annotations

from dataclasses import replace

from mitmproxy.http import HTTPFlow, Response

from toolsimlib.errors import ApiError
from toolsimlib.proxy.decoding import decoded
from toolsimlib.proxy.exchange import Exchange
from toolsimlib.proxy.jobs import Done
from toolsimlib.wire.dialect import RESPONSES
from toolsimlib.wire.responses.actions import compaction, has_counted

_MAX_COUNT_BYTES = 64 * 1024


def count_at_once(exchange: Exchange, flow: HTTPFlow) -> None:
    """Answer a rewritten request for a count with an estimate, if no backend can count."""
    plan = exchange.plan
    if exchange.action != "input_tokens" or plan is None or flow.response is not None:
        return
    if plan.backend != RESPONSES.name or not exchange.backend.counts:
        flow.response = _estimate(exchange)


def take_count(exchange: Exchange, flow: HTTPFlow) -> None:
    """Inspect the answer of a backend that was asked for a count; one that cannot count is not asked again."""
    response = flow.response
    if exchange.plan is None or response is None or not exchange.prepared:
        return
    exchange.recorder.whole(response)
    try:
        body = decoded(response.raw_content or b"", response.headers.get("content-encoding", ""), _MAX_COUNT_BYTES)
    except ValueError:
        body = b""
    counted = has_counted(response.status_code, body)
    exchange.ours = counted is not None
    if counted is False:
        exchange.backend.counts = False
        flow.response = _estimate(exchange)


def compacted(exchange: Exchange, done: Done) -> Done:
    """Return a whole answer unchanged, unless it is the summary of a conversation: then wrap it as a compaction."""
    if exchange.action != "compact" or done.error is not None or done.status != 200:
        return done
    match compaction(done.body, exchange.prepared):
        case ApiError() as error:
            return replace(done, error=error)
        case body:
            return replace(done, body=body)


def _estimate(exchange: Exchange) -> Response:
    # Cleared, so that ``take_count`` does not take the estimate for the backend's answer.
    estimate, exchange.prepared = exchange.prepared, b""
    return Response.make(200, estimate, {"content-type": "application/json"})
