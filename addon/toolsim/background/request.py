"""Parses a request for a background answer, and creates the job that generates the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from mitmproxy.http import HTTPFlow

from toolsim.core.errors import BadRequest
from toolsim.core.plan import AnswerForm, StoredAs
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.proxy.jobs import ROUNDS_OFF, in_own_shape
from toolsim.proxy.rounds import MAX_BODY_BYTES, Rounds
from toolsim.request.rewrite import prepare_for_store, read
from toolsim.rounds.hosted_calls import HostedCalls, McpContext
from toolsim.rounds.round_planner import RoundLimits, may_be_hosted, may_take_rounds
from toolsim.rounds.runner import RunnerJob
from toolsim.wire.api import Api
from toolsim.wire.apis import APIS
from toolsim.wire.json_codec import dump, read_body, unreadable
from toolsim.wire.responses.stored import Recalled, resolve


class BackgroundRequest(NamedTuple):
    """A parsed request for a background answer. ``body`` is the body of the request to the model."""

    form: AnswerForm
    body: bytes
    own: bytes
    """The items in the request itself, as a JSON array in stored form."""
    names: tuple[str, ...]
    """The IDs assigned to the items in the request itself."""


def read_request(client: ApiName, stored_as: StoredAs, data: bytes) -> BackgroundRequest:
    """Parse a request for a background answer. Raises BadRequest if the request is invalid or disables ``store``."""
    document = read_body(data)
    if document is None:
        raise BadRequest(unreadable(data))
    document = in_own_shape(document)
    form, asked = in_background(APIS[client], document, stored_as)
    own = resolve(document, Recalled())
    return BackgroundRequest(form, dump(asked).encode(), dump(own.own).encode(), own.names)


def in_background(client: Api, document: Mapping[str, Any], stored_as: StoredAs) -> tuple[AnswerForm, dict[str, Any]]:
    """Return the initial Response of a background answer, and the request to the model.

    The answer from the model is always streamed, because a stream shows that the backend is alive, and can also be
    stopped at any time. Raises BadRequest if the request is invalid or disables ``store``.
    """
    asked = {key: value for key, value in document.items() if key != "background"}
    request = prepare_for_store(read(client, asked, Report()), stored_as)
    if not request.form.id:
        message = (
            "'background' requires 'store' to be true, because an answer that is not stored cannot be retrieved later."
        )
        raise BadRequest(message, "background", "invalid_value")
    form = replace(request.form, echo={**request.form.echo, "background": True})
    return form, {**request.body, "stream": True}


def job_of(
    asked: BackgroundRequest,
    flow: HTTPFlow,
    owner: str,
    api: Api,
    policy: Policy,
    bounds: RoundLimits,
    mcp_context: McpContext | None,
    rounds: Rounds,
) -> RunnerJob:
    """Return the job that generates the answer to a request.

    Unlike the job of an ordinary answer, it runs at least one round, because no mitmproxy flow sends the request.
    """
    form, body = asked.form, asked.body
    policy = policy.for_model(form.model)
    report = Report(client=api.name, stream=form.stream, model=form.model)
    document: Mapping[str, Any] = {}
    may_take_more = False
    if len(body) > MAX_BODY_BYTES:
        mcp_context = None
        report.warnings += [ROUNDS_OFF] if policy.needs_rounds else []
    elif (found := read_body(body)) is not None:
        found = api.expand_opaque_items(found)
        document, request = found, api.read(found)
        is_hosted = mcp_context is not None and mcp_context.is_asked(body) and may_be_hosted(request, policy, bounds)
        is_hosted = is_hosted and mcp_context is not None and mcp_context.serves(found, policy, api)
        mcp_context = mcp_context if is_hosted else None
        may_take_more = is_hosted or may_take_rounds(request, policy)
    bounds = bounds if may_take_more else replace(bounds, rounds=1)
    calls = HostedCalls(mcp_context, api, document, policy, report, flow.id) if mcp_context is not None else None
    return RunnerJob(
        api, document, form, policy, rounds.asking(flow, owner, body, document), bounds, report, hosted=calls
    )
