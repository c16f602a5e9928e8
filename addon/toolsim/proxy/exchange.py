"""An exchange in progress, which consists of one request and its answer.

    request_job ──▶ take_request ──▶ begin (the backend's headers) ──┬─▶ streamed:      a ``StreamedAnswer``
                                                                     ├─▶ non-streamed:  answer_job ──▶ take_answer
                                                                     └─▶ passed:        the backend's bytes, unchanged

``jobs.run`` runs each job, in this process or in a worker process.

``State`` defines the states of the client's answer, and ``_NEXT`` their transitions. A stream that ends before the
backend's answer does is *cut* (``streamed.py``); ``mitmproxy12.exchange_stream`` then stops the backend.

While an answer is in progress, mitmproxy's stream has to check its timeouts at the times that ``timeouts`` determines.
It calls ``StreamedAnswer.tick`` or, if there is no ``StreamedAnswer`` yet, ``overdue``.

Optional concerns (counts, resending, reports, traces, …) are attached to an exchange as objects of the class
``Feature``. The exchange calls them without knowing their subclasses. Data that other code needs is stored in fields of
the exchange. Both classes are in this module because each is part of the other's interface.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from enum import Enum

from mitmproxy.connection import Client
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.net.http import status_codes

from toolsim.core.conversation import ConversationLabel
from toolsim.core.errors import ApiError
from toolsim.core.plan import Plan
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.proxy import head
from toolsim.proxy.backend_registry import NO_ROOT, Backend
from toolsim.proxy.cors import add_cors
from toolsim.proxy.decoding import decoded
from toolsim.proxy.jobs import AnswerJob, AnswerResult, JobResult, RequestJob, RequestResult, request_too_large
from toolsim.proxy.metadata import SENT
from toolsim.proxy.mitmproxy12 import backup
from toolsim.proxy.options.settings import Limits
from toolsim.proxy.recorder import BodyRecorder
from toolsim.proxy.replay import ReplayedRequest
from toolsim.proxy.round_flow import RoundFlow
from toolsim.proxy.stored_context import StoredContext
from toolsim.proxy.streamed import StreamedAnswer
from toolsim.proxy.timeouts import Timeouts
from toolsim.proxy.user_limits import UserTurn
from toolsim.request.estimate import estimated_usage
from toolsim.request.rewrite import Rewritten
from toolsim.response.rewrite import EVENT_STREAM, JSON, Listener
from toolsim.response.verdict import ANSWER_MISMATCH
from toolsim.rounds.hosted_calls import McpContext
from toolsim.wire.apis import APIS, api_named
from toolsim.wire.responses.operations import Action

logger = logging.getLogger(__name__)

_NOT_ENFORCED = (
    "toolsim: the backend does not enforce the requested JSON format for %s, so the prompt now requests the format "
    "instead."
)
MODE_HEADER = "x-proxy-output-mode"
# The client's headers that do not apply to the rewritten body.
_CLIENTS_OWN = (b"content-encoding", b"transfer-encoding", MODE_HEADER.encode())


Choose = Callable[["Exchange", str | None], Awaitable[None] | None]
"""A function that directs an exchange's request to the backend of a model, or answers the request with an error.

The model is "" if the request names no model, and None if its body is not a JSON object. If the result is
an awaitable, the caller has to await it.
"""


class Feature:
    """An optional part of the proxy that handles the events of an exchange. By default, the methods do nothing.

    The methods are called in the order in which they are defined, and features in the order in which they were
    attached; ``on_close`` is called in reverse order.
    """

    def on_job(self, flow: HTTPFlow, job: RequestJob) -> RequestJob:
        """Return ``job``, which rewrites the request, or a changed copy of the job."""
        return job

    def on_plan(self, plan: Plan) -> Plan:
        """Return ``plan``, the plan of a rewritten request, or a changed copy of the plan."""
        return plan

    def on_mcp(self, mcp_context: McpContext) -> McpContext:
        """Return ``mcp_context``, the context for a request's MCP calls, or a changed copy of the context."""
        return mcp_context

    def on_rewritten(self, exchange: Exchange, flow: HTTPFlow, done: RequestResult) -> None:
        """Handle the result of the job that rewrote the request.

        ``done.rewritten`` is None if the request passes through unchanged.
        """

    def on_response_start(self, exchange: Exchange, flow: HTTPFlow) -> bool:
        """Decide how to pass on an answer whose headers have arrived.

        Return whether a decision was made. If not, the next feature decides or, after the last feature, the exchange.
        """
        return False

    def on_retry(self, exchange: Exchange, flow: HTTPFlow, report: Report) -> None:
        """Handle the end of a round that is followed by another round for the same answer."""

    def on_body(self, exchange: Exchange, flow: HTTPFlow) -> bool:
        """Handle a backend's complete non-streamed answer. Return True if the answer must not be rewritten."""
        return False

    def on_body_done(self, exchange: Exchange, done: AnswerResult) -> AnswerResult:
        """Return ``done``, a rewritten non-streamed answer, or a changed copy for the client."""
        return done

    def on_headers_sent(self, exchange: Exchange, flow: HTTPFlow) -> None:
        """Handle an answer whose headers are about to be sent. Its body is complete unless the answer is streamed."""

    def on_close(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        """Handle the end of an exchange.

        ``status`` is the answer's HTTP status, or None if the client received no answer.
        """


class State(Enum):
    """The source of the client's answer."""

    OPEN = "open"
    """The source of the answer is undecided. A non-streamed answer that toolsim rewrites stays in this state."""
    STREAMED = "streamed"
    """The answer is rewritten as it arrives (``Exchange.streamed``)."""
    PASSED = "passed"
    """The backend's answer, such as an error response, passes through unchanged."""
    REFUSED = "refused"
    """The answer is toolsim's own error, for example because the request is invalid or the backend does not answer."""
    DELEGATED = "delegated"
    """The runner (``rounds/``) creates the answer. Each of its rounds has a separate exchange."""


_NEXT = {
    State.OPEN: (State.STREAMED, State.PASSED, State.REFUSED, State.DELEGATED),
    State.STREAMED: (State.PASSED, State.REFUSED),
}
"""The states that can follow each state. A state without an entry is final."""
_OURS = (*_NEXT,)


class Exchange:
    """A request and its answer. The exchange applies the request's plan to the answer, and enforces the timeouts."""

    def __init__(
        self,
        report: Report,
        *,
        client_id: str,
        owner: str = "",
        cors: Mapping[str, str],
        limits: Limits,
        backend: Backend | None = None,
    ) -> None:
        self.report = report
        """The report of the exchange so far, for the log, metrics and pages."""
        self.client_id = client_id
        """The ID of the connection on which the request arrived."""
        self.owner = owner
        """The owner of the exchange's stored data, approvals and limits."""
        self.cors = cors
        """The CORS headers for toolsim's own responses."""
        self.limits = limits
        self.backend = backend or Backend(NO_ROOT)
        self.backend_model = ""
        """The backend's name for the model, or "" if it is the same as the client's."""
        self.choose: Choose | None = None
        """A function that chooses the backend based on the model, or None once the backend has been chosen."""
        self.timeouts = Timeouts(limits)
        self.recorder = BodyRecorder()
        """Records the answer as the backend sent it and as the client received it, for people to inspect."""
        self.plan: Plan | None = None
        """The plan of a rewritten request. None until the request is rewritten, and for a request that passes through
        unchanged.
        """
        self.checked: Plan | None = None
        """The plan for checking the answer to a request that passes through unchanged, or None if no check is needed.

        It becomes the ``plan`` when the answer arrives.
        """
        self.streamed: StreamedAnswer | None = None
        """The streamed answer, or None for a non-streamed answer. It is kept after the end of the stream."""
        self.early: Response | None = None
        """The headers that were sent to the client before the backend's headers arrived, or None if none were sent."""
        self.state = State.OPEN
        self.is_request_too_large = False
        """Whether the request's body was dropped on arrival because of its size."""
        self.round: RoundFlow | None = None
        """The round to which this exchange belongs, or None for a client's own request."""
        self.marks_of_rounds: tuple[bytes, ...] | None = None
        """Byte strings whose presence in the body shows that the request needs several rounds (see ``RequestJob``).

        None unless the request is too large for several rounds.
        """
        self.topic: ConversationLabel | None = None
        """The conversation label of a request that the runner answers.

        It is stored here because no job rewrites the request.
        """
        self.stored_context: StoredContext | None = None
        """The stored data to which the request refers, and the data to store with its answer.

        None if there is no store.
        """
        self.action: Action | None = None
        """The auxiliary operation, or None if the request is not auxiliary."""
        self.replay: ReplayedRequest | None = None
        """The state that a replayed flow retains from its first run, or None for other flows."""
        self.user_turn: UserTurn | None = None
        """The turn that counts toward the limits of its user, or None for a user without limits."""
        self._problem = ""
        self._features: list[Feature] = []

    def __repr__(self) -> str:
        is_cut = self.streamed is not None and self.streamed.cut
        return f"Exchange({self.state.value}{', cut' if is_cut else ''})"

    @property
    def is_ours(self) -> bool:
        """Whether toolsim can still create or replace the client's answer."""
        return self.state in _OURS

    @property
    def is_delegated(self) -> bool:
        """Whether the runner creates the answer."""
        return self.state is State.DELEGATED

    def enter(self, state: State) -> None:
        """Change the state. Raises RuntimeError if the transition is not allowed."""
        if state not in _NEXT.get(self.state, ()):
            raise RuntimeError(f"invalid change of state: from {self.state.value!r} to {state.value!r}")
        self.state = state

    def settle(self, state: State) -> None:
        """Enter a final state, unless the current state is final."""
        if self.is_ours:
            self.enter(state)

    def attach(self, feature: Feature) -> None:
        """Add a feature."""
        self._features.append(feature)

    def find[F: Feature](self, kind: type[F]) -> F | None:
        """Return the attached feature of this class, or None if there is none."""
        return next((feature for feature in self._features if isinstance(feature, kind)), None)

    def ask_again(self, flow: HTTPFlow, report: Report, further: Feature) -> None:
        """Notify the features that this answer needs another round, and attach ``further``, which runs that round.

        ``report`` is the answer's report so far.
        """
        for feature in self._features:
            feature.on_retry(self, flow, report)
        self.attach(further)

    @property
    def _listener(self) -> Listener | None:
        return self.round.listener if self.round is not None else None

    @property
    def is_edited(self) -> bool:
        """Whether the operator edited the rewritten request. If so, it must not be rewritten again."""
        return self.replay is not None and self.replay.words is not None

    @property
    def is_turn(self) -> bool:
        """Whether the request is addressed to a model. A request for the model list is not."""
        return bool(self.report.client)

    # -- the request --

    def mcp_context(self, mcp_context: McpContext | None) -> McpContext | None:
        """Return the context in which MCP tools are called, or None if the request cannot use MCP tools."""
        if mcp_context is not None:
            for feature in self._features:
                mcp_context = feature.on_mcp(mcp_context)
        return mcp_context

    def request_job(self, flow: HTTPFlow, api_name: ApiName, policy: Policy) -> RequestJob | None:
        """Return the job that rewrites a request, or None if the request has been answered with an error."""
        request, limit = flow.request, self.limits.max_request_bytes
        if self.is_request_too_large:
            flow.response = self.refuse(request_too_large(limit))
            return None
        headers = head.by_name(request.headers)
        client = APIS[api_name]
        policy = self.backend.known_for(policy)
        first, *fallbacks = self.backend.apis_for(client, policy.backend)
        if policy.backend == "auto" and first != client.backend:
            policy = replace(policy, backend=first)
        job = RequestJob(
            api_name,
            request.path,
            policy,
            data=request.raw_content or b"",
            limit=limit,
            output_mode=headers.get(MODE_HEADER),
            refused=frozenset(self.backend.refused),
            fallbacks=tuple(fallbacks),
            encoding=headers.get("content-encoding", ""),
            report=self.report,
            owner=self.owner,
            marks_of_rounds=self.marks_of_rounds,
        )
        for feature in self._features:
            job = feature.on_job(flow, job)
        if self.round is not None:
            job = self.round.on_job(job)
        return self.stored_context.on_job(job) if self.stored_context is not None else job

    def take_request(self, flow: HTTPFlow, done: RequestResult) -> None:
        """Replace the request with its rewritten form for the backend, or answer it with an error."""
        self._take(done)
        self.checked = done.checked
        if done.rewritten is not None:
            # The flow keeps a copy of the client's own request, which mitmweb shows and ``revert`` restores.
            backup.begin(flow)
            self._send(flow, done.rewritten, done.digest)
            if self.replay is not None:
                self.replay.on_rewritten(flow)
        elif done.error is not None:
            flow.response = self.refuse(done.error)
        client = api_named(self.report.client)
        if done.error is None and client is not None:
            backend = APIS[self.plan.backend] if self.plan is not None else client
            self.report.dropped += head.for_backend(flow.request.headers, client, backend)
        for feature in self._features:
            feature.on_rewritten(self, flow, done)
        if self.stored_context is not None:
            self.stored_context.on_rewritten(done)

    def _send(self, flow: HTTPFlow, rewritten: Rewritten, digest: str) -> None:
        plan = rewritten.plan
        for feature in self._features:
            plan = feature.on_plan(plan)
        self.plan = self.round.on_plan(plan) if self.round is not None else plan
        if self.streamed is not None:
            self.streamed.replan(self.plan)
        request, body = flow.request, rewritten.body
        request.path, request.raw_content = rewritten.path, body
        flow.metadata[SENT] = digest
        given = {"accept-encoding": "identity", "content-length": str(len(body))}
        head.change(request.headers, without=_CLIENTS_OWN, given=given)
        if rewritten.answer:
            flow.response = Response.make(200, rewritten.answer, {"content-type": JSON})

    def _take(self, done: JobResult) -> None:
        if done.report is not self.report:
            # A worker process returns a copy of the report, to which it has added its findings.
            self.report.replace_with(done.report)

    # -- the answer --

    def begin(self, flow: HTTPFlow) -> None:
        """Decide, based on the backend's headers, whether to pass on, stream, or buffer and rewrite the answer."""
        response = flow.response
        assert response is not None
        is_error = not 200 <= response.status_code < 300
        if any(feature.on_response_start(self, flow) for feature in self._features):
            return
        if self.early is not None and self.plan is not None:
            self._follow(flow, response)
        elif not self.is_turn and not is_error and self.backend.is_named and response.raw_content is None:
            # A model list has to be read completely, because context window sizes are added to it.
            response.stream = False
        elif is_error and self._may_rewrite_error(response):
            # The error is not streamed, because only a complete error can be rewritten.
            response.stream = False
        elif self.checked is not None and not is_error and response.raw_content is None:
            self._check(flow, self.checked)
        elif self.plan is None or is_error:
            self.pass_on(response, recorded=self.plan is not None or response.status_code >= 400)
        elif self.plan.stream and head.is_event_stream(response):
            self.recorder.begin(response)
            # The response is copied before it is changed, because mitmproxy still needs the backend's headers to manage
            # the connection.
            flow.response = backup.copied(response)
            self._stream(flow, self.plan)
        else:
            response.stream = False

    def _may_rewrite_error(self, response: Response) -> bool:
        """Return whether an error has to be read completely.

        This is the case if it might be in another API's format, or might lack the code for a prompt that is too long.
        """
        plan = self.plan
        is_about_turn = plan is not None or (self.is_turn and self.backend.is_named)
        is_arriving = response.status_code >= 400 and response.raw_content is None
        is_translated = plan is not None and plan.client != plan.backend and not APIS[plan.client].has_own_errors
        return is_translated or (is_about_turn and is_arriving)

    def _check(self, flow: HTTPFlow, plan: Plan) -> None:
        """Check the answer to an unchanged request.

        The answer passes through unchanged unless it violates the format that the client requested.
        """
        response = flow.response
        assert response is not None
        if plan.stream != head.is_event_stream(response):
            self.pass_on(response, recorded=False)
            return
        self.plan = plan
        backup.begin(flow)
        if not plan.stream:
            response.stream = False
            return
        self.recorder.begin(response)
        flow.response = backup.copied(response)
        self._stream(flow, plan)

    def open_early(self, flow: HTTPFlow) -> Response | None:
        """Start the answer of a stream whose client has waited too long, and return the answer's headers.

        Return None if the client has not waited long enough. The answer to a round is never started early, because no
        client waits for it, and because an error in the round can still change the status of the client's answer.
        """
        plan = self.plan
        if plan is None or not plan.stream or self.report.part_of or self.state is not State.OPEN:
            return None
        if not self.timeouts.is_quiet:
            return None
        response = Response.make(200, headers={"content-type": JSON})
        response.data.content = None
        flow.response = response
        self._stream(flow, plan)
        self.early = flow.response
        add_cors(self.early.headers, self.cors)
        return self.early

    def _follow(self, flow: HTTPFlow, response: Response) -> None:
        """Use the backend's answer, streamed or not, to continue an answer that was started early."""
        if 200 <= response.status_code < 300 and head.is_event_stream(response):
            self._continue(flow, response)
        else:
            response.stream = False

    def _continue(self, flow: HTTPFlow, response: Response) -> None:
        """Replace the backend's headers in the flow with the headers that were already sent.

        The streamed answer then reads the backend's body.
        """
        assert self.early is not None
        self.recorder.begin(response)
        flow.response = backup.copied(self.early)
        flow.response.stream = self.early.stream

    def follow_whole(self, flow: HTTPFlow) -> bytes | None:
        """Return the body of a backend's non-streamed answer, for a stream that was started early.

        If the answer is an error or cannot be decoded, return None. In this case, the flow's response is the error.
        """
        response = flow.response
        assert response is not None
        if not 200 <= response.status_code < 300 or self.streamed is None:
            return None
        kind, encoding = response.headers.get("content-type", JSON), response.headers.get("content-encoding", "")
        try:
            body = decoded(response.raw_content or b"", encoding, self.limits.max_answer_bytes)
        except ValueError:
            error = ApiError("The backend's answer cannot be decoded.", code="backend_bad_answer", status=502)
            flow.response = self.refuse(error)
            return None
        self.streamed.follow(kind)
        self._continue(flow, response)
        return body

    def pass_on(self, response: Response, *, recorded: bool) -> None:
        """Pass an answer through unchanged. If ``recorded`` is true, record it so that people can inspect it later."""
        self.settle(State.PASSED)
        # If the body is already present, the response was loaded from a file or created by another addon.
        is_present = response.raw_content is not None
        response.stream = not is_present
        if recorded and not is_present:
            self.recorder.begin(backup.copied(response))
            response.stream = self.recorder.passing

    def _stream(self, flow: HTTPFlow, plan: Plan) -> None:
        """Start the streamed answer. Its headers are already in the flow."""
        response = flow.response
        assert response is not None
        self.enter(State.STREAMED)
        self.streamed = StreamedAnswer(
            plan,
            self.report,
            limits=self.limits,
            timeouts=self.timeouts,
            recorder=self.recorder,
            listener=self._listener,
            estimate=lambda written: estimated_usage(flow.request.raw_content or b"", written),
        )
        # A response header states whether the token counts are an estimate. But only the end of the answer will show
        # whether the backend sends token counts, so the header is based on the backend's earlier answers.
        has_usage = plan.form.include_usage and not plan.is_verbatim
        self.report.usage_estimated = has_usage and plan.form.model in self.backend.without_usage
        kind = response.headers.get("content-type", EVENT_STREAM) if plan.is_verbatim else EVENT_STREAM
        head.set_head(response, kind)
        if flow.request.http_version == "HTTP/1.1":
            response.headers["transfer-encoding"] = "chunked"
        response.stream = self.streamed.feed
        if not plan.is_verbatim:
            for feature in self._features:
                feature.on_headers_sent(self, flow)

    def answer_job(self, flow: HTTPFlow) -> AnswerJob | None:
        """Return the job that rewrites an answer, or None if no rewriting is needed."""
        response = flow.response
        assert response is not None
        if self.state is not State.OPEN:
            return None
        if any(feature.on_body(self, flow) for feature in self._features):
            return None
        if not 200 <= response.status_code < 300:
            self.settle(State.PASSED)
            self.recorder.whole(response)
            client = api_named(self.plan.client if self.plan is not None else self.report.client)
            if client is not None:
                head.write_error(response, client, APIS[self.plan.backend] if self.plan is not None else client)
            return None
        if self.plan is None:
            return None
        kind, encoding = response.headers.get("content-type", JSON), response.headers.get("content-encoding", "")
        return AnswerJob(
            self.plan,
            kind,
            with_events=self._listener is not None,
            sent=flow.request.raw_content or b"",
            data=response.raw_content or b"",
            limit=self.limits.max_answer_bytes,
            encoding=encoding,
            report=self.report,
            owner=self.owner,
        )

    def take_answer(self, flow: HTTPFlow, done: AnswerResult) -> None:
        """Replace the backend's non-streamed answer with the rewritten answer."""
        for feature in self._features:
            done = feature.on_body_done(self, done)
        self._take(done)
        if self._listener is not None and done.error is None:
            self._listener(done.events, done.retry)
        response = flow.response
        assert response is not None
        if done.error is not None:
            flow.response = self.refuse(done.error)
            return
        self.recorder.whole(response)
        if done.passes:
            self.settle(State.PASSED)
            return
        head.set_head(response, done.content_type)
        response.status_code = done.status
        response.reason = status_codes.RESPONSES.get(response.status_code, "")
        response.content = done.body
        for feature in self._features:
            feature.on_headers_sent(self, flow)

    def overdue(self) -> Response | None:
        """Return the error response for an overdue answer, or None if the answer is not overdue."""
        if not self.timeouts.is_overdue:
            return None
        return self.refuse(self.timeouts.overdue())

    def close(self, flow: HTTPFlow | None, status: int | None) -> None:
        """Finish an exchange that has ended. ``flow`` is None if the flow no longer exists.

        The flow releases its reference to the answer. Otherwise, about 30 MB of finished answers would accumulate until
        the next full garbage collection, because mitmproxy's streams are reference cycles.
        """
        if self.user_turn is not None:
            self.user_turn.leave()
        if flow is not None and flow.response is not None and callable(flow.response.stream):
            flow.response.stream = True
        if status is None and (ended_by := self.timeouts.ended_by) is not None:
            self.report.error = self.report.error or ended_by.code
        if self.is_turn and self.report.error in ("backend_unavailable", "backend_timeout"):
            self.backend.mark_stale()
        for code in {*self.report.warnings}:
            self.note_mismatch(code)
        if self.plan is not None and self.report.tokens and not self.report.tool_cutoff:
            learn = (
                self.backend.without_usage.add if self.report.usage_estimated else self.backend.without_usage.discard
            )
            learn(self.plan.form.model)
        problems: list[Exception] = []
        for feature in reversed(self._features):
            try:
                feature.on_close(self, flow, status)
            # The exception is raised later, because the other features have to be closed first.
            except Exception as problem:
                problems.append(problem)
        if problems:
            raise problems[0]

    def note_mismatch(self, code: str) -> None:
        """Remember that the backend does not enforce JSON formats, if the violation ``code`` shows this."""
        plan = self.plan
        if plan is None or "format" not in plan.attempts or code != ANSWER_MISMATCH:
            return
        if (plan.backend_model, "format") not in self.backend.refused:
            logger.warning(_NOT_ENFORCED, plan.backend_model or "this model")
            self.backend.refuses(plan.backend_model, "format")

    # -- errors --

    def problem(self) -> str:
        """Return the message of an HTTP error from toolsim or the backend, or "" if there was no error."""
        return self._problem or head.error_message(self.recorder.received.content())

    def refuse(self, error: ApiError) -> Response:
        """Record an error as the answer to the request, and return the error response."""
        self.settle(State.REFUSED)
        self._problem = error.message
        self.report.error = error.code or error.type
        return head.error_response(error, self.cors)


class Exchanges:
    """All exchanges in progress, by flow.

    An exchange begins when the request's headers have arrived, and ends with its answer.
    """

    def __init__(self) -> None:
        self.ended_by: ApiError | None = None
        """The error that ends all exchanges once the proxy is being stopped. None before that."""
        self.passing: dict[str, str] = {}
        """The client IDs, by flow ID, of the reverse-mode flows that toolsim passes through without reading them."""
        self._open: dict[str, Exchange] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, flow: HTTPFlow, exchange: Exchange) -> None:
        """Add an exchange for a flow."""
        self._open[flow.id] = exchange
        if self.ended_by is not None:
            exchange.timeouts.end(self.ended_by)

    def of(self, flow: HTTPFlow) -> Exchange | None:
        """Return the exchange of a flow, or None if toolsim does not handle the flow."""
        return self._open.get(flow.id)

    def close(self, flow: HTTPFlow, status: int | None) -> bool:
        """End the exchange of a flow, and return True. Return False if the flow has no exchange.

        ``status`` is the answer's HTTP status, or None if the client received no answer.
        """
        if (exchange := self._open.pop(flow.id, None)) is not None:
            exchange.close(flow, status)
        return exchange is not None

    def drop(self, flow: HTTPFlow) -> None:
        """End the exchange of a flow that has ended, unless a hook has already ended the exchange."""
        self.passing.pop(flow.id, None)
        self.close(flow, flow.response.status_code if flow.response is not None and flow.error is None else None)

    def close_of(self, client: Client) -> None:
        """End all exchanges of a client that has disconnected, except those that a hook has already ended."""
        for flow_id, exchange in list(self._open.items()):
            if exchange.client_id == client.id:
                del self._open[flow_id]
                exchange.close(None, None)
        for flow_id in [flow_id for flow_id, owner in self.passing.items() if owner == client.id]:
            del self.passing[flow_id]

    def end(self, error: ApiError) -> None:
        """Make all current and future exchanges end with this error as soon as they check their timers."""
        self.ended_by = error
        for exchange in self._open.values():
            exchange.timeouts.end(error)

    def answers(self) -> int:
        """Return the number of exchanges for which clients are waiting. The rounds of an answer are not counted."""
        return sum(not exchange.report.part_of for exchange in self._open.values())

    def turns(self) -> int:
        """Return the number of exchanges that are turns."""
        return sum(exchange.is_turn for exchange in self._open.values())

    def forget(self) -> None:
        """Drop all exchanges without ending them."""
        self._open.clear()
        self.ended_by = None
