"""Implements the HTTP endpoints that start background answers and serve requests about existing answers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from mitmproxy.http import HTTPFlow, Response

from toolsim.background.background_store import BackgroundStore
from toolsim.background.event_log import EventLog
from toolsim.background.frames import (
    DELETED,
    DONE,
    NO_END,
    NO_EVENTS,
    NOT_STREAMED,
    cursor,
    error_frame,
    frames_after,
    has_end,
    wants_stream,
)
from toolsim.background.remote_follower import follow_stored
from toolsim.background.request import BackgroundRequest, job_of, read_request
from toolsim.background.runs import BackgroundRun, Runs
from toolsim.background.slots import Slots
from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy.background import Parts
from toolsim.proxy.exchange import MODE_HEADER, Exchange
from toolsim.proxy.jobs import PageJob, PluginJob, RequestJob
from toolsim.proxy.metadata import COMMENT
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.reporting.metrics import Family
from toolsim.proxy.response_store import UNAVAILABLE
from toolsim.stores.record import MAX_TRIES, RecordTooLarge, StoreError
from toolsim.stores.url import BACKGROUND
from toolsim.wire.api import Api
from toolsim.wire.json_codec import dump
from toolsim.wire.responses.background import CANCELLED, is_streamed, value_of
from toolsim.wire.responses.resources import ResourceCall
from toolsim.wire.responses.writer import ResponsesWriter

_JSON = {"content-type": "application/json"}


class BackgroundAnswers:
    """Starts background answers and serves requests about them."""

    def __init__(self, parts: Parts) -> None:
        self._memory = parts.memory
        self._servers = parts.servers
        self._background_store = BackgroundStore(parts.memory)
        self._rounds = parts.rounds
        self._do = parts.do
        self._runs = Runs(self._background_store, parts.rounds.keepalive, parts.finished)
        self._places = Slots(self._runs.partitions)

    def families(self) -> list[Family]:
        """Return the metrics of background answers."""
        return self._runs.families()

    def count(self) -> int:
        """Return the number of background answers in progress on this proxy."""
        return len(self._runs)

    async def stop(self) -> None:
        """End all answers that are in progress on this proxy."""
        await self._runs.stop()

    async def begin(self, flow: HTTPFlow, exchange: Exchange, api: Api, policy: Policy, settings: Settings) -> None:
        """Start a background answer.

        The client receives the Response object with the status "queued", or a stream of the answer's events, or an
        error.
        """
        context, store = exchange.stored_context, settings.store
        assert context is not None
        partition, most = context.partition, store.background if store is not None else BACKGROUND
        if (refusal := self._places.refusal(partition, most)) is not None:
            flow.response = exchange.refuse(refusal)
            return
        with self._places.starting(partition):
            try:
                prepared = await self._prepare(flow, exchange, api, policy, settings)
            except RecordTooLarge as problem:
                prepared = ApiError(f"The request cannot be stored: {problem}.", "invalid_request_error", status=413)
            except StoreError:
                prepared = UNAVAILABLE
        if isinstance(prepared, ApiError):
            flow.response = exchange.refuse(prepared)
            return
        run, shown = prepared
        run.job.report.user = exchange.report.user
        if (turn := exchange.user_turn) is not None:
            turn.take_longer()
            run.turn = turn
        self._runs.start(run)
        # The answer is logged and counted when it ends. The report of the current request therefore stays empty.
        exchange.report = Report()
        if not flow.comment and run.job.hosted is None:  # Keep the list of pending approvals.
            flow.comment = flow.metadata[COMMENT] = f"in the background: {run.lease.id}"
        if run.log is not None:
            self._rounds.show(flow, exchange, partial(run.log.follow, -1))
        else:
            flow.response = Response.make(200, shown, _JSON)

    async def _prepare(
        self, flow: HTTPFlow, exchange: Exchange, api: Api, policy: Policy, settings: Settings
    ) -> tuple[BackgroundRun, bytes] | ApiError:
        """Store a queued answer. Return the answer and the Response object for the client, or an error."""
        context, limit = exchange.stored_context, exchange.limits.max_request_bytes
        request = flow.request
        assert context is not None
        data, encoding = context.received, context.encoding
        if context.body is not None:
            data, encoding = context.body, ""
        owner = context.partition
        reading = partial(read_request, api.name, context.stored_as)
        done = await self._do(PluginJob(reading, data=data, limit=limit, encoding=encoding, owner=owner))
        if done.error is not None:
            return done.error
        assert isinstance(done.read, BackgroundRequest)
        made = done.read
        mcp_context = exchange.mcp_context(self._servers.context(settings.origins, flow, exchange.owner))
        answer = job_of(made, flow, owner, api, policy, settings.bounds, mcp_context, self._rounds)
        # The request is rewritten here only to find errors early. Otherwise, they would be reported as a failed answer.
        # Tools that run in the proxy are removed first, because the backend does not receive them.
        body = made.body if answer.hosted is None else dump(answer.hosted.for_backend()).encode()
        mode, once = request.headers.get(MODE_HEADER), replace(policy, catalog_budget=0)
        job = RequestJob(api.name, request.path, once, mode, data=body, limit=limit, owner=owner, is_round=True)
        if (error := (await self._do(job)).error) is not None:
            return error
        own, names = (context.own, context.names) if context.own is not None else (made.own, made.names)
        writer, references = ResponsesWriter(made.form), context.references
        response, frames = writer.queue()
        shown = dump(response).encode()
        value = value_of(shown, own, stream=made.form.stream)
        lease = await self._background_store.open(
            context.partition, context.stored_as.id, value, references.previous, names
        )
        log = EventLog() if made.form.stream else None
        run = BackgroundRun(answer, lease, writer, log, own, names, references.previous, references.conversation)
        run.publish(frames)
        return run, shown

    async def serve(self, flow: HTTPFlow, exchange: Exchange, call: ResourceCall) -> bool:
        """Handle a request about an existing answer. Return False if there is no background answer with this ID."""
        context = exchange.stored_context
        assert context is not None
        if call.resource.kind not in ("response", "cancel"):
            return False
        reply: bytes | ApiError | bool
        try:
            if call.method == "GET" and wants_stream(call.query):
                reply = await self._streamed(flow, exchange, context.partition, call)
            else:
                reply = await self._current(context.partition, call)
        except BadRequest as bad:
            reply = bad.error
        except StoreError:
            reply = UNAVAILABLE
        if isinstance(reply, ApiError):
            flow.response = exchange.refuse(reply)
        elif isinstance(reply, bytes):
            flow.response = Response.make(200, reply, _JSON)
        return reply is not False

    async def _current(self, partition: str, call: ResourceCall) -> bytes | ApiError | Literal[False]:
        """Retrieve, cancel or delete an answer.

        Return the body of the HTTP response, an error, or False if the answer does not exist.
        """
        id = call.resource.id
        for _ in range(MAX_TRIES):
            entry = await self._background_store.read(partition, id)
            if entry is None:
                return False
            job = PageJob(replace(call, state=entry.state), entry.value, data=b"", limit=0, owner=partition)
            done = await self._do(job)
            if done.error is not None or done.change is None:
                return done.error or done.body
            _, value = done.change
            if not value:
                await self._background_store.delete(partition, id)
            elif not await self._background_store.finalize(entry, value):
                continue
            if (run := self._runs.find(partition, id)) is not None:
                await self._runs.end(run, CANCELLED if value else DELETED)
            return done.body
        raise StoreError(f"other requests kept changing {id}")

    async def _streamed(
        self, flow: HTTPFlow, exchange: Exchange, partition: str, call: ResourceCall
    ) -> ApiError | bool:
        """Stream an answer's events as the response to a request, and return True.

        Return an error if the events are unavailable, or False if the answer does not exist.
        """
        id, run = call.resource.id, self._runs.find(partition, call.resource.id)
        entry = await self._background_store.read(partition, id)
        if entry is None:
            return False
        after = cursor(call.query)
        if not is_streamed(entry.value):
            return NOT_STREAMED
        if run is not None and run.log is not None and run.log.has(after):
            self._rounds.show(flow, exchange, partial(run.log.follow, after))
            return True
        if run is None and entry.state:
            self._rounds.show(flow, exchange, lambda: follow_stored(self._background_store, partition, id, after))
            return True
        stored = await self._background_store.events(partition, id)
        frames = frames_after(stored, after) if stored is not None else None
        if stored is None or frames is None:
            return NO_EVENTS
        end = DONE if has_end(stored) else error_frame(NO_END, after + len(frames) + 1)
        flow.response = Response.make(200, b"".join(frames) + end, {"content-type": "text/event-stream; charset=utf-8"})
        return True
