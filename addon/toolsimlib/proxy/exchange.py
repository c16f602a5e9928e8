"""One request of ours and its answer, while it is under way."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping

from mitmproxy.http import HTTPFlow, Message, Response
from mitmproxy.net.http import status_codes

from toolsimlib.errors import ApiError
from toolsimlib.plan import Plan
from toolsimlib.proxy import telemetry
from toolsimlib.proxy.keep import Keeper
from toolsimlib.report import Report
from toolsimlib.response.rewrite import ResponseRewriter

logger = logging.getLogger(__name__)

# Framing and encoding of the backend's own connection: they mean nothing for the answer that we make of it.
_HOP_HEADERS = ("connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding")
_ENCODINGS = ("identity", "gzip", "deflate", "br", "zstd")


def refusal(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as a whole HTTP answer in the API's own shape."""
    response = Response.make(error.status, json.dumps({"error": error.body()}), {"content-type": "application/json"})
    if error.retry_after is not None:
        response.headers["retry-after"] = str(error.retry_after)
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    response.headers.update(headers or {})
    return response


def decoded(message: Message) -> bytes:
    """Return a whole body without its content encoding. Raises ValueError."""
    encoding = message.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in _ENCODINGS:
        # mitmproxy would ask Python's codecs, which know much that is none of HTTP's.
        raise ValueError(f"got content encoding {encoding!r}, expected one of {', '.join(_ENCODINGS)}")
    return message.get_content(strict=True) or b""


class Exchange:
    """Carries a plan from the request to the answer, and watches the time between.

    ``plan``: None until the request has been read, and ever after if it is not ours and passes as it is; then we only
    speak if the backend never answers. ``cors``: headers for answers that we make. ``keepalive``, ``idle_timeout``:
    seconds; an ``idle_timeout`` of 0 waits for ever.
    """

    def __init__(
        self,
        report: Report,
        *,
        client_id: str,
        cors: Mapping[str, str],
        keepalive: float,
        idle_timeout: float,
    ) -> None:
        self.plan: Plan | None = None
        self.report = report
        self.client_id = client_id
        self.ours = True
        self.cut = False
        self.keeper = Keeper()
        self.started = time.monotonic()
        self._cors = cors
        self._keepalive = keepalive
        self._idle_timeout = idle_timeout
        self._heard = self._said = self.started
        self._rewriter: ResponseRewriter | None = None

    def __repr__(self) -> str:
        state = "waiting" if self._rewriter is None else "answering"
        return f"Exchange({'cut' if self.cut else state if self.ours else 'passing'})"

    def begin(self, flow: HTTPFlow) -> None:
        """Decide at the backend's headers how the answer goes on: passed, streamed, or rewritten when it is whole."""
        response = flow.response
        assert response is not None
        present = response.raw_content is not None  # made by another addon, or read from a file
        if self.plan is None or not 200 <= response.status_code < 300:
            self.ours = False
            response.stream = not present
            if self.plan is not None and not present:
                self.keeper.begin(response.copy())
                response.stream = self._pass
            return
        kind = response.headers.get("content-type", "")
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        is_stream = kind.partition(";")[0].strip().lower() == "text/event-stream"
        if not (self.plan.stream and is_stream and encoding == "identity") or present:
            # A stream that is compressed although we asked for none cannot be read in pieces: it is rewritten whole.
            response.stream = False
            return
        self._rewriter = ResponseRewriter(self.plan, self.report, content_type=kind)
        # A copy: mitmproxy judges the backend's connection by the headers that the backend sent.
        self.keeper.begin(response)
        response = flow.response = response.copy()
        self._dress(response)
        if flow.request.http_version == "HTTP/1.1":
            response.headers["transfer-encoding"] = "chunked"
        response.stream = self.feed

    @property
    def told(self) -> bool:
        """Whether the client has been given all of a streamed answer."""
        return self._rewriter is not None and self._rewriter.done

    def feed(self, data: bytes) -> list[bytes]:
        """Return the client's bytes for the backend's; b"" = end of input, whichever side ended it."""
        assert self._rewriter is not None
        self.keeper.received.add(data)
        try:
            chunks = self._rewriter.feed(data)
            self.cut = self.cut or self._rewriter.cut
        except Exception:
            chunks = self._crashed()
        if chunks:
            self._said = time.monotonic()
        return self._kept(chunks)

    def finish(self, flow: HTTPFlow) -> None:
        """Rewrite a whole answer, unless it was streamed or passed."""
        response = flow.response
        assert response is not None
        if not self.ours or self.plan is None or self._rewriter is not None:
            return
        try:
            content = decoded(response)
        except ValueError as problem:
            flow.response = self.refuse(ApiError(f"The backend's answer cannot be decoded: {problem}", status=502))
            return
        self.keeper.whole(response)
        self._rewriter = ResponseRewriter(
            self.plan, self.report, content_type=response.headers.get("content-type", "application/json")
        )
        try:
            body = b"".join(self._rewriter.feed(content) + (self._rewriter.feed(b"") if content else []))
        except Exception:
            flow.response = self.refuse(self._apology())
            return
        self._dress(response)
        response.status_code = self._rewriter.status
        response.reason = status_codes.RESPONSES.get(response.status_code, "")
        response.headers.update(telemetry.headers(self.report))
        response.content = body

    def heard(self) -> None:
        """Take note that the backend has sent something."""
        self._heard = time.monotonic()

    def seconds(self) -> float:
        """Return how long this exchange has been under way."""
        return time.monotonic() - self.started

    def tick(self) -> list[bytes]:
        """Speak while the backend is silent or a call is held back; give up when the silence is too long."""
        assert self._rewriter is not None
        try:
            if self.told:
                # The client has everything, but the backend does not hang up.
                self.cut = True
                return []
            if self._is_overdue():
                self.cut = True
                return self._kept(self._rewriter.fail(self._silence()))
            if time.monotonic() - self._said < self._keepalive:
                return []
            self._said = time.monotonic()
            return self._kept(self._rewriter.keepalive())
        except Exception:
            return self._kept(self._crashed())

    def next_tick(self) -> float:
        """Return the seconds until ``tick`` has something to decide."""
        now = time.monotonic()
        due = self._said + self._keepalive
        if self._idle_timeout:
            due = min(due, self._heard + self._idle_timeout)
        # Never at once: the clocks of timers may differ a little.
        return max(due - now, 0.01)

    def overdue(self) -> Response | None:
        """Return the whole answer that says that the backend was silent for too long."""
        if not self._is_overdue():
            self._said = time.monotonic()
            return None
        return self.refuse(self._silence())

    def broken(self, message: str) -> Response:
        """Return the whole answer that says that the backend could not be reached or went away."""
        return self.refuse(ApiError(f"The backend gave no answer: {message}", code="backend_unavailable", status=502))

    def refuse(self, error: ApiError) -> Response:
        """Return an error as the whole answer."""
        self.ours = False
        self.report.error = error.code or error.type
        return refusal(error, self._cors)

    def _pass(self, data: bytes) -> bytes:
        """Let through what is not ours to rewrite: an answer of the backend's that is an error."""
        self.keeper.received.add(data)
        self.keeper.sent.add(data)
        return data

    def _kept(self, chunks: list[bytes]) -> list[bytes]:
        for chunk in chunks:
            self.keeper.sent.add(chunk)
        return chunks

    def _is_overdue(self) -> bool:
        return 0 < self._idle_timeout <= time.monotonic() - self._heard

    def _silence(self) -> ApiError:
        return ApiError(f"The backend sent no data for {self._idle_timeout:g} s.", code="backend_timeout", status=504)

    def _apology(self) -> ApiError:
        logger.exception("toolsim failed to rewrite an answer; please report this.")
        return ApiError("toolsim failed to rewrite the backend's answer.", code="internal_error")

    def _crashed(self) -> list[bytes]:
        """End a stream that we failed to rewrite: without this the client would wait for ever."""
        assert self._rewriter is not None
        self.cut = True
        error = self._apology()
        self.report.error = error.code
        try:
            return self._rewriter.fail(error)
        except Exception:
            return []

    def _dress(self, response: Response) -> None:
        assert self._rewriter is not None
        for name in _HOP_HEADERS:
            response.headers.pop(name, None)
        response.headers["content-type"] = self._rewriter.content_type
        if response.http_version == "HTTP/1.0":
            response.http_version = "HTTP/1.1"


OPEN: dict[str, Exchange] = {}
"""The exchanges that are under way, by flow id. One for all instances of the addon, so that a reload loses none."""
