"""Jobs that process complete bodies. Their inputs and results are picklable, so they can run in any process.

Rewriting a body of more than ``LOOP_BYTES`` would block the event loop for too long. It takes up to 0.5 ms per kilobyte
for many tiny messages, tools or strict schemas, and a hundredth of that for long texts. A compressed body must not be
decoded on the event loop either, since its decoded size is unknown. A ``Worker`` handles large and compressed bodies.
"""

from __future__ import annotations

import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import Any, Protocol, override

from toolsim.core.conversation import ConversationLabel, label_of
from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.events import ClientEvent
from toolsim.core.plan import Feature, Plan, StoredAs
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report, entry
from toolsim.proxy.decoding import BodyTooLarge, decoded
from toolsim.request.estimate import estimated_tokens, estimated_usage
from toolsim.request.rewrite import Rewritten, rewrite_request
from toolsim.response.checker import BUDGET_SECONDS, PATIENT_SECONDS
from toolsim.response.retry import Retry
from toolsim.response.rewrite import ResponseRewriter
from toolsim.wire.apis import APIS, backend_of
from toolsim.wire.foreign import as_responses
from toolsim.wire.json_codec import TOO_DEEP, dump, parse_object, read_body, too_deep, unreadable
from toolsim.wire.json_fields import optional
from toolsim.wire.responses.operations import (
    Action,
    action_path,
    count_answer,
    count_body,
    remaining,
    summary_request,
)
from toolsim.wire.responses.request import is_own_shape
from toolsim.wire.responses.resources import ResourceCall, respond
from toolsim.wire.responses.stored import Recalled, References, output_names, references, resolve

LOOP_BYTES = 32 * 1024
"""Maximum size, in bytes, of a body that is rewritten on the event loop.

Rewriting such a body takes at most 16 ms. A transfer to a worker process and back would add 3 ms.
"""

ROUNDS_OFF = entry("ROUNDS_OFF", "request_too_large")
"""The warning for a request that is too large for several rounds, and is therefore answered in a single round."""

# Matches a body that mentions tools. If such a body cannot be rewritten, it must not be sent to the backend unchanged,
# because the prompt would not explain how to call tools.
_MENTIONS_TOOLS = re.compile(rb'"(?:tools|functions|additional_tools|tool_calls|(?:custom_tool|function)_call)')


@dataclass(frozen=True, slots=True)
class JobResult:
    """The common fields of all job results. ``report`` is the exchange's report, including the job's findings.

    ``error`` is the error for the client. It is also set if ``crash`` contains the traceback of a bug in toolsim.
    """

    report: Report
    error: ApiError | None = None
    crash: str = ""


@dataclass(frozen=True, slots=True)
class RequestResult(JobResult):
    """The result of rewriting a request."""

    rewritten: Rewritten | None = None
    """The rewritten request, without the client's document (``asked``), or None if it passes through unchanged."""
    checked: Plan | None = None
    """The plan for checking the answer to a request that passes through unchanged, or None if no check is needed."""
    digest: str = ""
    topic: ConversationLabel | None = None
    """The conversation label of a rewritten request."""
    own: bytes = b""
    """The request's own items, without any stored items, as a JSON array for the store."""
    names: tuple[str, ...] = ()
    """The new IDs assigned to the items in ``own``."""
    prepared: bytes = b""
    """For an auxiliary request, the messages that its summary retains or the estimated token count, otherwise b""."""


@dataclass(frozen=True, slots=True)
class ResolveResult(JobResult):
    """The result of a ``ResolveJob``.

    It contains the ``references`` in a request or, once the stored data has been loaded, a ``body`` that includes the
    data.
    """

    body: bytes = b""
    references: References = References()
    in_background: bool = False
    """Whether to create the answer in the background."""
    echo: Mapping[str, Any] = field(default_factory=dict)
    own: bytes = b""
    """The request's own items, without any stored items, as a JSON array for the store."""
    names: tuple[str, ...] = ()
    """The new IDs assigned to the items in ``own``."""


@dataclass(frozen=True, slots=True)
class AnswerResult(JobResult):
    """The result of rewriting a non-streamed answer."""

    passes: bool = False
    """Whether the answer passes through unchanged after it has been checked."""
    status: int = 200
    content_type: str = ""
    body: bytes = b""
    names: tuple[str, ...] | None = None
    """The IDs of the answer's items, or None if the answer is not stored."""
    events: tuple[ClientEvent, ...] = ()
    retry: Retry | None = None
    """The reason for another round, or None if no other round is needed."""
    withheld: int = 0
    """The number of ``events`` at the end of the answer that the client must not receive if another round follows.

    It is 0 if this answer itself belongs to a round.
    """


@dataclass(frozen=True, slots=True)
class PageResult(JobResult):
    """The response to a request for a stored resource."""

    body: bytes = b""
    change: tuple[str, bytes] | None = None
    """The ID of the record to write and its new value, or None if no record is changed.

    A value of b"" deletes the record.
    """


@dataclass(frozen=True, slots=True)
class PluginResult(JobResult):
    """The result of a ``PluginJob``. ``read`` is the return value of the job's function."""

    read: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job[R: JobResult](ABC):
    """A job that processes a body. ``data`` is the received body, and ``limit`` its maximum decoded size in bytes."""

    data: bytes
    limit: int
    encoding: str = ""
    """The content encoding of ``data``."""
    report: Report = field(default_factory=Report)
    owner: str = ""
    """The owner of the exchange.

    Workers alternate between the jobs of different owners, so that one owner cannot delay the others.
    """
    subject = "a request"  # The name of the data in error messages.

    @property
    @abstractmethod
    def result(self) -> type[R]:
        """The class of the job's result."""

    @property
    def size(self) -> int:
        """The number of bytes that the job has to read."""
        return len(self.data)

    def work(self, body: bytes) -> R:
        """Return the result of processing the decoded body. Raises BadRequest if the body is invalid."""
        raise NotImplementedError

    def run(self, *, long_budget: bool) -> R:
        """Run the job and return its result, which contains any error for the client.

        If ``long_budget`` is true, checks are allowed to take longer.
        """
        try:
            return self.work(decoded(self.data, self.encoding, self.limit))
        except BadRequest as bad:
            error = bad.error
        except RecursionError:
            error = BadRequest(f"The request body cannot be read. {TOO_DEEP}.").error
        except BodyTooLarge:
            error = request_too_large(self.limit)
        except ValueError as problem:
            error = BadRequest(f"The request body cannot be decoded: {problem}").error
        return self.result(self.report, error)

    def too_much(self, what: str) -> ApiError:
        """Return the error for exceeding the limit on ``what``: "time" or "memory"."""
        message = f"The request body is too large: parsing its {self.size} bytes takes too much {what}."
        return ApiError(message, "invalid_request_error", "request_too_large", status=413)


@dataclass(frozen=True, slots=True)
class RequestJob(Job[RequestResult]):
    """Rewrites a request."""

    api_name: ApiName
    path: str
    policy: Policy
    output_mode: str | None = None
    refused: frozenset[tuple[str, Feature]] = frozenset()
    """Pairs of a model and a feature that the backend has already rejected for this model."""
    fallbacks: tuple[ApiName, ...] = ()
    """The APIs to try next if the backend rejects the path of the policy's API, in order."""
    stored_as: StoredAs | None = None
    wants_own: bool = False
    """Whether the result has to include the request's items, so that they can be stored."""
    is_round: bool = False
    """Whether the request is a round. A round is always rewritten."""
    action: Action | None = None
    """The auxiliary operation, or None if the request is not auxiliary. An auxiliary request is always rewritten."""
    marks_of_rounds: tuple[bytes, ...] | None = None
    """Byte strings whose presence in the body shows that the request needs several rounds.

    They are used to warn about a request that is too large for several rounds. None for any other request.
    """
    result = RequestResult

    @override
    def work(self, body: bytes) -> RequestResult:
        return _rewrite_request(self, body)


@dataclass(frozen=True, slots=True)
class ResolveJob(Job[ResolveResult]):
    """Finds a request's references to stored data, such as the ID of a previous response.

    Once the data has been loaded into ``recalled``, a second job replaces the references with the data.
    """

    recalled: Recalled | None = None
    result = ResolveResult

    @property
    @override
    def size(self) -> int:
        return len(self.data) + (self.recalled.size if self.recalled is not None else 0)

    @override
    def work(self, body: bytes) -> ResolveResult:
        return _resolve(self, body)


@dataclass(frozen=True, slots=True)
class AnswerJob(Job[AnswerResult]):
    """Rewrites a backend's non-streamed answer. If ``with_events`` is true, the result includes the answer's events.

    ``sent`` is the body of the request. It is used to estimate missing token counts.
    """

    plan: Plan
    content_type: str
    with_events: bool = False
    sent: bytes = b""
    result = AnswerResult
    subject = "the backend's answer"

    @override
    def run(self, *, long_budget: bool) -> AnswerResult:
        try:
            content = decoded(self.data, self.encoding, self.limit)
        except BodyTooLarge:
            return AnswerResult(self.report, answer_too_large(self.limit))
        except ValueError as problem:
            return AnswerResult(self.report, ApiError(f"The backend's answer cannot be decoded: {problem}", status=502))
        return _rewrite_answer(self, content, PATIENT_SECONDS if long_budget else BUDGET_SECONDS)

    @override
    def too_much(self, what: str) -> ApiError:
        message = f"The backend's answer is too large: parsing its {self.size} bytes takes too much {what}."
        return ApiError(message, code="backend_bad_answer", status=502)


@dataclass(frozen=True, slots=True)
class PageJob(Job[PageResult]):
    """Answers a request for a stored resource.

    ``value`` is the record's value, or None if the record does not exist.
    """

    call: ResourceCall
    value: bytes | None
    result = PageResult

    @property
    @override
    def size(self) -> int:
        return len(self.data) + len(self.value or b"")

    @override
    def work(self, body: bytes) -> PageResult:
        page = respond(replace(self.call, body=body), self.value)
        return PageResult(self.report, body=dump(page.body).encode(), change=(page.id, page.value) if page.id else None)


@dataclass(frozen=True, slots=True)
class PluginJob(Job[PluginResult]):
    """Passes a body to the function ``read``. If ``read`` raises BadRequest, the result contains that error."""

    read: Callable[[bytes], object]
    result = PluginResult

    @override
    def work(self, body: bytes) -> PluginResult:
        return PluginResult(self.report, read=self.read(body))


class RunJob(Protocol):
    """A function that runs a job in this process or in a worker process. It never raises an exception."""

    async def __call__[R: JobResult](self, job: Job[R]) -> R:
        """Run a job and return its result."""


def is_heavy(job: Job[Any]) -> bool:
    """Return whether a job might block the event loop for too long."""
    return job.size > LOOP_BYTES or job.encoding.strip().lower() not in ("", "identity")


def run[R: JobResult](job: Job[R], *, long_budget: bool = False) -> R:
    """Run a job and return its result. Never raises an exception.

    If ``long_budget`` is true, as in a worker process where no other work waits, checks are allowed to take longer.
    """
    try:
        return job.run(long_budget=long_budget)
    except MemoryError:
        return job.result(job.report, job.too_much("memory"))
    except Exception:
        return failed(job, traceback.format_exc())


def failed[R: JobResult](job: Job[R], crash: str) -> R:
    """Return the result of a job that failed because of a bug in toolsim. ``crash`` is a traceback or a description."""
    return job.result(job.report, ApiError(f"toolsim failed to rewrite {job.subject}.", code="internal_error"), crash)


def _rewrite_request(job: RequestJob, body: bytes) -> RequestResult:
    """Return the rewritten request, with its conversation label and the items to store."""
    prepared = b""
    if job.action == "compact" and (document := read_body(body)) is not None:
        body, prepared = dump(summary_request(document)).encode(), dump(remaining(document)).encode()
    rewritten = rewrite_request(
        job.api_name,
        job.path,
        body,
        job.policy,
        output_mode=job.output_mode,
        report=job.report,
        refused=job.refused,
        stored_as=job.stored_as,
        is_round=job.is_round,
        is_auxiliary=job.action is not None,
    )
    if job.marks_of_rounds is not None:
        asks_again = rewritten is not None and rewritten.plan.tools and rewritten.plan.policy.needs_rounds
        if asks_again or any(mark in body for mark in job.marks_of_rounds):
            job.report.warnings.append(ROUNDS_OFF)
    if rewritten is None and too_deep(body) and (job.action is not None or _MENTIONS_TOOLS.search(body)):
        raise BadRequest(f"The request body cannot be read. {TOO_DEEP}.")
    if rewritten is not None and rewritten.passes:
        return RequestResult(job.report, checked=rewritten.plan)
    client = APIS[job.api_name]
    # If the backend has a different API, a request in the format of the client's API cannot be sent unchanged.
    is_translated = backend_of(client, job.policy.backend) is not client
    if rewritten is None and (job.action is not None or is_translated):
        raise BadRequest(unreadable(body))
    if rewritten is None:
        if body.lstrip().startswith(b"{") and _MENTIONS_TOOLS.search(body) and read_body(body) is None:
            raise BadRequest("The request body mentions tools, but cannot be parsed as JSON.")
        return RequestResult(job.report)
    topic = label_of(rewritten.items)
    if job.action == "input_tokens":
        shown = parse_object(rewritten.body) or {}
        backend = APIS[rewritten.plan.backend]
        path = action_path(rewritten.path, job.action, backend)
        rewritten = replace(rewritten, path=path, body=dump(count_body(shown, backend)).encode())
        prepared = count_answer(estimated_tokens(shown), estimated=True)
    own, names = _own({**rewritten.asked}) if job.wants_own and rewritten.plan.form.id else (b"", ())
    # The client's document (``asked``) is left out, because a worker process would take a long time to transfer it.
    bare = Rewritten(rewritten.plan, rewritten.body, rewritten.path, asked={}, answer=rewritten.answer)
    return RequestResult(
        job.report, rewritten=bare, digest=digest(bare.body), topic=topic, own=own, names=names, prepared=prepared
    )


def digest(body: bytes) -> str:
    """Return a digest of a body, so that later edits of the body can be detected."""
    return sha256(body).hexdigest()


def _own(document: dict[str, Any]) -> tuple[bytes, tuple[str, ...]]:
    """Return the items of a request without references, as JSON for the store, and the IDs assigned to them."""
    resolved = resolve(in_own_shape(document), Recalled())
    return dump(resolved.own).encode(), resolved.names


def in_own_shape(document: dict[str, Any]) -> dict[str, Any]:
    """Convert a request to the format of the Responses API, in which requests are stored.

    Raises BadRequest if the request is invalid.
    """
    return document if is_own_shape(document) else as_responses(document)


def _resolve(job: ResolveJob, body: bytes) -> ResolveResult:
    document = read_body(body)
    if document is None:
        # The invalid body is not reported here. The job that rewrites the request reports it.
        return ResolveResult(job.report)
    try:
        document = in_own_shape(document)
    except BadRequest:
        return ResolveResult(job.report)
    if job.recalled is None:
        wanted = optional(document, "background", bool) is True
        return ResolveResult(job.report, references=references(document), in_background=wanted)
    resolved = resolve(document, job.recalled)
    # If a request has no references, its body remains unchanged, and only its items are returned.
    shown = dump(resolved.body).encode() if job.recalled.references else b""
    own = dump(resolved.own).encode()
    return ResolveResult(job.report, body=shown, own=own, echo=resolved.echo, names=resolved.names)


def request_too_large(limit: int) -> ApiError:
    """Return the error for a request body of more than ``limit`` bytes."""
    message = f"The request body is too large: got more than {limit} bytes (toolsim_max_body_bytes)."
    return ApiError(message, "invalid_request_error", "request_too_large", status=413)


def answer_too_large(limit: int) -> ApiError:
    """Return the error for an answer of more than ``limit`` bytes."""
    message = f"The backend's answer has more than {limit} bytes (toolsim_max_body_bytes)."
    return ApiError(message, code="backend_bad_answer", status=502)


def _rewrite_answer(job: AnswerJob, content: bytes, seconds: float) -> AnswerResult:
    emitted: list[ClientEvent] = []
    reasons: list[Retry] = []

    def listen(events: Sequence[ClientEvent], retry: Retry | None) -> None:
        emitted.extend(events)
        reasons.extend([retry] if retry is not None else [])

    is_followed = job.with_events or job.plan.may_invent or job.plan.may_retry_json
    rewriter = ResponseRewriter(
        job.plan,
        job.report,
        content_type=job.content_type,
        check_seconds=seconds,
        listener=listen if is_followed else None,
        estimate=partial(estimated_usage, job.sent),
    )
    steps = chain(rewriter.steps(content), rewriter.steps(b"") if content else ())
    chunks = list(chain.from_iterable(steps))
    if job.plan.is_verbatim and rewriter.is_as_demanded:
        return AnswerResult(job.report, passes=True)
    passed, waits = len(emitted), rewriter.waits
    if waits is not None:
        chunks += rewriter.conclude()
        reasons = [waits]
    names = output_names(rewriter.final) if job.plan.form.id else None
    done = AnswerResult(
        job.report, status=rewriter.status, content_type=rewriter.content_type, body=b"".join(chunks), names=names
    )
    if not (job.with_events or reasons):
        return done
    return replace(done, events=tuple(emitted), retry=reasons[0] if reasons else None, withheld=len(emitted) - passed)
