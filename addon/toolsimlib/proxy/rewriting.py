"""What happens when the body of a request or of an answer is there: it is rewritten, here or in a worker.

request ──▶ recall what it refers to ──┬─▶ answered in the background
                                       ├─▶ handed over to the runner, which takes several rounds
                                       └─▶ rewritten for its backend

answer  ──▶ rewritten if it is whole ──▶ stored ──▶ sent, and the exchange is over
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow

from toolsimlib.plan import FIND_TOOLS, Policy
from toolsimlib.proxy import route
from toolsimlib.proxy.attempt import Attempt
from toolsimlib.proxy.background.edge import BackgroundAnswers
from toolsimlib.proxy.builtin import BuiltinBackend
from toolsimlib.proxy.cors import add_cors
from toolsimlib.proxy.counting import OtherAction, other_action
from toolsimlib.proxy.exchange import Exchange
from toolsimlib.proxy.exchanges import Exchanges
from toolsimlib.proxy.jobs import Done, Job
from toolsimlib.proxy.mcp_servers import Servers
from toolsimlib.proxy.memory import Remembered
from toolsimlib.proxy.metadata import is_stored, policy_for
from toolsimlib.proxy.options import table
from toolsimlib.proxy.options.policy import policy_fields
from toolsimlib.proxy.options.settings import Settings
from toolsimlib.proxy.remembering import Remembering
from toolsimlib.proxy.resend import Resent
from toolsimlib.proxy.rounds import RoundFlow, Rounds
from toolsimlib.proxy.work import Work
from toolsimlib.wire.dialect import Api


class Rewriting:
    """Rewrites requests and whole answers. ``by_hand``: full names of options that count as set by hand."""

    def __init__(
        self,
        exchanges: Exchanges,
        work: Work,
        builtin: BuiltinBackend,
        servers: Servers,
        rounds: Rounds,
        remembering: Remembering,
        background: BackgroundAnswers,
        by_hand: Collection[str],
    ) -> None:
        self.settings = Settings()
        """The current ones."""
        self._exchanges = exchanges
        self._work = work
        self._builtin = builtin
        self._servers = servers
        self._rounds = rounds
        self._remembering = remembering
        self._background = background
        self._by_hand = frozenset(by_hand)

    def request(self, flow: HTTPFlow, exchange: Exchange) -> Awaitable[None] | None:
        """Rewrite a request whose body is there; what is returned has to be awaited."""
        remembered = exchange.find(Remembered)
        if remembered is not None and remembered.resource is not None:
            return self._remembering.serve(flow, exchange)
        api = route.api_of(flow.request.method, flow.request.path, other_action(exchange))
        if api is None or (flow.response is not None and not is_stored(flow)):
            return None
        if (resent := exchange.find(Resent)) is not None:
            resent.give_body(flow)
        exchange.clocks.backend_active()
        if self._remembering.take(flow, exchange):
            return self._recalled(flow, exchange, api)
        return self._rewrite(flow, exchange, api)

    async def _recalled(self, flow: HTTPFlow, exchange: Exchange, api: Api) -> None:
        await self._remembering.recall(flow, exchange)
        remembered = exchange.find(Remembered)
        if flow.response is not None:
            return
        if remembered is not None and remembered.in_background:
            await self._background.begin(flow, exchange, api, self._policy(flow))
        elif (work := self._rewrite(flow, exchange, api)) is not None:
            await work

    def _rewrite(self, flow: HTTPFlow, exchange: Exchange, api: Api) -> Awaitable[None] | None:
        asked = exchange.find(RoundFlow)
        policy = asked.policy if asked is not None and asked.policy is not None else self._policy(flow)
        may_take_rounds = asked is None and other_action(exchange) is None
        if may_take_rounds and self._hand_over(flow, exchange, api, policy):
            return None
        if policy.catalog_budget and (asked is None or FIND_TOOLS not in asked.asks):
            # Without rounds the model could not look up the tools that are left out.
            policy = replace(policy, catalog_budget=0)
        job = exchange.request_job(flow, api.name, policy)
        return self._work.take(job, lambda done: exchange.take_request(flow, done)) if job is not None else None

    def _hand_over(self, flow: HTTPFlow, exchange: Exchange, api: Api, policy: Policy) -> bool:
        """Send a request to the runner if its answer may take several rounds; return whether it goes there."""
        if not (policy.asks_again or self._servers.is_used) or not flow.live or exchange.is_request_too_large:
            return False
        remembered, bounds = exchange.find(Remembered), self.settings.bounds
        keep = self._remembering.store_function(exchange) if remembered is not None else None
        hosting = self._servers.hosting(self.settings.origins, flow)
        handed_over = self._rounds.take(flow, api, policy, bounds, exchange.report, hosting, remembered, keep)
        if handed_over is None:
            return False
        handed_over.take(exchange)
        return True

    def _policy(self, flow: HTTPFlow) -> Policy:
        is_builtin = self._builtin.is_at(flow.request.host, flow.request.port)
        changed = ctx.options.has_changed
        given = {
            option.name: option.default
            for option in table.OPTIONS
            if option.full_name in self._by_hand or changed(option.full_name)  # type: ignore[no-untyped-call]
        }
        return policy_for(flow, self.settings.policy, policy_fields(given), is_builtin=is_builtin)

    def resend(self, flow: HTTPFlow, exchange: Exchange) -> Awaitable[None] | None:
        """Rewrite a request once more, without what its backend has refused; returns as ``request``."""
        attempt = exchange.find(Attempt)
        if attempt is None or attempt.again is None:
            return None
        return self._work.take(attempt.again, lambda done: attempt.take_again(exchange, flow, done))

    def answer(self, flow: HTTPFlow, exchange: Exchange) -> Awaitable[None] | None:
        """Rewrite an answer that is whole, and end its exchange; returns as ``request``."""

        def finish(done: Done | None) -> None:
            if done is not None:
                exchange.take_answer(flow, done)
            assert flow.response is not None
            add_cors(flow.response.headers, exchange.cors)
            self._exchanges.close(flow, flow.response.status_code)

        other = exchange.find(OtherAction)
        if other is not None and other.action == "input_tokens":
            other.take_count(exchange, flow)
        elif (job := exchange.answer_job(flow)) is not None:
            return self._stored(exchange, job, finish) if job.plan.form.id else self._work.take(job, finish)
        finish(None)
        return None

    async def _stored(self, exchange: Exchange, job: Job, then: Callable[[Done], None]) -> None:
        then(await self._remembering.store_whole(exchange, await self._work.do(job)))
