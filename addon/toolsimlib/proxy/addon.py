"""The addon: mitmproxy's hooks, in request order. The decisions are made elsewhere.

``route`` says where a request goes, ``BuiltinBackend`` runs a backend in this process if an option names one,
``Exchange`` carries one request and its answer, and ``cut`` ends answers on our own terms.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace

from mitmproxy import ctx
from mitmproxy.addonmanager import Loader
from mitmproxy.connection import Client
from mitmproxy.exceptions import OptionsError
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy.mode_specs import ProxyMode, ReverseMode

from toolsimlib.pages.topic import Conversations
from toolsimlib.plan import FIND_TOOLS, Policy
from toolsimlib.proxy import counting, resend, route, startup
from toolsimlib.proxy.background.edge import BackgroundAnswers
from toolsimlib.proxy.builtin import BuiltinBackend, check_together
from toolsimlib.proxy.circle import LOOP, VIA, Connections, Via
from toolsimlib.proxy.closing import close
from toolsimlib.proxy.cors import add_cors, cors_headers
from toolsimlib.proxy.doors import Doors, with_names
from toolsimlib.proxy.exchange import OPEN, Exchange
from toolsimlib.proxy.head import authorize, by_name, error_response
from toolsimlib.proxy.incoming import incoming
from toolsimlib.proxy.jobs import Done, Job, is_heavy, run
from toolsimlib.proxy.known import KnownBackends
from toolsimlib.proxy.mcp_servers import Servers
from toolsimlib.proxy.memory import Memory, partition_of
from toolsimlib.proxy.mitmproxy12 import installing, web
from toolsimlib.proxy.mitmproxy12.connect import ConnectTimeout
from toolsimlib.proxy.mitmproxy12.heap import Heap
from toolsimlib.proxy.notes import PAGE, is_stored, policy_for
from toolsimlib.proxy.options import table
from toolsimlib.proxy.options.policy import policy_fields
from toolsimlib.proxy.options.settings import Limits, Settings, parse
from toolsimlib.proxy.part import Part, part_of
from toolsimlib.proxy.recognise import Recogniser
from toolsimlib.proxy.remembering import Remembering
from toolsimlib.proxy.reporting import metrics
from toolsimlib.proxy.reporting.greeting import Greeting
from toolsimlib.proxy.reporting.log import Log
from toolsimlib.proxy.reporting.metrics import Metrics
from toolsimlib.proxy.rounds import Rounds
from toolsimlib.proxy.slices import PAUSE_SECONDS
from toolsimlib.proxy.streamed import StreamedAnswer
from toolsimlib.proxy.worker import Crew
from toolsimlib.report import Report
from toolsimlib.wire.dialect import Api

logger = logging.getLogger(__name__)

# Long enough to be rare, short enough for clients that give up after 30 s without an event.
KEEPALIVE_SECONDS = 10.0


class ToolSim:
    """Function calling for text-only backends.

    ``keepalive``: seconds after which a client gets a keep-alive while a call is held back.
    ``alone``: nobody else waits for this thread, so each hook does all of its work at once.
    ``by_hand``: full names of options that count as set by hand though they may be at their default.
    """

    def __init__(
        self, *, keepalive: float = KEEPALIVE_SECONDS, alone: bool = False, by_hand: Collection[str] = ()
    ) -> None:
        self._keepalive = keepalive
        self._crew = None if alone else Crew()
        self._by_hand = frozenset(by_hand)
        self._settings = Settings(limits=Limits(keepalive))
        self._modes: list[ProxyMode] = []
        self._metrics = Metrics()
        self._log = Log()
        self._builtin = BuiltinBackend()
        self._greeting = Greeting(self._builtin)
        self._connections = Connections()
        self._connect_timeout = ConnectTimeout()
        self._doors = Doors()
        self._via = Via()
        self._rounds = Rounds(keepalive)
        self._servers = Servers()
        self._conversations = Conversations()
        self._memory = Memory()
        self._background = BackgroundAnswers(self._memory, self._rounds, self._servers, self._do, self._finished)
        self._remembering = Remembering(self._memory, self._do, self._background)
        self._known = KnownBackends()
        self._recogniser = Recogniser(self._known)
        # Loaded with this one: their hooks are called too, each after ours.
        self.addons = [self._connections, self._connect_timeout, self._doors, self._recogniser]
        self.addons += [self._servers.approve, Heap()]
        self._is_running = False

    def load(self, loader: Loader) -> None:
        """Register the options. Raises OptionsError if one was given wrongly: better no proxy than a bare one."""
        for warning in table.register(loader, os.environ):
            logger.warning(warning)
        if problems := startup.take_problems(loader.master.options):
            for problem in problems:
                logger.error(problem)
            raise OptionsError("\n".join(problems))  # type: ignore[no-untyped-call]
        web.show_comments(loader.master.options)
        installing.check()
        installing.install()

    def configure(self, updated: Iterable[str]) -> None:
        """Parse the options. Raises OptionsError for a bad value."""
        updated = set(updated)
        if updated & {"termlog_verbosity", "rfile", table.PREFIX + "log"}:
            self._log.configure(ctx.options.toolsim_log)
        if not any(name.startswith(table.PREFIX) or name in ("mode", "listen_host") for name in updated):
            return
        modes = [ProxyMode.parse(mode) for mode in ctx.options.mode]
        hosts = [mode.listen_host(ctx.options.listen_host) for mode in modes]
        settings = with_names(parse(ctx.options, keepalive=self._keepalive), hosts)
        check_together(settings, hosts)
        self._connect_timeout.seconds = settings.limits.connect_timeout
        self._recogniser.key, self._recogniser.is_open = settings.upstream_key, settings.policy.engine == "auto"
        self._settings, self._doors.settings, self._modes = settings, settings, modes
        self._memory.configure(settings.store)
        self._background.settings = settings
        self._servers.update(settings.mcp)
        if settings.metrics_labels != self._metrics.labels:
            self._metrics = Metrics(settings.metrics_labels)
        is_reverse = any(isinstance(mode, ReverseMode) for mode in modes)
        if self._settings.needs_lazy_connections(is_reverse) and ctx.options.connection_strategy == "eager":
            ctx.options.update(connection_strategy="lazy")  # type: ignore[no-untyped-call]
        if self._is_running:
            self._builtin.update(self._settings, self._modes)

    def running(self) -> Awaitable[None]:
        """Start the built-in backend. Not async: a reload of the script calls it without waiting."""
        self._is_running = True
        web.widen_comments(getattr(ctx.master, "app", None))
        started = self._builtin.start(self._settings, self._modes)
        self._greeting.start(self._settings, started)
        self._servers.start()
        return started

    def done(self) -> Awaitable[None]:
        """Stop it. Not async, for the same reason; at mitmproxy's end the returned task is awaited."""
        self._is_running = False
        installing.uninstall()
        self._log.restore()
        self._greeting.stop()
        if self._crew is not None:
            self._crew.stop()
        return self._builtin.stop(self._stopped(self._rounds.stop()))

    def requestheaders(self, flow: HTTPFlow) -> None:
        """Route a request, and let it through as it arrives unless its body has to be read."""
        reached_at = self._doors.take_host(flow)
        if flow.response is not None and not is_stored(flow):
            return
        part = part_of(flow)
        if part is not None and flow.live:
            # It was routed when it was the client's own request.
            flow.is_replay = None
            flow.request.stream = False
            self._open(flow, part.report, None, part)
            return
        resent = resend.Resent(flow) if resend.is_resent(flow) else None
        request, client = flow.request, flow.client_conn
        asked = incoming(flow, reached_at=reached_at, has_proxy_key=self._doors.take_key(flow))
        via = asked.headers.get(VIA, "")
        has_passed = resent is None and self._via.has_passed(via, client)
        if has_passed or self._connections.is_circle(client):
            flow.response = error_response(LOOP)
            return
        needs_owner = self._memory.is_on or self._servers.is_used
        partition = partition_of(request.headers.fields) if needs_owner else ""
        self._servers.begin(flow, partition)
        decision = route.decide(asked, self._settings, self._builtin.port)
        if isinstance(decision, route.Answer):
            flow.response = self._answer(decision)
            if decision.page:
                flow.metadata[PAGE] = decision.page
            return
        if isinstance(decision, route.Serve):
            # A body that has to be read, and bounded: the exchange does that.
            request.stream = False
            self._remembering.begin(flow, self._open(flow, Report(), resent, None), partition)
            return
        if isinstance(decision, route.Forward):
            target = decision.upstream
            request.scheme, request.host, request.port = target.scheme, target.host, target.port
            request.path = decision.path
        authorize(request.headers, decision.authorization)
        is_named = isinstance(decision, route.Forward) or isinstance(client.proxy_mode, ReverseMode)
        if decision.to_builtin:
            self._builtin.admit(flow)
        elif is_named and flow.live:
            request.headers[VIA] = self._via.signed(via, client)
        api = route.api_of(request.method, request.path, decision.action)
        if api or route.endpoint(request.path):
            # Whatever ``stream_large_bodies`` says: the body has to be read.
            request.stream = False
            report = part.report if part is not None else Report()
            report.client = api.name if api else ""
            exchange = self._open(flow, report, resent, part)
            exchange.action = decision.action
            if part is None and api is not None and api.is_kept:
                self._remembering.begin(flow, exchange, partition)
            # Only a backend that the operator named is asked who it is.
            exchange.may_ask = api is not None and is_named and not decision.to_builtin
        else:
            request.stream = True

    def request(self, flow: HTTPFlow) -> Awaitable[None] | None:
        """Rewrite a request: at once, or awaited if that would take long."""
        exchange = OPEN.get(flow.id)
        if exchange is not None and exchange.memory is not None and exchange.memory.resource is not None:
            return self._remembering.serve(flow, exchange)
        api = route.api_of(flow.request.method, flow.request.path, exchange.action if exchange else None)
        if exchange is None or api is None or (flow.response is not None and not is_stored(flow)):
            return None
        if exchange.resent is not None:
            exchange.resent.give_body(flow)
        exchange.clocks.backend_active()
        if self._remembering.take(flow, exchange):
            return self._recalled(flow, exchange, api)
        return self._rewrite(flow, exchange, api)

    async def _recalled(self, flow: HTTPFlow, exchange: Exchange, api: Api) -> None:
        await self._remembering.recall(flow, exchange)
        if flow.response is None and exchange.memory is not None and exchange.memory.in_background:
            await self._background.begin(flow, exchange, api, self._policy(flow))
        elif flow.response is None and (work := self._rewrite(flow, exchange, api)) is not None:
            await work

    def _rewrite(self, flow: HTTPFlow, exchange: Exchange, api: Api) -> Awaitable[None] | None:
        part = exchange.part
        policy = part.policy if part is not None and part.policy is not None else self._policy(flow)
        may_take_rounds = (policy.asks_again or self._servers.is_used) and not exchange.action
        if may_take_rounds and part is None and self._hand_over(flow, exchange, api, policy):
            return None
        if policy.catalog_budget and (part is None or FIND_TOOLS not in part.asks):
            policy = replace(policy, catalog_budget=0)
        job = exchange.request_job(flow, api.name, policy)
        if job is not None:
            job = replace(job, is_round=True) if part is not None else self._remembering.ask_for_own(exchange, job)

        def take(done: Done) -> None:
            exchange.take_request(flow, done)
            self._remembering.take_own(exchange, done)
            counting.count_at_once(exchange, flow)
            if done.rewritten is not None:
                self._locate(exchange, done)

        return self._done(job, take) if job is not None else None

    def toolsim_resend(self, flow: HTTPFlow) -> Awaitable[None] | None:
        """Rewrite a request once more, without what its backend has refused."""
        exchange = OPEN.get(flow.id)
        if exchange is None or exchange.resending is None:
            return None
        return self._done(exchange.resending, lambda done: exchange.take_resent(flow, done))

    def responseheaders(self, flow: HTTPFlow) -> None:
        """Decide how an answer reaches the client."""
        response = flow.response
        assert response is not None
        exchange = OPEN.get(flow.id)
        if exchange is not None or route.endpoint(flow.request.path):
            add_cors(response.headers, exchange.cors if exchange is not None else self._cors(flow))
        if exchange is not None:
            exchange.begin(flow)
        elif response.raw_content is None:
            response.stream = True

    async def toolsim_store(self, answer: StreamedAnswer) -> None:
        """Store a streamed answer before its client gets the end."""
        await self._remembering.store_streamed(answer)

    async def toolsim_pause(self, _answer: StreamedAnswer) -> None:
        """Let other work continue between two slices of an answer."""
        await asyncio.sleep(PAUSE_SECONDS)

    def response(self, flow: HTTPFlow) -> Awaitable[None] | None:
        """Rewrite a whole answer, as in ``request``; in any case the exchange is over then."""
        exchange = OPEN.get(flow.id)
        if exchange is None:
            if PAGE in flow.metadata:
                web.hide(flow)
            return None

        def finish(done: Done | None) -> None:
            if done is not None:
                exchange.take_answer(flow, counting.compacted(exchange, done))
            assert flow.response is not None
            add_cors(flow.response.headers, exchange.cors)
            self._close(flow.id, flow, flow.response.status_code)

        if exchange.action == "input_tokens":
            counting.take_count(exchange, flow)
        elif (job := exchange.answer_job(flow)) is not None:
            return self._kept(exchange, job, finish) if job.plan.form.id else self._done(job, finish)
        finish(None)
        return None

    def error(self, flow: HTTPFlow) -> None:
        """Forget an exchange that was aborted."""
        self._close(flow.id, flow, None)

    def client_disconnected(self, client: Client) -> None:
        """Clean up after a disconnected client, in case no other hook fired."""
        for flow_id, exchange in list(OPEN.items()):
            if exchange.client_id == client.id:
                self._close(flow_id, None, None)

    # -- small parts of the hooks --

    async def _stopped(self, rounds: Awaitable[None] | None) -> None:
        await self._background.stop()
        if rounds is not None:
            await rounds
        await self._servers.stop()
        await self._memory.close()

    def _done(self, job: Job, take: Callable[[Done], None]) -> Awaitable[None] | None:
        """Do a job and take its result: at once, or awaited if others would have to wait for it."""
        if self._crew is None or not is_heavy(job):
            take(run(job))
            return None
        return self._awaited(job, take)

    async def _awaited(self, job: Job, take: Callable[[Done], None]) -> None:
        take(await self._do(job))

    async def _do(self, job: Job) -> Done:
        return await self._crew.run(job) if self._crew is not None and is_heavy(job) else run(job)

    async def _kept(self, exchange: Exchange, job: Job, take: Callable[[Done], None]) -> None:
        take(await self._remembering.store_whole(exchange, await self._do(job)))

    def _finished(self, report: Report, status: int | None, seconds: float) -> None:
        self._log.turn(report, status, seconds)
        self._metrics.count(report, status, seconds)

    def _answer(self, decision: route.Answer) -> Response:
        if decision.error is not None:
            return error_response(decision.error, decision.headers)
        if decision.page == "metrics":
            in_flight = sum(exchange.is_turn for exchange in OPEN.values())
            more = [*self._memory.families(), *self._background.families()]
            return Response.make(200, self._metrics.text(in_flight, more), {"content-type": metrics.CONTENT_TYPE})
        return Response.make(200, headers=dict(decision.headers))

    def _locate(self, exchange: Exchange, done: Done) -> None:
        exchange.topic = topic = done.topic
        if topic is not None and (exchange.part is None or not exchange.part.is_aside):
            exchange.place = topic.where(self._conversations.number(topic))

    def _policy(self, flow: HTTPFlow) -> Policy:
        is_builtin = self._builtin.is_at(flow.request.host, flow.request.port)
        changed = ctx.options.has_changed
        given = {
            option.name: option.default
            for option in table.OPTIONS
            if option.full_name in self._by_hand or changed(option.full_name)  # type: ignore[no-untyped-call]
        }
        by_hand = policy_fields(given)
        return policy_for(flow, self._settings.policy, by_hand, is_builtin=is_builtin)

    def _cors(self, flow: HTTPFlow) -> dict[str, str]:
        return cors_headers(self._settings.origins, by_name(flow.request.headers).get("origin"))

    def _hand_over(self, flow: HTTPFlow, exchange: Exchange, api: Api, policy: Policy) -> bool:
        """Send a request to the runner if its answer may take several rounds; return whether it goes there."""
        if not flow.live or exchange.is_request_too_large:
            return False
        memory, bounds = exchange.memory, self._settings.bounds
        keep = self._remembering.store_function(exchange) if memory is not None else None
        hosting = self._servers.hosting(self._settings.origins, flow)
        handed_over = self._rounds.take(flow, api, policy, bounds, exchange.report, hosting, memory, keep)
        if handed_over is None:
            return False
        exchange.hand_over(handed_over)
        return True

    def _open(self, flow: HTTPFlow, report: Report, resent: resend.Resent | None, part: Part | None) -> Exchange:
        resend.forget(flow)
        request = flow.request
        exchange = OPEN[flow.id] = Exchange(
            report,
            client_id=flow.client_conn.id,
            cors=self._cors(flow),
            limits=self._settings.limits,
            backend=self._known.at(request.scheme, request.host, request.port, route.prefix(request.path)),
            part=part,
        )
        exchange.resent = resent
        return exchange

    def _close(self, flow_id: str, flow: HTTPFlow | None, status: int | None) -> None:
        exchange = OPEN.pop(flow_id, None)
        if exchange is not None and exchange.handed_over is not None:
            exchange.handed_over.take_back(flow, exchange.recorder)
        if exchange is not None and exchange.is_turn:
            close(exchange, flow, status, known=self._known, log=self._log, metrics=self._metrics)
