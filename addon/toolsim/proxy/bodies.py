"""Rewrites the body of a request or an answer once it has arrived, in this process or in a worker process.

The *runner* (``rounds/``) creates answers that may take several requests to the backend.

request ──▶ stored data is loaded ──┬─▶ answered in the background
                                    ├─▶ passed to the runner if several rounds are possible
                                    └─▶ rewritten for its backend

answer  ──▶ rewritten if not streamed ──▶ retried as plain text if necessary ──▶ stored ──▶ sent; the exchange ends
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mitmproxy.http import HTTPFlow

from toolsim.core.plan import FIND_TOOLS
from toolsim.core.policy import Policy
from toolsim.proxy import route
from toolsim.proxy.attempt import Attempt
from toolsim.proxy.context_loader import StoredContextLoader
from toolsim.proxy.cors import add_cors
from toolsim.proxy.exchange import Exchange, Exchanges
from toolsim.proxy.jobs import AnswerResult, PluginJob, PluginResult, RequestResult
from toolsim.proxy.mcp_servers import Servers
from toolsim.proxy.metadata import builtin_policy, is_recorded, is_stored, recorded_policy
from toolsim.proxy.options import table
from toolsim.proxy.options.profiles import profile_warning
from toolsim.proxy.options.settings import Settings, policy_fields
from toolsim.proxy.rounds import Rounds
from toolsim.proxy.windows import with_windows
from toolsim.proxy.worker import WorkQueue
from toolsim.rounds.hosted_calls import has_search
from toolsim.wire.api import Api
from toolsim.wire.json_codec import dump, parse_object, read_body
from toolsim.wire.json_fields import string

if TYPE_CHECKING:
    from toolsim.proxy.prose_fallback import ProseFallbacks

logger = logging.getLogger(__name__)


def model_in(body: bytes) -> str | None:
    """Return the model that a request names, or "" if it names none. Return None if the body is not a JSON object."""
    document = read_body(body)
    return string(document.get("model")) if document is not None else None


@dataclass(frozen=True, slots=True)
class BodyRewriter:
    """Rewrites requests and non-streamed answers according to the settings."""

    settings: Settings
    exchanges: Exchanges
    work: WorkQueue
    servers: Servers
    rounds: Rounds
    context_loader: StoredContextLoader
    _doubted: set[tuple[str, str]] = field(default_factory=set)
    """The pairs of profile and engine for which a warning was logged."""

    def request(self, flow: HTTPFlow, exchange: Exchange) -> Awaitable[None] | None:
        """Rewrite a request whose body has arrived. If the result is an awaitable, the caller has to await it."""
        context = exchange.stored_context
        if context is not None and context.resource is not None:
            return self.context_loader.serve(flow, exchange)
        api = route.api_of(flow.request.method, flow.request.path, exchange.action)
        if api is None or (flow.response is not None and not is_stored(flow)):
            return None
        if exchange.replay is not None:
            exchange.replay.give_body(flow)
        exchange.timeouts.backend_active()
        if exchange.choose is not None and not exchange.is_request_too_large:
            body, limit = flow.request.raw_content or b"", exchange.limits.max_request_bytes
            encoding = flow.request.headers.get("content-encoding", "")
            job = PluginJob(model_in, data=body, limit=limit, encoding=encoding, owner=exchange.owner)
            return self.work.submit(job, lambda done: self._choose(flow, exchange, api, done))
        return self._follow(flow, exchange, api)

    def _choose(self, flow: HTTPFlow, exchange: Exchange, api: Api, done: PluginResult) -> Awaitable[None] | None:
        """Direct a request to the backend of its model, then continue processing it."""
        choose, exchange.choose = exchange.choose, None
        if done.error is not None:
            flow.response = exchange.refuse(done.error)
            return None
        assert choose is not None
        assert isinstance(done.read, str | None)
        waits = choose(exchange, done.read)
        return self._follow(flow, exchange, api) if waits is None else self._chosen(flow, exchange, api, waits)

    async def _chosen(self, flow: HTTPFlow, exchange: Exchange, api: Api, waits: Awaitable[None]) -> None:
        await waits
        if (work := self._follow(flow, exchange, api)) is not None:
            await work

    def _follow(self, flow: HTTPFlow, exchange: Exchange, api: Api) -> Awaitable[None] | None:
        """Load any stored data to which a request refers, then rewrite the request for its backend."""
        if flow.response is not None and not is_stored(flow):
            return None
        if exchange.stored_context is not None and self.context_loader.take(flow, exchange):
            return self._recalled(flow, exchange, api)
        return self._rewrite(flow, exchange, api)

    async def _recalled(self, flow: HTTPFlow, exchange: Exchange, api: Api) -> None:
        await self.context_loader.recall(flow, exchange)
        context = exchange.stored_context
        if flow.response is not None:
            return
        if context is not None and context.in_background:
            policy = self._policy(flow, exchange)
            await self.context_loader.background.answers.begin(flow, exchange, api, policy, self.settings)
        elif (work := self._rewrite(flow, exchange, api)) is not None:
            await work

    def _rewrite(self, flow: HTTPFlow, exchange: Exchange, api: Api) -> Awaitable[None] | None:
        asked = exchange.round
        policy = asked.policy if asked is not None and asked.policy is not None else self._policy(flow, exchange)
        may_take_rounds = asked is None and exchange.action is None
        if may_take_rounds and self._hand_over(flow, exchange, api, policy):
            return None
        if policy.catalog_budget and (asked is None or FIND_TOOLS not in asked.retries_allowed):
            # Without further rounds, the model could not look up omitted tools, so the manifest contains all tools.
            policy = replace(policy, may_look_up=False)
        job = exchange.request_job(flow, api.name, policy)
        if job is None:
            return None
        attempt = Attempt(job, flow.request.headers.fields)
        return self.work.submit(job, lambda done: self._take(flow, exchange, attempt, done))

    def _take(self, flow: HTTPFlow, exchange: Exchange, attempt: Attempt, done: RequestResult) -> None:
        exchange.take_request(flow, done)
        # An edited request is not rewritten again, because rewriting would lose the operator's edits.
        if not exchange.is_edited:
            exchange.attach(attempt)
        if exchange.plan is not None:
            self._doubt(exchange.plan.policy)

    def _doubt(self, used: Policy) -> None:
        """Log a warning if the applied profile might not suit the engine. Warn only once per profile and engine."""
        if not used.profile or (used.profile, used.engine) in self._doubted:
            return
        self._doubted.add((used.profile, used.engine))
        for profile in self.settings.policy.known_profiles:
            if profile.name == used.profile and (why := profile_warning(profile, used.engine)):
                logger.warning("toolsim: the profile %s applies, but %s", profile.name, why)

    def _hand_over(self, flow: HTTPFlow, exchange: Exchange, api: Api, policy: Policy) -> bool:
        """Pass a request to the runner if its answer may take several rounds. Return whether it was passed on."""
        if not flow.live or exchange.is_request_too_large:
            return False
        body = flow.request.raw_content or b""
        if not (self.settings.mcp.is_used or policy.may_need_rounds(body) or has_search(body)):
            return False
        store = self.context_loader.store_function(exchange) if exchange.stored_context is not None else None
        mcp_context = exchange.mcp_context(self.servers.context(self.settings.origins, flow, exchange.owner))
        return self.rounds.take(flow, exchange, api, policy, self.settings.bounds, mcp_context, store)

    def _policy(self, flow: HTTPFlow, exchange: Exchange) -> Policy:
        """Return the operator's policy.

        For a flow that was loaded from a file, return the recorded policy, except for the options that the operator set
        explicitly.
        """
        policy = self._operators_policy(flow, exchange)
        return replace(policy, backend_model=exchange.backend_model) if exchange.backend_model else policy

    def _operators_policy(self, flow: HTTPFlow, exchange: Exchange) -> Policy:
        if exchange.backend.is_builtin:
            return builtin_policy(self.settings.policy)
        if not is_recorded(flow):
            return self.settings.policy
        given = {option.name: option.default for option in table.OPTIONS if option.name in self.settings.by_hand}
        return recorded_policy(flow, self.settings.policy, policy_fields(given))

    def resend(self, flow: HTTPFlow, exchange: Exchange) -> Awaitable[None] | None:
        """Rewrite a request again without the feature or API that its backend rejected.

        If the result is an awaitable, the caller has to await it. If the backend has rejected all APIs, answer the
        request with the backend's first error.
        """
        attempt = exchange.find(Attempt)
        if attempt is not None and attempt.final is not None:
            flow.response, exchange.plan = attempt.final, attempt.first_plan
        if attempt is None or attempt.second is None:
            return None
        return self.work.submit(attempt.second, lambda done: attempt.take_resent(exchange, flow, done))

    def ask(self, flow: HTTPFlow, exchange: Exchange) -> None:
        """Start another round for a streamed answer, if the answer needs one and another round is possible."""
        answer = exchange.streamed
        if answer is not None and answer.reason is not None:
            exchange.note_mismatch(answer.reason.fault.reason)
            answer.further = self._asking.ask(flow, exchange, answer.reason, exchange.report)

    @property
    def _asking(self) -> ProseFallbacks:
        # The module is imported on demand, because few answers need it.
        from toolsim.proxy.prose_fallback import ProseFallbacks

        return ProseFallbacks(self.rounds, self.settings.bounds, self._policy)

    def answer(self, flow: HTTPFlow, exchange: Exchange) -> Awaitable[None] | None:
        """Rewrite a non-streamed answer and end its exchange.

        If the result is an awaitable, the caller has to await it.
        """

        def finish(done: AnswerResult | None) -> None:
            if done is not None:
                exchange.take_answer(flow, done)
            assert flow.response is not None
            if exchange.cors:
                add_cors(flow.response.headers, exchange.cors)
            self.exchanges.close(flow, flow.response.status_code)

        if not exchange.is_turn and exchange.backend.is_named and flow.live and exchange.is_ours:
            return self._list_models(flow, exchange, finish)
        if (job := exchange.answer_job(flow)) is not None:
            return self.work.submit(job, lambda done: self._answered(flow, exchange, done, finish))
        finish(None)
        return None

    async def _list_models(
        self, flow: HTTPFlow, exchange: Exchange, finish: Callable[[AnswerResult | None], None]
    ) -> None:
        """Add context window sizes to a backend's list of models."""
        response = flow.response
        assert response is not None
        document = parse_object(response.get_content(strict=False) or b"") if response.status_code == 200 else None
        if document is not None:
            authorization = flow.request.headers.get("authorization", "")
            added = await with_windows(document, exchange.backend, authorization)
            if added is not None:
                response.content = dump(added).encode()
        finish(None)

    def _answered(
        self, flow: HTTPFlow, exchange: Exchange, done: AnswerResult, finish: Callable[[AnswerResult], None]
    ) -> Awaitable[None] | None:
        if (done.withheld and flow.live) or done.names is not None:
            return self._completed(flow, exchange, done, finish)
        finish(done)
        return None

    async def _completed(
        self, flow: HTTPFlow, exchange: Exchange, done: AnswerResult, finish: Callable[[AnswerResult], None]
    ) -> None:
        if done.withheld:
            done = await self._asking.whole(flow, exchange, done)
        finish(await self.context_loader.store_whole(exchange, done))
