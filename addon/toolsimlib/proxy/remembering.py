"""Turns and the memory: what a flow needs before its request is rewritten, and before its answer is sent."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from mitmproxy.http import HTTPFlow, Response

from toolsimlib.errors import ApiError, BadRequest
from toolsimlib.plan import Kept
from toolsimlib.proxy.background.edge import BackgroundAnswers
from toolsimlib.proxy.decoding import TooLarge, decoded
from toolsimlib.proxy.exchange import Exchange
from toolsimlib.proxy.jobs import Done, Job, PageJob, ResolveJob, request_too_large
from toolsimlib.proxy.memory import UNAVAILABLE, Memory, Remembered
from toolsimlib.report import Report
from toolsimlib.wire.json_codec import dump
from toolsimlib.wire.responses.kept import Recalled, mentions_kept, output_names, with_outcome
from toolsimlib.wire.responses.resources import Call, wrong_method

logger = logging.getLogger(__name__)

NOTHING = Recalled()


class Remembering:
    """Looks up what turns refer to, and stores their answers. ``do`` does a job, here or in a worker."""

    def __init__(self, memory: Memory, do: Callable[[Job], Awaitable[Done]], background: BackgroundAnswers) -> None:
        self._memory = memory
        self._background = background
        self._do = do

    async def serve(self, flow: HTTPFlow, exchange: Exchange) -> None:
        """Answer a request for something that is stored."""
        turn, request, limit = exchange.find(Remembered), flow.request, exchange.limits.max_request_bytes
        assert turn is not None
        assert turn.resource is not None
        try:
            body = decoded(request.raw_content or b"", request.headers.get("content-encoding", ""), limit)
        except TooLarge:
            flow.response = exchange.refuse(request_too_large(limit))
            return
        except ValueError as problem:
            flow.response = exchange.refuse(BadRequest(f"The request body cannot be decoded: {problem}").error)
            return
        call = Call(turn.resource, request.method, request.path.partition("?")[2], body)
        error = request_too_large(limit) if exchange.is_request_too_large else wrong_method(call)
        if error is None and await self._background.serve(flow, exchange, call):
            return
        if error is None:
            done = await self._memory.serve(
                turn.partition, turn.resource.id, lambda value: self._do(PageJob(call, value, Report()))
            )
            error = done.error
        if error is not None:
            flow.response = exchange.refuse(error)
        else:
            flow.response = Response.make(200, done.body, {"content-type": "application/json"})

    def take(self, flow: HTTPFlow, exchange: Exchange) -> bool:
        """Accept the body of a request; return whether it may refer to something: then await ``recall``."""
        turn, request = exchange.find(Remembered), flow.request
        if turn is None or exchange.is_request_too_large:
            return False
        encoding = request.headers.get("content-encoding", "").strip().lower()
        turn.received, turn.encoding = request.raw_content or b"", encoding
        return encoding not in ("", "identity") or mentions_kept(turn.received)

    async def recall(self, flow: HTTPFlow, exchange: Exchange) -> None:
        """Read what a request refers to; answer it with an error if that fails, for whatever reason."""
        try:
            await self._recall(flow, exchange)
        except Exception:
            # Without its context the request would be another one.
            logger.exception("toolsim failed to look up what a request refers to; please report this.")
            flow.response = exchange.refuse(UNAVAILABLE)

    async def _recall(self, flow: HTTPFlow, exchange: Exchange) -> None:
        turn, limit = exchange.find(Remembered), exchange.limits.max_request_bytes
        assert turn is not None
        job = ResolveJob(turn.encoding, turn.received, limit, Report())
        done = await self._do(job)
        turn.references, turn.in_background = done.references, done.in_background and exchange.action is None
        if done.error is None and not turn.references:
            return
        error, recalled = done.error, NOTHING
        if error is None:
            match await self._memory.recall(turn.partition, turn.references, limit):
                case ApiError() as refused:
                    error = refused
                case Recalled() as recalled:
                    done = await self._do(replace(job, recalled=recalled))
                    error = done.error
        if error is None and len(done.body) > limit:
            message = f"The request is too large with what it refers to: got {len(done.body)} bytes."
            error = ApiError(message, "invalid_request_error", "request_too_large", status=413)
        if error is not None:
            flow.response = exchange.refuse(error)
            return
        turn.body, turn.own, turn.names = done.body, done.own, done.names or ()
        turn.kept = Kept(turn.kept.id, done.echo)

    async def store_streamed(self, exchange: Exchange) -> None:
        """Store a streamed answer that is over except for its end, which then reports whether it was stored."""
        answer, turn = exchange.streamed, exchange.find(Remembered)
        names = output_names(answer.final) if answer is not None else None
        if answer is None or turn is None or names is None:
            return
        outcome: ApiError | bool = False
        try:
            outcome = await self.store(turn, exchange.limits.max_request_bytes, dump(answer.final).encode(), names)
        finally:
            answer.end = with_outcome(answer.end, outcome)
        if isinstance(outcome, ApiError):
            answer.report.error = outcome.code

    async def store_whole(self, exchange: Exchange, done: Done) -> Done:
        """Store a whole answer; return it as it is then sent."""
        turn = exchange.find(Remembered)
        if turn is None or done.names is None or done.error is not None or done.status != 200:
            return done
        outcome = await self.store(turn, exchange.limits.max_request_bytes, done.body, done.names)
        if isinstance(outcome, ApiError):
            return replace(done, error=outcome)
        return replace(done, body=with_outcome(done.body, outcome, stream=False))

    def store_function(self, exchange: Exchange) -> Callable[[Mapping[str, Any]], Awaitable[ApiError | bool]]:
        """Return a function that stores an answer of the loop's runner, given the Response object."""
        turn, limit = exchange.find(Remembered), exchange.limits.max_request_bytes
        assert turn is not None

        async def store(final: Mapping[str, Any]) -> ApiError | bool:
            names = output_names(final)
            return True if names is None else await self.store(turn, limit, dump(final).encode(), names)

        return store

    async def store(self, turn: Remembered, limit: int, answer: bytes, names: tuple[str, ...]) -> ApiError | bool:
        """Store an answer with the items of its request."""
        if turn.own is None:
            done = await self._do(ResolveJob(turn.encoding, turn.received, limit, Report(), NOTHING))
            turn.own, turn.names = done.own or b"[]", done.names or ()
        return await self._memory.keep(turn, answer, names)
