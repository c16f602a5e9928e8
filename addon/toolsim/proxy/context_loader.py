"""Loads the stored data for a request before it is rewritten, and stores the answer before it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mitmproxy.http import HTTPFlow, Response

from toolsim.core.errors import ApiError
from toolsim.core.failures import FAILURES
from toolsim.core.plan import StoredAs
from toolsim.proxy.background import Background
from toolsim.proxy.exchange import Exchange
from toolsim.proxy.jobs import AnswerResult, PageJob, RunJob, request_too_large
from toolsim.proxy.response_store import UNAVAILABLE, ResponseStore
from toolsim.proxy.stored_context import StoredContext
from toolsim.wire.json_codec import dump
from toolsim.wire.responses.resources import ResourceCall, wrong_method
from toolsim.wire.responses.stored import Recalled, may_refer_to_stored, output_names, pieces, with_outcome

NOTHING = Recalled()
_AT_ONCE = 256 * 1024
"""Number of bytes that are searched before other tasks can run. Searching them takes at most 2 ms."""


@dataclass(frozen=True, slots=True)
class StoredContextLoader:
    """Loads the stored data that requests refer to, and stores their answers."""

    memory: ResponseStore
    run: RunJob
    """A function that runs a job, in this process or in a worker process."""
    background: Background

    async def serve(self, flow: HTTPFlow, exchange: Exchange) -> None:
        """Answer a request for stored data."""
        context, request, limit = exchange.stored_context, flow.request, exchange.limits.max_request_bytes
        assert context is not None
        assert context.resource is not None
        call = ResourceCall(context.resource, request.method, request.path.partition("?")[2])
        error = request_too_large(limit) if exchange.is_request_too_large else wrong_method(call)
        if error is None and await self.background.answers.serve(flow, exchange, call):
            return
        if error is None:
            encoding, owner = request.headers.get("content-encoding", ""), context.partition
            data = request.raw_content or b""
            job = PageJob(call, None, data=data, limit=limit, encoding=encoding, owner=owner)
            done = await self.memory.serve(owner, call.resource.id, lambda value: self.run(replace(job, value=value)))
            error = done.error
        if error is not None:
            flow.response = exchange.refuse(error)
        else:
            flow.response = Response.make(200, done.body, {"content-type": "application/json"})

    def take(self, flow: HTTPFlow, exchange: Exchange) -> bool:
        """Accept the body of a request, and return whether it might refer to stored data (see ``recall``)."""
        context, request = exchange.stored_context, flow.request
        if context is None or exchange.is_request_too_large:
            return False
        encoding = request.headers.get("content-encoding", "").strip().lower()
        encoding = "" if encoding == "identity" else encoding
        context.received, context.encoding = request.raw_content or b"", encoding
        return bool(encoding) or len(context.received) > _AT_ONCE or may_refer_to_stored(context.received)

    async def recall(self, flow: HTTPFlow, exchange: Exchange) -> None:
        """Load the data that a request refers to. If this fails for any reason, answer the request with an error."""
        try:
            await self._recall(flow, exchange)
        except Exception as problem:
            # The request fails, because it would have a different meaning without its stored context.
            FAILURES.report("load the stored data of a request", problem)
            flow.response = exchange.refuse(UNAVAILABLE)

    async def _recall(self, flow: HTTPFlow, exchange: Exchange) -> None:
        context, limit = exchange.stored_context, exchange.limits.max_request_bytes
        assert context is not None
        if not context.encoding and not await _may_refer(context.received):
            return
        job = context.resolve_job(limit)
        done = await self.run(job)
        context.references = done.references
        context.in_background = done.in_background and exchange.action is None
        if done.error is None and not context.references:
            return
        error, recalled = done.error, NOTHING
        if error is None:
            match await self.memory.recall(context.partition, context.references, limit):
                case ApiError() as refused:
                    error = refused
                case Recalled() as recalled:
                    done = await self.run(replace(job, recalled=recalled))
                    error = done.error
        if error is None and len(done.body) > limit:
            message = (
                f"The request, including the stored data that it refers to, is too large: got {len(done.body)} bytes."
            )
            error = ApiError(message, "invalid_request_error", "request_too_large", status=413)
        if error is not None:
            flow.response = exchange.refuse(error)
            return
        context.body, context.own, context.names = done.body, done.own, done.names
        context.stored_as = StoredAs(context.stored_as.id, done.echo)

    async def store_streamed(self, exchange: Exchange) -> None:
        """Store a streamed answer before its final event is sent, because that event reports whether it was stored."""
        answer, context = exchange.streamed, exchange.stored_context
        names = output_names(answer.final) if answer is not None else None
        if answer is None or context is None or names is None:
            return
        outcome: ApiError | bool = False
        try:
            outcome = await self.store(context, exchange.limits.max_request_bytes, dump(answer.final).encode(), names)
        finally:
            answer.end = with_outcome(answer.end, outcome)
        if isinstance(outcome, ApiError):
            answer.report.error = outcome.code

    async def store_whole(self, exchange: Exchange, done: AnswerResult) -> AnswerResult:
        """Store a non-streamed answer, set the field ``store`` in its body to the outcome, and return the answer."""
        context = exchange.stored_context
        if context is None or done.names is None or done.error is not None or done.status != 200:
            return done
        outcome = await self.store(context, exchange.limits.max_request_bytes, done.body, done.names)
        if isinstance(outcome, ApiError):
            return replace(done, error=outcome)
        return replace(done, body=with_outcome(done.body, outcome, stream=False))

    def store_function(self, exchange: Exchange) -> Callable[[Mapping[str, Any]], Awaitable[ApiError | bool]]:
        """Return a function that stores the final answer of an exchange with several rounds.

        The function's argument is the answer, as a Response object.
        """
        context, limit = exchange.stored_context, exchange.limits.max_request_bytes
        assert context is not None

        async def store(final: Mapping[str, Any]) -> ApiError | bool:
            names = output_names(final)
            return True if names is None else await self.store(context, limit, dump(final).encode(), names)

        return store

    async def store(self, context: StoredContext, limit: int, answer: bytes, names: tuple[str, ...]) -> ApiError | bool:
        """Store an answer together with the items of its request."""
        if context.own is None:
            done = await self.run(context.resolve_job(limit, NOTHING))
            context.own, context.names = done.own or b"[]", done.names
        return await self.memory.store(context, answer, names)


async def _may_refer(body: bytes) -> bool:
    """Return whether a body might refer to stored data. Other tasks can run during the search."""
    for is_mentioned in pieces(body, _AT_ONCE):
        if is_mentioned:
            return True
        await asyncio.sleep(0)
    return False
