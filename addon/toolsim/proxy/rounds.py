"""Runs the rounds that the runner requests (see ``rounds/``) as internal flows.

A round passes through mitmproxy's HTTP layer like a replayed request (``mitmproxy12.internal_flow``), and its exchange
returns the events of the answer. The request is a copy of the client's own request after routing, with a different
body, so rounds are not routed or checked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, override

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow, Request

from toolsim.core.conversation import ClientRequest, ConversationLabel, label_of
from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.events import ClientEvent, Ended, Failed
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.core.tasks import spawn
from toolsim.proxy.decoding import BodyTooLarge, decoded
from toolsim.proxy.exchange import Exchange, Feature, State
from toolsim.proxy.metadata import NOTE
from toolsim.proxy.mitmproxy12.internal_flow import FlowHandler, own_flow
from toolsim.proxy.reporting import summary
from toolsim.proxy.round_flow import RoundFlow
from toolsim.proxy.stored_context import StoredContext
from toolsim.request.rewrite import prepare_for_store, should_store
from toolsim.response.retry import Retry
from toolsim.rounds.hosted_calls import HostedCalls, McpContext
from toolsim.rounds.load import Load
from toolsim.rounds.round_planner import Round, RoundLimits, may_be_hosted, may_take_rounds
from toolsim.rounds.runner import TOKEN, Ask, Refused, RoundEvent, RoundReport, RunnerJob, StoreAnswer, Stream
from toolsim.wire.api import Api
from toolsim.wire.errors import error_body
from toolsim.wire.json_codec import dump, read_body
from toolsim.wire.json_fields import string

if TYPE_CHECKING:
    from toolsim.rounds.server import RunnerServer

MAX_BODY_BYTES = 1024 * 1024
"""Maximum decoded size, in bytes, of a request whose answer may take several rounds.

The request is parsed on the event loop, and again for each round.
"""

# Headers that are not copied to the requests of rounds, because they apply only to the client's own body, or to the
# runner.
_DROPPED = ("transfer-encoding", "content-encoding", "content-length", "expect", TOKEN)


class Rounds:
    """Passes requests to the runner, and runs the runner's rounds.

    ``keepalive`` is the addon's keepalive interval in seconds.
    """

    def __init__(self, keepalive: float) -> None:
        self.keepalive = keepalive
        self._server: RunnerServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def take(
        self,
        flow: HTTPFlow,
        exchange: Exchange,
        api: Api,
        policy: Policy,
        bounds: RoundLimits,
        mcp_context: McpContext | None = None,
        store: StoreAnswer | None = None,
    ) -> bool:
        """Pass a request to the runner if its answer may take several rounds, and return whether it was passed on.

        ``mcp_context`` contains the MCP servers that the request can use, and ``store`` stores the answer.
        """
        memory = exchange.stored_context
        try:
            body = own_body(flow.request, memory)
            mcp_context = mcp_context if mcp_context is not None and mcp_context.is_asked(body) else None
            document = read_body(body) if mcp_context is not None or policy.needs_rounds else None
            document = api.expand_opaque_items(document) if document is not None else None
            if document is None or not (mcp_context is not None or api.uses_tools(document)):
                return False
            policy = policy.for_model(string(document.get("model")))
            request = api.read(document)
            request, document, body = stored_by_us(request, document, body, memory)
        except BodyTooLarge:
            # The body is too large to be parsed here. The job that rewrites the request determines whether the request
            # would have taken several rounds.
            exchange.marks_of_rounds = mcp_context.marks if mcp_context is not None else ()
            return False
        except (BadRequest, ValueError):
            # The invalid request is not reported here. The job that rewrites the request reports it.
            return False
        if mcp_context is not None and not (
            may_be_hosted(request, policy, bounds) and mcp_context.serves(document, policy, api)
        ):
            mcp_context = None
        if mcp_context is None and not may_take_rounds(request, policy):
            return False
        report = Report(client=api.name)
        calls = HostedCalls(mcp_context, api, document, policy, report, flow.id) if mcp_context is not None else None
        ask, store = self.asking(flow, exchange.owner, body, document), store if request.form.id else None
        job = RunnerJob(api, document, request.form, policy, ask, bounds, report, store, calls)
        self._hand_over(flow, exchange, report, label_of(request.items), job)
        return True

    def asking(
        self, flow: HTTPFlow, owner: str, body: bytes, document: Mapping[str, Any], request: Request | None = None
    ) -> Ask:
        """Return a function that runs the rounds of a request.

        ``owner`` is the owner of the request (see ``Exchange``). ``body`` contains the bytes of the request's body, and
        ``document`` is the parsed body. ``request`` is the client's request if the flow no longer contains it.
        """
        return partial(self._ask, RoundSource(flow, body, document, request), owner)

    def show(self, flow: HTTPFlow, exchange: Exchange, stream: Stream) -> None:
        """Let the runner answer a flow with the bytes that ``stream`` yields."""
        self._hand_over(flow, exchange, Report(), None, stream)

    def _hand_over(
        self,
        flow: HTTPFlow,
        exchange: Exchange,
        report: Report,
        topic: ConversationLabel | None,
        job: RunnerJob | Stream,
    ) -> None:
        """Let the runner answer a flow. The runner's answer is sent to the client unchanged."""
        exchange.report = report
        exchange.enter(State.DELEGATED)
        exchange.topic = topic
        exchange.attach(Delegation(flow, self._serve(), job))

    def end(self, error: ApiError) -> None:
        """Send an error to end all answers that the runner is creating."""
        if self._server is not None:
            self._server.end(error)

    async def stop(self) -> None:
        """Stop the runner's server if it is running."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    def _serve(self) -> RunnerServer:
        if self._server is None:
            # The server is imported on demand, because importing tornado's server takes as long as importing all of
            # toolsim.
            from toolsim.rounds.server import RunnerServer

            server = RunnerServer(self.keepalive)
            server.start()
            self._server = server
        return self._server

    async def _ask(self, origin: RoundSource, owner: str, round_: Round) -> AsyncGenerator[RoundEvent]:
        """Run one round and yield its events. If the generator is closed early, abort the round."""
        arrived: asyncio.Queue[ClientEvent | Retry | asyncio.Task[None]] = asyncio.Queue()
        load = Load()

        def listen(events: Sequence[ClientEvent], retry: Retry | None) -> None:
            for event in events if retry is None else (*events[:-1], retry):
                arrived.put_nowait(event)
                load.add(event)
            if load.is_full:
                handler.reading.clear()

        flow = origin.flow(round_)
        report = Report(round=round_.number, part_of=origin.id)
        asked = _ASKED[flow.id] = RoundFlow(
            round_.retries_allowed,
            round_.partial_call,
            round_.hosted,
            report,
            round_.policy,
            listen,
            round_.is_side_request,
        )
        try:
            handler = FlowHandler(flow, ctx.options, "round", owner)
            task = spawn(handler.run(), self._tasks)
        except Exception:
            del _ASKED[flow.id]
            raise
        # Both callbacks are standard library functions that cannot fail, because nothing would handle an exception.
        task.add_done_callback(partial(_ASKED.pop, flow.id))
        task.add_done_callback(arrived.put_nowait)
        is_over = False
        try:
            while not isinstance(event := await arrived.get(), asyncio.Task):
                load.remove()
                if arrived.empty():
                    handler.reading.set()
                if isinstance(event, Ended | Failed | Retry):
                    # The round's task continues after this generator has ended, for example to close its connection.
                    is_over = True
                    yield RoundReport(asked.report)
                yield event
                if is_over:
                    return
            is_over = True
            yield RoundReport(asked.report)
            yield _refused(flow)
        finally:
            # Reading might be paused, because the events were consumed too slowly. It is resumed, so that the round can
            # disconnect.
            handler.reading.set()
            if not is_over:
                await handler.leave()


def own_body(request: Request, memory: StoredContext | None) -> bytes:
    """Return the body of a client's request, with stored data in place of the request's references.

    Raises BodyTooLarge if the body exceeds the limit for requests that take several rounds, and ValueError if it cannot
    be decoded.
    """
    if memory is not None and memory.body is not None:
        return memory.body
    return decoded(request.raw_content or b"", request.headers.get("content-encoding", ""), MAX_BODY_BYTES)


def stored_by_us(
    request: ClientRequest, document: dict[str, Any], body: bytes, memory: StoredContext | None
) -> tuple[ClientRequest, dict[str, Any], bytes]:
    """Return the request, document and body to use for the rounds of an answer.

    If toolsim stores the answer, they are changed so that the backend does not store the answers to the rounds.
    """
    if memory is None or not should_store(document, memory.stored_as):
        return request, document, body
    request = prepare_for_store(request, memory.stored_as)
    document = dict(request.body)
    return request, document, dump(document).encode()


class Delegation(Feature):
    """A feature that redirects a client's flow to the runner.

    The runner answers the flow in rounds, each with a separate exchange.
    """

    def __init__(self, flow: HTTPFlow, server: RunnerServer, job: RunnerJob | Stream) -> None:
        request = flow.request
        self._server = server
        self._target = request.scheme, request.host, request.port, request.headers.copy()
        self._token = server.admit(job)
        request.scheme, request.host, request.port = "http", "127.0.0.1", server.port
        request.headers[TOKEN] = self._token

    @override
    def on_response_start(self, exchange: Exchange, flow: HTTPFlow) -> bool:
        response = flow.response
        assert response is not None
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.headers.update(summary.headers(exchange.report))
        exchange.pass_on(response, recorded=True)
        return True

    @override
    def on_close(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        """Store the answer in the flow, and restore the flow's original target for inspection and replays."""
        self._server.forget(self._token)
        if flow is not None:
            request = flow.request
            request.scheme, request.host, request.port, request.headers = self._target
            exchange.recorder.store_in(flow)


_ASKED: dict[str, RoundFlow] = {}
"""The rounds in progress, by flow ID. A client cannot add an entry, regardless of the headers that it sends."""


def round_of(flow: HTTPFlow) -> RoundFlow | None:
    """Return the round that a flow represents, or None for a client's own request."""
    if flow.id in _ASKED:
        return _ASKED[flow.id]
    note: Mapping[str, Any] | None = flow.metadata.get(NOTE, {}).get("round")
    if note is None or flow.live:
        return None
    report = Report(round=note["number"], part_of=note["of"])
    hosted, is_aside = frozenset(note.get("hosted", ())), note.get("is_aside") is True
    return RoundFlow(frozenset(note["asks"]), note["begun"], hosted, report, is_side_request=is_aside)


class RoundSource:
    """Creates the flows of rounds from a client's routed request and from the request's decoded and parsed body."""

    def __init__(
        self, flow: HTTPFlow, body: bytes, document: Mapping[str, Any], request: Request | None = None
    ) -> None:
        self._document = document
        self.id = flow.id
        self._client = flow.client_conn
        self._request: Request = (request or flow.request).copy()
        self._body = body

    def flow(self, round_: Round) -> HTTPFlow:
        """Return the flow of a round.

        If the round repeats the client's request, the body is copied byte for byte.
        """
        request: Request = self._request.copy()
        for name in _DROPPED:
            request.headers.pop(name, None)
        request.content = self._body if round_.body is self._document else dump(round_.body).encode()
        return own_flow(self._client, request)


def _refused(flow: HTTPFlow) -> Refused:
    """Return the error of a round that ended without an answer."""
    response = flow.response
    if flow.error is None and response is not None and response.raw_content is not None:
        kept = ("content-type", "retry-after", "www-authenticate")
        headers = {name: response.headers[name] for name in kept if name in response.headers}
        return Refused(response.status_code, headers, response.get_content(strict=False) or b"")
    from toolsim.proxy.reporting.connect_errors import explain

    why = explain(flow.error.msg) if flow.error is not None else "it was too long to store"
    error = ApiError(f"The backend did not answer: {why}", code="backend_unavailable", status=502)
    return Refused(502, {"content-type": "application/json"}, error_body(error))
