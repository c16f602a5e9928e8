"""One request and its answer, in flight.

    request_job ──▶ take_request ──▶ begin (the backend's headers) ──┬─▶ stream:  a ``StreamedAnswer``
                                                                     ├─▶ whole:   answer_job ──▶ take_answer
                                                                     └─▶ pass:    the backend's bytes, as they are

``jobs.run`` does each job, here or in a ``Worker``.

Five outcomes, each of which ends the client's answer properly:

1. *streamed*: ``streamed`` has sent the client everything (``streamed.py``).
2. *whole*: the answer was read to its end and rewritten in one piece.
3. *passed*: not ours to rewrite, such as a backend's error response. From then on ``ours`` is false.
4. *refused*: our own error replaces an answer that never began: a bad request, a backend that cannot be
   reached or stays silent, a body that cannot be decoded. ``ours`` is false here too.
5. *cut*: a stream ended before the backend did; ``EndableStream`` then stops the backend.

The ``clocks`` tell ``EndableStream`` when to call ``StreamedAnswer.tick`` or, before there is one, ``overdue``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from mitmproxy.http import HTTPFlow, Response
from mitmproxy.net.http import status_codes

from toolsimlib.errors import ApiError
from toolsimlib.pages.topic import Topic
from toolsimlib.plan import Dialect, Plan, Policy
from toolsimlib.proxy import head, resend
from toolsimlib.proxy.attempt import Attempt, known_of
from toolsimlib.proxy.clocks import Clocks
from toolsimlib.proxy.jobs import AnswerJob, Done, RequestJob, request_too_large
from toolsimlib.proxy.keep import BodyRecorder
from toolsimlib.proxy.known import Backend, Root
from toolsimlib.proxy.memory import Turn
from toolsimlib.proxy.mitmproxy12 import backup
from toolsimlib.proxy.notes import NOTE, policy_as_dict
from toolsimlib.proxy.options.settings import Limits
from toolsimlib.proxy.part import Part
from toolsimlib.proxy.reporting import summary
from toolsimlib.proxy.rounds import HandedOver
from toolsimlib.proxy.streamed import StreamedAnswer
from toolsimlib.report import Report
from toolsimlib.request.rewrite import Rewritten
from toolsimlib.response.rewrite import EVENT_STREAM, JSON
from toolsimlib.wire.responses.actions import Action, turn_path

logger = logging.getLogger(__name__)

MODE_HEADER = "x-proxy-output-mode"
# They do not apply to the body that we send.
_CLIENTS_OWN = (b"content-encoding", b"transfer-encoding", MODE_HEADER.encode())

_STREAM_TYPE = "text/event-stream"


class Exchange:
    """Carries a plan from the request to the answer, and watches the time in between.

    ``plan``: None until the request has been read, and for good if it is not ours and passes unchanged; we then answer
    only if the backend never does. ``cors``: headers for our own answers. ``is_request_too_large``: its body was
    dropped as it arrived. ``resent``: what a replayed flow holds of its first run. ``topic``: what a rewritten request
    is about; ``place``: which turn of which conversation it is, in words. ``backend``: what we know about it;
    ``may_ask``: we may ask it what it is. ``part``: which round of an answer this is.
    ``handed_over``: the runner answers, in rounds that are separate exchanges. ``memory``: what is remembered for
    this request. ``action``: what the client wants in place of a turn; ``prepared``: for its answer. ``streamed``: the
    answer, if it is streamed; for any other, ``holder`` is the answer under which the backend holds the catalogue.
    """

    def __init__(
        self,
        report: Report,
        *,
        client_id: str,
        cors: Mapping[str, str],
        limits: Limits,
        backend: Backend | None = None,
        part: Part | None = None,
    ) -> None:
        self.plan: Plan | None = None
        self.report = report
        self.part = part
        self.handed_over: HandedOver | None = None
        self.resent: resend.Resent | None = None
        self.topic: Topic | None = None
        self.place = ""
        self.backend = backend or Backend(Root("http", "", 0))
        self._attempt: Attempt | None = None
        self.resending: RequestJob | None = None
        self.memory: Turn | None = None
        self.action: Action | None = None
        self.prepared = b""
        self.streamed: StreamedAnswer | None = None
        self.client_id = client_id
        self.ours = True
        self.recorder = BodyRecorder()
        self.cors = cors
        self.limits = limits
        self.may_ask = self.is_request_too_large = False
        self._problem = ""
        self.clocks = Clocks(limits)

    def __repr__(self) -> str:
        if not self.ours or self.streamed is None:
            return f"Exchange({'waiting' if self.ours else 'passing'})"
        return f"Exchange({'cut' if self.streamed.cut else 'answering'})"

    # -- the request --

    def request_job(self, flow: HTTPFlow, dialect: Dialect, policy: Policy) -> RequestJob | None:
        """Return the job of rewriting a request; None if it has already been answered, with an error."""
        request, limit, action = flow.request, self.limits.max_request_bytes, self.action
        if self.is_request_too_large:
            flow.response = self.refuse(request_too_large(limit))
            return None
        headers = head.by_name(request.headers)
        encoding, mode = headers.get("content-encoding", ""), headers.get(MODE_HEADER)
        body, kept = request.raw_content or b"", self.memory.kept if self.memory and not action else None
        if self.memory is not None and self.memory.body is not None:
            body, encoding = self.memory.body, ""
        known = known_of(self.backend, policy)
        job = RequestJob(
            dialect,
            turn_path(request.path) if action else request.path,
            encoding,
            body,
            limit,
            known.policy,
            mode,
            self.report,
            known.refused,
            kept=kept,
            action=action,
        )
        self._attempt = Attempt(job, policy, self.backend)
        return job

    def take_request(self, flow: HTTPFlow, done: Done) -> None:
        """Turn the request into the rewritten one for its backend, or answer it with an error."""
        self._take(done)
        if done.rewritten is None:
            self._attempt = None
            if done.error is not None:
                flow.response = self.refuse(done.error)
            return
        # The flow keeps the client's own request: mitmweb shows it, and revert restores it.
        backup.begin(flow)
        self.prepared = done.prepared
        self._send(flow, done.rewritten)
        if self.resent is not None and self.resent.words is not None:
            flow.request.content = self.resent.words
            self._attempt = None  # Rewriting the request again would lose them.

    def _send(self, flow: HTTPFlow, rewritten: Rewritten) -> None:
        self.plan = self.part.planned(rewritten.plan) if self.part is not None else rewritten.plan
        if not self.plan.attempts:
            self._attempt = None
        request, body = flow.request, rewritten.body
        request.path, request.raw_content = rewritten.path, body
        given = {"accept-encoding": "identity", "content-length": str(len(body))}
        head.change(request.headers, without=_CLIENTS_OWN, given=given)
        resend.note_sent(flow, body)

    def _take(self, done: Done) -> None:
        self.report = done.report
        if self.part is not None:
            self.part.report = done.report
        if done.crash:
            logger.error("toolsim failed to rewrite a body; please report this.\n%s", done.crash)

    def hand_over(self, handed_over: HandedOver) -> None:
        """Note that the runner answers the request: its bytes pass unchanged."""
        self.handed_over = handed_over
        self.report = handed_over.report
        self.topic = handed_over.topic
        self.ours = False

    # -- the answer --

    def begin(self, flow: HTTPFlow) -> None:
        """Decide by the backend's headers whether the answer passes, is streamed, or is rewritten when it is whole."""
        response = flow.response
        assert response is not None
        is_present = response.raw_content is not None  # made by another addon, or read from a file
        is_error = not 200 <= response.status_code < 300
        if (is_error and self._attempt is not None and not is_present) or self.action == "input_tokens":
            # It may only refuse what was attempted, or not count tokens: the body decides.
            response.stream = False
            return
        if self.plan is None or is_error:
            self.ours = False
            response.stream = not is_present
            if self.handed_over is not None and not response.headers.get("content-type", "").startswith(_STREAM_TYPE):
                response.headers.update(summary.headers(self.report))
            if (self.plan or self.handed_over or response.status_code >= 400) and not is_present:
                self.recorder.begin(backup.copied(response))
                response.stream = self.recorder.passing
            return
        headers = head.by_name(response.headers)
        content_type, encoding = headers.get("content-type", ""), headers.get("content-encoding", "identity")
        is_stream = content_type.partition(";")[0].strip().lower() == _STREAM_TYPE
        is_empty = response.status_code in head.WITHOUT_BODY
        if not (self.plan.stream and is_stream and encoding.strip().lower() == "identity") or is_present or is_empty:
            # A stream that is compressed although we asked for identity cannot be read in pieces: rewrite it whole.
            response.stream = False
            return
        self.streamed = StreamedAnswer(
            self.plan,
            self.report,
            limits=self.limits,
            clocks=self.clocks,
            recorder=self.recorder,
            memory=self.memory,
            listener=self.part.listener if self.part is not None else None,
        )
        self.recorder.begin(response)  # Change a copy: mitmproxy judges the connection by the backend's headers.
        response = flow.response = backup.copied(response)
        head.set_head(response, EVENT_STREAM)
        response.headers.update(summary.first_headers(self.report))
        if flow.request.http_version == "HTTP/1.1":
            response.headers["transfer-encoding"] = "chunked"
        response.stream = self.streamed.feed

    def may_resend(self, flow: HTTPFlow, *, possible: bool) -> bool:
        """Inspect an error that has arrived whole; return whether to rewrite the request and send it once more.

        ``possible``: whether it can be sent again. If so, ``resending`` is the job of rewriting it.
        """
        if self._attempt is not None and self.plan is not None:
            self.resending = self._attempt.without_refused(flow, self.plan, again=possible)
        return self.resending is not None

    def take_resent(self, flow: HTTPFlow, done: Done) -> None:
        """Turn the request into one without what was refused; the error is forgotten."""
        self.resending = None
        self._take(done)
        if done.rewritten is None:
            # A request that was ours stays ours: this can only fail because a worker died.
            flow.response = self.refuse(done.error or head.internal_error())
            return
        flow.response = None
        self._send(flow, done.rewritten)
        if NOTE in flow.metadata:
            flow.metadata[NOTE]["options"] = policy_as_dict(done.rewritten.plan.policy)

    @property
    def is_turn(self) -> bool:
        """Whether this asks a model; otherwise it asks for a list of models, which can only fail like a turn."""
        return bool(self.report.client)

    def answer_job(self, flow: HTTPFlow) -> AnswerJob | None:
        """Return the job of rewriting an answer; None if it was streamed or passed."""
        response = flow.response
        assert response is not None
        if not self.ours or self.plan is None or self.streamed is not None:
            return None
        if not 200 <= response.status_code < 300:
            self.ours = False
            self.recorder.whole(response)
            return None
        kind, encoding = response.headers.get("content-type", JSON), response.headers.get("content-encoding", "")
        limit, body = self.limits.max_answer_bytes, response.raw_content or b""
        return AnswerJob(self.plan, kind, encoding, body, limit, self.report, is_round=self.part is not None)

    def take_answer(self, flow: HTTPFlow, done: Done) -> None:
        """Turn the whole answer into the rewritten one."""
        self._take(done)
        response = flow.response
        assert response is not None
        if done.error is not None:
            flow.response = self.refuse(done.error)
            return
        self.recorder.whole(response)
        if self.part is not None and self.part.listener is not None:
            self.part.listener(done.events, done.again)
        head.set_head(response, done.content_type)
        response.status_code = done.status
        response.reason = status_codes.RESPONSES.get(response.status_code, "")
        response.headers.update(summary.headers(self.report))
        response.content = done.body

    def overdue(self) -> Response | None:
        """Return the error response for a backend that has been silent for too long; None while there is time."""
        if not self.clocks.is_overdue:
            self.clocks.client_served()
            return None
        return self.refuse(self.clocks.silent())

    # -- errors --

    def problem(self) -> str:
        """Return in words why there was an HTTP error, ours or the backend's; "" if no reason was given."""
        return self._problem or head.error_message(self.recorder.received.content())

    def refuse(self, error: ApiError) -> Response:
        """Return an error as the whole answer."""
        self.ours = False
        self._problem = error.message
        self.report.error = error.code or error.type
        return head.error_response(error, self.cors)


OPEN: dict[str, Exchange] = {}
"""The exchanges in flight, by flow id. One for all instances of the addon, so that a reload loses none."""
