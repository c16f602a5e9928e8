"""One request of ours and its answer, while it is under way.

    request ──▶ rewrite ──▶ begin (the backend's headers) ──┬─▶ stream:  feed … feed, feed(b"")
                                                            ├─▶ whole:   rewrite_whole
                                                            └─▶ pass:    the backend's bytes, as they are

Five outcomes, each of which ends the client's answer properly:

1. *streamed*: the rewriter has given the client everything (``finished``). A backend that then does not hang up is
   stopped at the next tick.
2. *whole*: the answer was read to its end and rewritten at once.
3. *passed*: not ours to rewrite, such as a backend's error response. From then on ``ours`` is false.
4. *refused*: our own error takes the place of an answer that never began: a bad request, a backend that cannot be
   reached or stays silent, a body that cannot be decoded. ``ours`` is false here too.
5. *cut*: a stream ended before the backend did, because the turn was over, because of silence, or because of a bug of
   ours. ``cut`` tells ``EndableStream`` to stop the backend and to end the client's answer.

Three clocks, all monotonic. ``_started_at`` only measures. ``_last_input_at`` is when the backend last sent anything:
``idle_timeout`` counts from there. ``_last_output_at`` is when the client last got anything: ``keepalive`` counts from
there, since a client hears nothing while a call is being held back. mitmproxy's streams have no timers of their own:
``EndableStream`` asks ``next_tick`` when to wake up, and then calls ``tick`` (in a stream) or ``overdue`` (before one).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping

from mitmproxy.http import HTTPFlow, Response
from mitmproxy.net.http import status_codes

from toolsimlib.errors import ApiError, BadRequest
from toolsimlib.pages.topic import Topic, topic_of
from toolsimlib.plan import Dialect, Plan, Policy
from toolsimlib.proxy import resend, sides, telemetry
from toolsimlib.proxy.attempt import ReadRequest, note_missed_calls
from toolsimlib.proxy.body import Refused, check_unread, read_body
from toolsimlib.proxy.decoding import TooLarge, decoded
from toolsimlib.proxy.keep import BodyRecorder
from toolsimlib.proxy.known import Backend, Root
from toolsimlib.proxy.settings import Limits
from toolsimlib.report import Report
from toolsimlib.response.rewrite import ResponseRewriter
from toolsimlib.wire.errors import NO_WORDS, read_error
from toolsimlib.wire.lenient import loaded

logger = logging.getLogger(__name__)

MODE_HEADER = "x-proxy-output-mode"

# Framing and encoding of the backend's own connection: they mean nothing for the answer that we make of it.
_HOP_HEADERS = ("connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding")
# Statuses whose answers have no body: nothing can be streamed in them.
_WITHOUT_BODY = (204, 205)


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as a whole HTTP answer in the API's own shape."""
    response = Response.make(error.status, json.dumps({"error": error.body()}), {"content-type": "application/json"})
    if error.retry_after is not None:
        response.headers["retry-after"] = str(error.retry_after)
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    response.headers.update(headers or {})
    return response


class Exchange:
    """Carries a plan from the request to the answer, and watches the time between.

    ``plan``: None until the request has been read, and ever after if it is not ours and passes as it is; then we only
    speak if the backend never answers. ``cors``: headers for answers that we make. ``is_request_too_large``: its body
    was dropped as it arrived. ``resent``: what a flow that is replayed holds of its first time. ``topic``: what a
    request is about that was rewritten; ``place``: which turn of which conversation that is, in words. ``backend``:
    what is known of it; ``may_ask``: it may be asked who it is.
    """

    def __init__(
        self, report: Report, *, client_id: str, cors: Mapping[str, str], limits: Limits, backend: Backend | None = None
    ) -> None:
        self.plan: Plan | None = None
        self.report = report
        self.resent: resend.Resent | None = None
        self.topic: Topic | None = None
        self.place = ""
        self.backend = backend or Backend(Root("http", "", 0))
        self.may_ask = False
        self._attempt: ReadRequest | None = None
        self.client_id = client_id
        self.ours = True
        self.cut = False
        self.recorder = BodyRecorder()
        self._problem = ""
        self._cors = cors
        self.limits = limits
        self.is_request_too_large = False
        self._is_connected = False
        self._started_at = self._last_input_at = self._last_output_at = time.monotonic()
        self._first_output_at: float | None = None
        self._rewriter: ResponseRewriter | None = None

    def __repr__(self) -> str:
        state = "waiting" if self._rewriter is None else "answering"
        return f"Exchange({'cut' if self.cut else state if self.ours else 'passing'})"

    # -- the request --

    def rewrite(self, flow: HTTPFlow, dialect: Dialect, policy: Policy) -> None:
        """Rewrite the request for its backend, or answer it with an error."""
        try:
            self._rewrite(flow, dialect, policy)
        except (BadRequest, Refused) as bad:
            flow.response = self.refuse(bad.error)
        except Exception:
            logger.exception("toolsim failed to rewrite a request; please report this.")
            flow.response = self.refuse(ApiError("toolsim failed to rewrite the request.", code="internal_error"))

    def _rewrite(self, flow: HTTPFlow, dialect: Dialect, policy: Policy) -> None:
        request = flow.request
        body = read_body(request, self.limits.max_request_bytes, is_too_large=self.is_request_too_large)
        read = ReadRequest(dialect, request.path, body, policy, request.headers.get(MODE_HEADER), self.backend)
        rewritten = read.rewritten(self.report)
        if rewritten is None:
            check_unread(body)
            return
        # What the client sent stays in the flow: mitmweb shows it, and revert brings it back.
        sides.begin(flow)
        self.plan = rewritten.plan
        self._attempt = read if rewritten.plan.attempts else None
        self.topic = topic_of(rewritten.items)
        for name in ("content-encoding", "transfer-encoding", MODE_HEADER):
            request.headers.pop(name, None)
        request.headers["accept-encoding"] = "identity"
        request.path = rewritten.path
        request.content = rewritten.body
        resend.note_sent(flow, rewritten.body)
        if self.resent is not None and self.resent.words is not None:
            request.content = self.resent.words
            self._attempt = None  # Made anew, the request would lose them.

    # -- the answer --

    def begin(self, flow: HTTPFlow) -> None:
        """Decide at the backend's headers how the answer goes on: passed, streamed, or rewritten when it is whole."""
        response = flow.response
        assert response is not None
        is_present = response.raw_content is not None  # made by another addon, or read from a file
        is_error = not 200 <= response.status_code < 300
        if is_error and self._attempt is not None and not is_present:
            # Perhaps only what was attempted is refused: its words decide.
            response.stream = False
            return
        if self.plan is None or is_error:
            self.ours = False
            response.stream = not is_present
            if (self.plan is not None or response.status_code >= 400) and not is_present:
                self.recorder.begin(response.copy())
                response.stream = self._pass
            return
        content_type = response.headers.get("content-type", "")
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        is_stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        is_empty = response.status_code in _WITHOUT_BODY
        if not (self.plan.stream and is_stream and encoding == "identity") or is_present or is_empty:
            # A stream that is compressed although we asked for none cannot be read in pieces: it is rewritten whole.
            response.stream = False
            return
        self._rewriter = ResponseRewriter(
            self.plan, self.report, content_type=content_type, max_event_bytes=self.limits.max_answer_bytes
        )
        # A copy: mitmproxy judges the backend's connection by the headers that the backend sent.
        self.recorder.begin(response)
        response = flow.response = response.copy()
        self._set_headers(response)
        if flow.request.http_version == "HTTP/1.1":
            response.headers["transfer-encoding"] = "chunked"
        response.stream = self.feed

    def ask_again(self, flow: HTTPFlow, *, possible: bool) -> bool:
        """Take an error that has arrived whole; return whether the request was rewritten, to be sent once more.

        ``possible``: whether it can be sent again.
        """
        if self._attempt is None or self.plan is None:
            return False
        rewritten = self._attempt.without_refused(flow, self.plan, again=possible)
        if rewritten is None:
            return False
        self.plan, self.report = rewritten
        if not self.plan.attempts:
            self._attempt = None
        flow.response = None
        return True

    def learn(self) -> None:
        """Remember what the answer, which is over, says about its backend."""
        if self.plan is not None:
            note_missed_calls(self.backend, self.plan, self.report)

    @property
    def words(self) -> str:
        """The beginning of what the user said, "" if it was not read."""
        return self.topic.words if self.topic is not None else ""

    @property
    def is_turn(self) -> bool:
        """Whether a model is asked; else it is a list of models, which only fails like a turn."""
        return bool(self.report.client)

    @property
    def finished(self) -> bool:
        """Whether the client has been given all of a streamed answer."""
        return self._rewriter is not None and self._rewriter.done

    def feed(self, data: bytes) -> list[bytes]:
        """Return the client's bytes for the backend's; b"" = end of input, whichever side ended it."""
        assert self._rewriter is not None
        self.recorder.received.add(data)
        try:
            chunks = self._rewriter.feed(data)
            self.cut = self.cut or self._rewriter.cut
        except Exception:
            chunks = self._crashed()
        if chunks:
            self._last_output_at = time.monotonic()
            self._first_output_at = self._first_output_at or self._last_output_at
        return self._recorded(chunks)

    def rewrite_whole(self, flow: HTTPFlow) -> None:
        """Rewrite a whole answer, unless it was streamed or passed."""
        response = flow.response
        assert response is not None
        if not self.ours or self.plan is None or self._rewriter is not None:
            return
        if not 200 <= response.status_code < 300:
            self.ours = False
            self.recorder.whole(response)
            return
        try:
            content = decoded(response, self.limits.max_answer_bytes)
        except TooLarge:
            flow.response = self.answer_too_large()
            return
        except ValueError as problem:
            flow.response = self.refuse(ApiError(f"The backend's answer cannot be decoded: {problem}", status=502))
            return
        self.recorder.whole(response)
        self._rewriter = ResponseRewriter(
            self.plan, self.report, content_type=response.headers.get("content-type", "application/json")
        )
        try:
            body = b"".join(self._rewriter.feed(content) + (self._rewriter.feed(b"") if content else []))
        except Exception:
            flow.response = self.refuse(self._internal_error())
            return
        self._set_headers(response)
        response.status_code = self._rewriter.status
        response.reason = status_codes.RESPONSES.get(response.status_code, "")
        response.headers.update(telemetry.headers(self.report))
        response.content = body

    # -- the clocks --

    @property
    def first_byte(self) -> float | None:
        """Return after how many seconds the client of a stream got its first byte; None as long as it has none."""
        return None if self._first_output_at is None else self._first_output_at - self._started_at

    def note_backend_activity(self) -> None:
        """Count the backend's silence from now on."""
        self._last_input_at = time.monotonic()

    def backend_connected(self) -> None:
        """Note that the request is on its way."""
        self._is_connected = True
        self.note_backend_activity()

    def seconds(self) -> float:
        """Return how long this exchange has been under way."""
        return time.monotonic() - self._started_at

    def next_tick(self) -> float:
        """Return the seconds until ``tick`` has something to decide."""
        now = time.monotonic()
        due = self._last_output_at + self.limits.keepalive
        if self.limits.idle_timeout:
            due = min(due, self._last_input_at + self.limits.idle_timeout)
        # Never at once: the clocks of timers may differ a little.
        return max(due - now, 0.01)

    def tick(self) -> list[bytes]:
        """Return a keep-alive for the client of a stream, or the end of it when the backend's silence is too long."""
        assert self._rewriter is not None
        try:
            if self.finished:
                # The client has everything, but the backend does not hang up.
                self.cut = True
                return []
            if self._is_overdue():
                self.cut = True
                return self._recorded(self._rewriter.fail(self._timeout_error()))
            if time.monotonic() - self._last_output_at < self.limits.keepalive:
                return []
            self._last_output_at = time.monotonic()
            return self._recorded(self._rewriter.keepalive())
        except Exception:
            return self._recorded(self._crashed())

    def overdue(self) -> Response | None:
        """Return the whole answer for a backend that has been silent for too long; None while there is still time."""
        if not self._is_overdue():
            self._last_output_at = time.monotonic()
            return None
        return self.refuse(self._timeout_error())

    # -- errors --

    def backend_unreachable(self, message: str) -> Response:
        """Return the whole answer for a backend that could not be reached, in time or at all, or that went away."""
        waited = time.monotonic() - self._last_input_at
        if not self._is_connected and 0 < self.limits.connect_timeout <= waited:
            text = f"The backend could not be reached within {self.limits.connect_timeout:g} s."
            return self.refuse(ApiError(text, code="backend_timeout", status=504))
        return self.refuse(ApiError(f"The backend gave no answer: {message}", code="backend_unavailable", status=502))

    def answer_too_large(self) -> Response:
        """Return the whole answer for a backend whose own is beyond the limit."""
        limit = self.limits.max_answer_bytes
        message = f"The backend's answer has more than {limit} bytes (toolsim_max_answer_bytes)."
        return self.refuse(ApiError(message, code="backend_bad_answer", status=502))

    def problem(self) -> str:
        """Return in words why there was an HTTP error, ours or the backend's; "" if nobody said."""
        if self._problem:
            return self._problem
        body = loaded(self.recorder.received.content().decode("utf-8", "replace"))
        told = read_error(body) if body is not None else None
        return told.message if told is not None and told.message != NO_WORDS.message else ""

    def refuse(self, error: ApiError) -> Response:
        """Return an error as the whole answer."""
        self.ours = False
        self._problem = error.message
        self.report.error = error.code or error.type
        return error_response(error, self._cors)

    def _timeout_error(self) -> ApiError:
        return ApiError(
            f"The backend sent no data for {self.limits.idle_timeout:g} s.", code="backend_timeout", status=504
        )

    def _internal_error(self) -> ApiError:
        logger.exception("toolsim failed to rewrite an answer; please report this.")
        return ApiError("toolsim failed to rewrite the backend's answer.", code="internal_error")

    def _crashed(self) -> list[bytes]:
        """End a stream that we failed to rewrite: otherwise the client would wait for ever."""
        assert self._rewriter is not None
        self.cut = True
        error = self._internal_error()
        self.report.error = error.code
        try:
            return self._rewriter.fail(error)
        except Exception:
            return []

    # -- small parts --

    def _pass(self, data: bytes) -> bytes:
        """Let a backend error response through."""
        self.recorder.received.add(data)
        self.recorder.sent.add(data)
        return data

    def _recorded(self, chunks: list[bytes]) -> list[bytes]:
        for chunk in chunks:
            self.recorder.sent.add(chunk)
        return chunks

    def _is_overdue(self) -> bool:
        return 0 < self.limits.idle_timeout <= time.monotonic() - self._last_input_at

    def _set_headers(self, response: Response) -> None:
        assert self._rewriter is not None
        for name in _HOP_HEADERS:
            response.headers.pop(name, None)
        response.headers["content-type"] = self._rewriter.content_type
        if response.http_version == "HTTP/1.0":
            response.http_version = "HTTP/1.1"


OPEN: dict[str, Exchange] = {}
"""The exchanges that are under way, by flow id. One for all instances of the addon, so that a reload loses none."""
