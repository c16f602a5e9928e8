"""Sends a request with a feature that its backend might reject, and resends it without the feature after a rejection.

Some servers accept ``tools``, some can enforce a JSON format, and a server may offer one, two or three APIs. Only its
answers show which features it supports for a model. So if an option is set to ``auto``, toolsim first sends a request
that uses the feature. If the backend responds with an error that names the feature, toolsim rewrites the client's
request without the feature. If the backend rejects the path, toolsim rewrites the request for the next API. It then
resends the request within the same exchange (``mitmproxy12.fallback_resend``), so that the client sees only one answer.
Over HTTP/2, a request cannot be resent, so the client receives the error. toolsim remembers and logs each rejected
feature and path.

A request is resent only if the error shows that the backend did not process it. An error that rejects a feature or a
path shows this.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import override

from mitmproxy.http import HTTPFlow, Response

from toolsim.core.plan import Feature as BackendFeature
from toolsim.core.plan import Plan
from toolsim.core.policy import ApiName
from toolsim.core.report import Report, entry
from toolsim.proxy.backend_registry import Backend
from toolsim.proxy.decoding import decoded
from toolsim.proxy.exchange import Exchange, Feature
from toolsim.proxy.jobs import RequestJob, RequestResult
from toolsim.proxy.metadata import NOTE, policy_as_dict
from toolsim.request.engine import is_refusal
from toolsim.wire.errors import NO_PATH, rejects_path
from toolsim.wire.json_codec import parse_object

logger = logging.getLogger(__name__)

# Maximum size, in bytes, of an error response that is inspected. An error that names a feature is short.
_MAX_ERROR_BYTES = 1024 * 1024
_LOGGED_CHARACTERS = 300
_WARNINGS: Mapping[BackendFeature, str] = {
    "format": (
        "toolsim: the backend does not accept a JSON format for %s, so the prompt now requests the format instead. The "
        "backend's error: %s"
    ),
    "files": "toolsim: the backend does not accept files for %s, so the prompt now only names the files. The "
    "backend's error: %s",
    "tools": "toolsim: the backend does not accept tools for %s, so the prompt now lists the tools instead. The "
    "backend's error: %s",
    "constraint": (
        "toolsim: the backend cannot enforce calls for %s, so the prompt now requests them instead. The "
        "backend's error: %s"
    ),
}


Fields = tuple[tuple[bytes, bytes], ...]
"""The header fields of a request, as mitmproxy stores them."""


@dataclass(frozen=True, slots=True)
class _Error:
    status: int
    text: str


class Attempt(Feature):
    """A rewritten request with an optional feature, and the request that replaces it if the feature is rejected."""

    def __init__(self, job: RequestJob, headers: Fields) -> None:
        self._job = job
        """The job that rewrote the request."""
        self._headers = headers
        """The request's headers before it was rewritten."""
        self.second: RequestJob | None = None
        """The job that rewrites the request without the rejected feature, or None if the request is not resent."""
        self.final: Response | None = None
        """The backend's first error, if the backend has rejected the paths of all APIs; otherwise, None.

        The client receives this error as its answer.
        """
        self._warnings: list[str] = []
        """The warnings about features that the backend has rejected so far, for the report."""
        self._rejected: list[ApiName] = []
        self.first_plan: Plan | None = None
        """The plan of the request that the backend answered with the first error."""
        self._first: Response | None = None

    @override
    def on_response_start(self, exchange: Exchange, flow: HTTPFlow) -> bool:
        response = flow.response
        assert response is not None
        if 200 <= response.status_code < 300:
            self._note_api(exchange)
            return False
        is_present = response.raw_content is not None
        plan = exchange.plan or exchange.checked
        has_features = plan is not None and bool(plan.attempts)
        may_lack_path = self._may_lack_path and response.status_code in NO_PATH
        if is_present or not (has_features or may_lack_path):
            return False
        # The body is read completely, because it shows whether the backend rejected only the optional feature.
        response.stream = False
        return True

    @property
    def _may_lack_path(self) -> bool:
        return bool(self._job.fallbacks or self._rejected)

    def is_refused(self, exchange: Exchange, flow: HTTPFlow, *, can_resend: bool) -> bool:
        """Return whether a complete response is a rejection that the client must not receive.

        If ``can_resend`` is true, the response to the ``second`` request replaces the rejection. If no API is left to
        try, the ``final`` error replaces it.
        """
        error = _error(flow)
        if error is None:
            return False
        plan, backend, job = exchange.plan or exchange.checked, exchange.backend, self._job
        refused = _refused(error, plan) if plan is not None else []
        if plan is not None:
            for feature in refused:
                backend.refuses(plan.backend_model, feature)
        if not refused and not self._lacks_path(error, exchange):
            self._note_api(exchange)
            return False
        before = exchange.report
        report = Report(client=job.api_name, round=before.round, part_of=before.part_of)
        self._warnings += [entry("REFUSED", feature) for feature in refused]
        if not refused:
            self._warnings.append(entry("NO_API", self._api(exchange)))
            self._rejected.append(self._api(exchange))
            if self._first is None:
                self._first, self.first_plan = flow.response, plan
            if not job.fallbacks:
                self.final = self._first
                backend.has_none()
                return True
            job = replace(job, policy=replace(job.policy, backend=job.fallbacks[0]), fallbacks=job.fallbacks[1:])
        if not can_resend:
            # The client receives this error, but later requests use the next API.
            if self._rejected:
                backend.rejects(self._rejected)
            return False
        report.warnings.extend(self._warnings)
        self.second = replace(job, report=report, refused=frozenset(backend.refused))
        return True

    def take_resent(self, exchange: Exchange, flow: HTTPFlow, done: RequestResult) -> None:
        """Replace the flow's request with the request that the ``second`` job rewrote.

        If it turns out that the client's request can be sent unchanged, restore the client's request.
        """
        assert self.second is not None
        self._job, self.second = self.second, None
        request = flow.request
        request.headers.fields, request.path, request.raw_content = self._headers, self._job.path, self._job.data
        flow.response = exchange.plan = None
        exchange.take_request(flow, done)
        if exchange.plan is not None and NOTE in flow.metadata:
            flow.metadata[NOTE]["options"] = policy_as_dict(exchange.plan.policy)

    def _api(self, exchange: Exchange) -> ApiName:
        """Return the API through which the request was sent to the backend."""
        return exchange.plan.backend if exchange.plan is not None else self._job.api_name

    def _lacks_path(self, error: _Error, exchange: Exchange) -> bool:
        if not self._may_lack_path or error.status not in NO_PATH:
            return False
        model = self._job.policy.model_at_backend(exchange.report.model)
        return rejects_path(error.status, parse_object(error.text.encode()), model)

    def _note_api(self, exchange: Exchange) -> None:
        """Remember which APIs the backend accepted and rejected."""
        if self._rejected:
            exchange.backend.has(self._api(exchange), self._rejected)

    @override
    def on_close(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        if exchange.plan is not None:
            _note_missed_calls(exchange.backend, exchange.plan, exchange.report)


def _note_missed_calls(backend: Backend, plan: Plan, report: Report) -> None:
    """If a backend received native tools but answered with a call as text, remember that it does not parse calls."""
    missed = any(verdict.startswith("call ") for block in report.blocks for verdict in block["verdicts"])
    if missed and "tools" in plan.attempts:
        backend.refuses(plan.backend_model, "tools")


def _error(flow: HTTPFlow) -> _Error | None:
    """Return a backend's error, or None if the response is not an error or cannot be decoded."""
    response = flow.response
    if response is None or 200 <= response.status_code < 300:
        return None
    try:
        encoding = response.headers.get("content-encoding", "")
        text = decoded(response.raw_content or b"", encoding, _MAX_ERROR_BYTES).decode("utf-8", "replace")
    except ValueError:
        return None
    return _Error(response.status_code, text)


def _refused(error: _Error, plan: Plan) -> list[BackendFeature]:
    refused = [feature for feature in plan.attempts if is_refusal(feature, error.status, error.text)]
    for feature in refused:
        excerpt = " ".join(error.text.split())[:_LOGGED_CHARACTERS]
        logger.warning(_WARNINGS[feature], plan.backend_model or "this model", excerpt)
    return refused
