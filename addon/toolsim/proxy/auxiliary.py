"""Auxiliary requests, which request a token count or a summary instead of an answer.

See ``wire/responses/operations.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import override

from mitmproxy.http import HTTPFlow, Response

from toolsim.core.errors import ApiError
from toolsim.proxy.decoding import decoded
from toolsim.proxy.exchange import Exchange, Feature, State
from toolsim.proxy.jobs import AnswerResult, RequestJob, RequestResult
from toolsim.wire.apis import APIS
from toolsim.wire.json_codec import parse_object
from toolsim.wire.responses.operations import Action, compaction, count_answer, has_counted, turn_path

_MAX_COUNT_BYTES = 64 * 1024


class AuxiliaryRequest(Feature):
    """A feature that handles an auxiliary request, which requests a token count or a summary."""

    def __init__(self, action: Action) -> None:
        self._action = action
        self._prepared = b""
        """The messages that a summary retains, or the estimated token count until it is sent, otherwise b""."""

    @override
    def on_job(self, flow: HTTPFlow, job: RequestJob) -> RequestJob:
        job = replace(job, path=turn_path(job.path), action=self._action, stored_as=None)
        policy = job.policy
        counts_itself = policy.backend != "auto" and APIS[policy.backend].token_count is not None
        by = next((api for api in APIS.values() if api.token_count and policy.engine in api.token_count.engines), None)
        if self._action != "input_tokens":
            return job
        # No other API is tried if the path is rejected, because the server might only lack the token-count endpoint.
        job = replace(job, fallbacks=())
        if counts_itself or by is None:
            return job
        # This engine counts tokens only through the API ``by``. A turn would use a different API and have its tools in
        # the prompt, so the request to count tokens also has its tools in the prompt.
        mode = "inject" if policy.mode == "auto" else policy.mode
        return replace(job, policy=replace(policy, backend=by.name, mode=mode))

    @override
    def on_rewritten(self, exchange: Exchange, flow: HTTPFlow, done: RequestResult) -> None:
        plan = exchange.plan
        if done.rewritten is None or plan is None:
            return
        self._prepared = done.prepared
        can_count = APIS[plan.backend].token_count is not None and plan.backend not in exchange.backend.uncounted
        if self._action == "input_tokens" and not can_count and flow.response is None:
            flow.response = self._estimate()

    @override
    def on_response_start(self, exchange: Exchange, flow: HTTPFlow) -> bool:
        assert flow.response is not None
        if self._action != "input_tokens":
            return False
        # The body is read completely, because it shows whether the backend can count tokens.
        flow.response.stream = False
        return True

    @override
    def on_body(self, exchange: Exchange, flow: HTTPFlow) -> bool:
        if self._action == "input_tokens":
            self._take_count(exchange, flow)
        return self._action == "input_tokens"

    def _take_count(self, exchange: Exchange, flow: HTTPFlow) -> None:
        """Process a backend's answer to a token-count request. A backend that cannot count is not queried again."""
        response = flow.response
        if exchange.plan is None or response is None or not self._prepared:
            return
        exchange.recorder.whole(response)
        encoding = response.headers.get("content-encoding", "")
        try:
            body = decoded(response.raw_content or b"", encoding, _MAX_COUNT_BYTES)
        except ValueError:
            body = b""
        counted = has_counted(response.status_code, body, exchange.plan.backend_model)
        if counted is None:
            exchange.settle(State.PASSED)
        if counted and exchange.plan.client != exchange.plan.backend:
            response.content = count_answer((parse_object(body) or {}).get("input_tokens"))
        if counted is False:
            exchange.backend.uncounted.add(exchange.plan.backend)
            flow.response = self._estimate()

    @override
    def on_body_done(self, exchange: Exchange, done: AnswerResult) -> AnswerResult:
        if self._action != "compact" or done.error is not None or done.status != 200:
            return done
        match compaction(done.body, self._prepared):
            case ApiError() as error:
                return replace(done, error=error)
            case body:
                return replace(done, body=body)

    def _estimate(self) -> Response:
        # The estimate is cleared, so that ``on_body`` does not mistake it for the backend's answer.
        estimate, self._prepared = self._prepared, b""
        return Response.make(200, estimate, {"content-type": "application/json"})
