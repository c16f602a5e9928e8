"""Jobs on complete bodies, from plain values to plain values; ``run`` runs them, in this process or another.

A body of more than ``LOOP_BYTES`` would block the event loop for too long: rewriting takes up to 0.5 ms per kilobyte
(many tiny messages, tools or strict schemas; long texts take a hundredth of that). A compressed body must not be
decoded here either, since its decoded size is unknown. A ``Worker`` handles those.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import Any

from toolsim.core.conversation import ConversationLabel, label_of
from toolsim.core.errors import ApiError, BadRequest
from toolsim.core.events import ClientEvent
from toolsim.core.plan import ApiName, Feature, Plan, Policy, StoredAs
from toolsim.core.report import Report, entry
from toolsim.proxy.decoding import BodyTooLarge, decoded
from toolsim.request.estimate import estimated_tokens, estimated_usage
from toolsim.request.rewrite import Rewritten, rewrite_request
from toolsim.response.checker import BUDGET_SECONDS, PATIENT_SECONDS
from toolsim.response.retry import Retry
from toolsim.response.rewrite import ResponseRewriter
from toolsim.wire.apis import APIS, backend_of
from toolsim.wire.foreign import as_responses
from toolsim.wire.json_codec import TOO_DEEP, dump, parse_object, read_body, too_deep
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
"""Bodies up to this size are rewritten on the event loop: 16 ms at worst; a trip to a worker adds 3 ms."""

ROUNDS_OFF = entry("ROUNDS_OFF", "request_too_large")
"""The warning for a request that is too large for several rounds and gets only one."""

# A body that mentions tools must not pass unread: its backend would never learn how to call them.
_MENTIONS_TOOLS = re.compile(rb'"(?:tools|functions|additional_tools|tool_calls|(?:custom_tool|function)_call)')


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Fields of all jobs."""

    encoding: str = ""
    """The content encoding of the body."""
    report: Report = field(default_factory=Report)
    owner: str = ""
    """The owner, see ``Exchange``: owners' jobs take turns."""


@dataclass(frozen=True, slots=True)
class RequestJob(_Job):
    """A request to rewrite. ``data``: its body as it arrived; ``limit``: the maximum size in bytes, decoded."""

    api_name: ApiName
    path: str
    data: bytes
    limit: int
    policy: Policy
    output_mode: str | None = None
    refused: frozenset[tuple[str, Feature]] = frozenset()
    """Features that the backend has rejected before, by model."""
    fallbacks: tuple[ApiName, ...] = ()
    """The APIs to try next if the backend rejects the path of the policy's API."""
    stored_as: StoredAs | None = None
    wants_own: bool = False
    """Whether to return the items of the request for the store, too."""
    is_round: bool = False
    """Whether it is a round of an answer: then it is always rewritten."""
    action: Action | None = None
    """The auxiliary operation, if it is not a turn: then it is always rewritten."""
    marks_of_rounds: tuple[bytes, ...] | None = None
    """For a request too large for several rounds: byte strings that show it would have needed them."""


@dataclass(frozen=True, slots=True)
class ResolveJob(_Job):
    """A request: find its references or, given what was ``recalled``, build a request that contains it."""

    data: bytes
    limit: int
    recalled: Recalled | None = None


@dataclass(frozen=True, slots=True)
class AnswerJob(_Job):
    """A non-streamed answer to rewrite, like ``RequestJob``. ``with_events``: return its events too.

    ``sent``: the body of the request that it answers, from which missing token counts are estimated.
    """

    plan: Plan
    content_type: str
    data: bytes
    limit: int
    with_events: bool = False
    sent: bytes = b""


@dataclass(frozen=True, slots=True)
class PageJob(_Job):
    """A call about a stored resource, with the body ``data``. ``value``: the record's value, None if there is none."""

    call: ResourceCall
    value: bytes | None
    data: bytes = b""
    limit: int = 0


@dataclass(frozen=True, slots=True)
class PluginJob(_Job):
    """A body that the function ``read`` reads, of any package; its BadRequest is the error."""

    data: bytes
    limit: int
    read: Callable[[bytes], object]


Job = RequestJob | AnswerJob | ResolveJob | PageJob | PluginJob


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job. ``report``: the job's, with the findings added to it.

    ``error``: the client's error. ``crash``: the traceback of a bug in toolsim, which is an error too.
    """

    report: Report
    error: ApiError | None = None
    crash: str = ""
    rewritten: Rewritten | None = None
    """The rewritten request, without its items; None = it passes unchanged."""
    checked: Plan | None = None
    """The plan by which the answer to an unchanged request is checked, if it is."""
    passes: bool = False
    """Whether a checked answer passes unchanged."""
    digest: str = ""
    """The digest of its body."""
    topic: ConversationLabel | None = None
    """The label of a rewritten request."""
    status: int = 200
    content_type: str = ""
    body: bytes = b""
    """The body of an answer, or of a resolved request."""
    references: References = References()
    in_background: bool = False
    """Whether to make the answer in the background."""
    own: bytes = b""
    """The items of a request in stored form: a JSON array."""
    echo: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] | None = None
    """The ids of an answer's items, None if it is not to be stored; or the new ids of a request's items."""
    prepared: bytes = b""
    """For an auxiliary operation: the input of its answer, either the messages that stay or an estimate."""
    change: tuple[str, bytes] | None = None
    """For a resource: the id of the record to write, and its new value, b"" to delete it."""
    read: object = None
    """The result of ``PluginJob.read``."""
    events: tuple[ClientEvent, ...] = ()
    retry: Retry | None = None
    """The reason for another round."""
    withheld: int = 0
    """The number of final ``events``, and their output, that count only without another round; 0 in a round."""


def is_heavy(job: Job) -> bool:
    """Return whether a job might block the event loop for too long."""
    return size_of(job) > LOOP_BYTES or job.encoding.strip().lower() not in ("", "identity")


def size_of(job: Job) -> int:
    """Return the number of bytes that a job has to read."""
    match job:
        case ResolveJob(recalled=Recalled() as recalled):
            return len(job.data) + recalled.size
        case PageJob():
            return len(job.data) + len(job.value or b"")
    return len(job.data)


def run(job: Job, *, long_budget: bool = False) -> JobResult:
    """Run a job; never raises. ``long_budget``: nothing else waits for this process."""
    try:
        match job:
            case RequestJob():
                return _with_body(job, _rewrite_request)
            case ResolveJob():
                return _with_body(job, _resolve)
            case PageJob():
                return _with_body(job, _respond)
            case PluginJob():
                return _with_body(job, lambda job, body: JobResult(job.report, read=job.read(body)))
            case AnswerJob():
                return _rewrite_answer(job, long_budget=long_budget)
    except MemoryError:
        return JobResult(job.report, too_much(job, "memory"))
    except Exception:
        return failed(job, traceback.format_exc())


def failed(job: Job, crash: str) -> JobResult:
    """Return the result of a job that a bug in toolsim has ended; ``crash``: its traceback, or what is known of it."""
    what = "the backend's answer" if isinstance(job, AnswerJob) else "a request"
    return JobResult(job.report, ApiError(f"toolsim failed to rewrite {what}.", code="internal_error"), crash)


def too_much(job: Job, what: str) -> ApiError:
    """Return the error for a job that exceeds its limit of "time" or "memory"."""
    size = f"its {size_of(job)} bytes take too much {what} to be read"
    if not isinstance(job, AnswerJob):
        message = f"The request body is too large: {size}."
        return ApiError(message, "invalid_request_error", "request_too_large", status=413)
    return ApiError(f"The backend's answer is too large: {size}.", code="backend_bad_answer", status=502)


def _with_body[J: (RequestJob, ResolveJob, PageJob, PluginJob)](
    job: J, work: Callable[[J, bytes], JobResult]
) -> JobResult:
    """Return the result of ``work`` on a request's decoded body, or the client's error."""
    try:
        return work(job, decoded(job.data, job.encoding, job.limit))
    except BadRequest as bad:
        return JobResult(job.report, bad.error)
    except RecursionError:
        return JobResult(job.report, BadRequest(f"The request body cannot be read. {TOO_DEEP}.").error)
    except BodyTooLarge:
        return JobResult(job.report, request_too_large(job.limit))
    except ValueError as problem:
        return JobResult(job.report, BadRequest(f"The request body cannot be decoded: {problem}").error)


def _rewrite_request(job: RequestJob, body: bytes) -> JobResult:
    """Return the rewritten request and its label."""
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
        return JobResult(job.report, checked=rewritten.plan)
    client = APIS[job.api_name]
    # A backend of another API would get a request for an unknown path.
    is_translated = backend_of(client, job.policy.backend) is not client
    if rewritten is None and (job.action is not None or is_translated):
        raise BadRequest("The request body is not a JSON object.")
    if rewritten is None:
        if body.lstrip().startswith(b"{") and _MENTIONS_TOOLS.search(body) and read_body(body) is None:
            raise BadRequest("The request body mentions tools, but is not JSON that can be read.")
        return JobResult(job.report)
    topic = label_of(rewritten.items)
    if job.action == "input_tokens":
        shown = parse_object(rewritten.body) or {}
        backend = APIS[rewritten.plan.backend]
        path = action_path(rewritten.path, job.action, backend)
        rewritten = replace(rewritten, path=path, body=dump(count_body(shown, backend)).encode())
        prepared = count_answer(estimated_tokens(shown), estimated=True)
    own, names = _own({**rewritten.asked}) if job.wants_own and rewritten.plan.form.id else (b"", ())
    # Transferring the items between processes would take as much work as the body.
    bare = Rewritten(rewritten.plan, rewritten.body, rewritten.path, asked={}, answer=rewritten.answer)
    return JobResult(
        job.report, rewritten=bare, digest=digest(bare.body), topic=topic, own=own, names=names, prepared=prepared
    )


def digest(body: bytes) -> str:
    """Return a digest that shows whether a body has been edited."""
    return sha256(body).hexdigest()


def _own(document: dict[str, Any]) -> tuple[bytes, tuple[str, ...]]:
    """Return the stored part of a request without references, and the ids that its items were assigned."""
    resolved = resolve(in_own_shape(document), Recalled())
    return dump(resolved.own).encode(), resolved.names


def in_own_shape(document: dict[str, Any]) -> dict[str, Any]:
    """Return a request at the path of the Responses API in that API's shape, which is stored. Raises BadRequest."""
    return document if is_own_shape(document) else as_responses(document)


def _resolve(job: ResolveJob, body: bytes) -> JobResult:
    document = read_body(body)
    if document is None:
        # An error in it is reported when it is rewritten.
        return JobResult(job.report)
    try:
        document = in_own_shape(document)
    except BadRequest:
        return JobResult(job.report)
    if job.recalled is None:
        wanted = optional(document, "background", bool) is True
        return JobResult(job.report, references=references(document), in_background=wanted)
    resolved = resolve(document, job.recalled)
    # A request without references goes to its backend unchanged: only its items are needed.
    shown = dump(resolved.body).encode() if job.recalled.references else b""
    own = dump(resolved.own).encode()
    return JobResult(job.report, body=shown, own=own, echo=resolved.echo, names=resolved.names)


def _respond(job: PageJob, body: bytes) -> JobResult:
    page = respond(replace(job.call, body=body), job.value)
    return JobResult(job.report, body=dump(page.body).encode(), change=(page.id, page.value) if page.id else None)


def request_too_large(limit: int) -> ApiError:
    """Return the error for a request body of more than ``limit`` bytes."""
    message = f"The request body is too large: got more than {limit} bytes (toolsim_max_body_bytes)."
    return ApiError(message, "invalid_request_error", "request_too_large", status=413)


def answer_too_large(limit: int) -> ApiError:
    """Return the error for an answer of more than ``limit`` bytes."""
    message = f"The backend's answer has more than {limit} bytes (toolsim_max_body_bytes)."
    return ApiError(message, code="backend_bad_answer", status=502)


def _rewrite_answer(job: AnswerJob, *, long_budget: bool) -> JobResult:
    try:
        content = decoded(job.data, job.encoding, job.limit)
    except BodyTooLarge:
        return JobResult(job.report, answer_too_large(job.limit))
    except ValueError as problem:
        return JobResult(job.report, ApiError(f"The backend's answer cannot be decoded: {problem}", status=502))
    seconds = PATIENT_SECONDS if long_budget else BUDGET_SECONDS
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
        return JobResult(job.report, passes=True)
    passed, waits = len(emitted), rewriter.waits
    if waits is not None:
        chunks += rewriter.conclude()
        reasons = [waits]
    names = output_names(rewriter.final) if job.plan.form.id else None
    done = JobResult(
        job.report, status=rewriter.status, content_type=rewriter.content_type, body=b"".join(chunks), names=names
    )
    if not (job.with_events or reasons):
        return done
    return replace(done, events=tuple(emitted), retry=reasons[0] if reasons else None, withheld=len(emitted) - passed)
