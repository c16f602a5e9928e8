"""Dispatches a request once its headers have arrived: forwards it, answers it, or passes it through.

1. A round keeps the route of its client's request.
2. A request that has already passed through this proxy is rejected.
3. The module ``route`` decides how to handle the request, based on its headers. This module changes the flow
   accordingly.
4. A request that toolsim handles is assigned an exchange with the features that it needs. If the route depends on the
   model, the exchange is opened first, and the flow is changed once its body has arrived (``Exchange.choose``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy.mode_specs import ReverseMode

from toolsim.core.report import Report
from toolsim.core.turns import TURNS
from toolsim.proxy import route
from toolsim.proxy.access import Incoming, Refusal, owner_of
from toolsim.proxy.api_format import ApiFormat
from toolsim.proxy.auxiliary import AuxiliaryRequest
from toolsim.proxy.backend_registry import NO_ROOT, Backend, BackendRegistry
from toolsim.proxy.builtin import Admitted, BuiltinBackend
from toolsim.proxy.cors import add_cors, cors_headers
from toolsim.proxy.exchange import Exchange, Exchanges
from toolsim.proxy.head import authorize, for_backend
from toolsim.proxy.incoming import IncomingReader
from toolsim.proxy.loop_detection import LOOP, ProxyLoopDetector
from toolsim.proxy.metadata import CLIENT_URL, PAGE, is_recorded, is_resent, is_stored
from toolsim.proxy.model_list import ModelList
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.refusals import Refusals
from toolsim.proxy.replay import ReplayedRequest, forget
from toolsim.proxy.reporting.outcome import OutcomeReporter, Reports
from toolsim.proxy.rounds import round_of
from toolsim.proxy.stored_context import StoredContext
from toolsim.proxy.upgrades import Sockets, upgrade_of
from toolsim.proxy.user_limits import UserLimits
from toolsim.wire.api import Api
from toolsim.wire.apis import APIS, CHAT, api_of_headers, api_of_path
from toolsim.wire.responses.operations import Action
from toolsim.wire.responses.resources import resource_of

MakePage = Callable[[HTTPFlow], Response | Awaitable[Response]]
"""A function that creates the response of a built-in page."""


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Dispatches requests according to the settings."""

    settings: Settings
    exchanges: Exchanges
    reports: Reports
    refusals: Refusals
    incoming_reader: IncomingReader
    loop_detector: ProxyLoopDetector
    builtin: BuiltinBackend
    backends: BackendRegistry
    user_limits: UserLimits
    sockets: Sockets
    pages: Mapping[str, MakePage]

    def dispatch(self, flow: HTTPFlow) -> Awaitable[None] | None:
        """Route a request, and stream its body through unless toolsim has to read it.

        If the result is an awaitable, which probes a backend or creates a page, the caller has to await it.
        """
        sent = flow.request.copy() if "upgrade" in flow.request.headers else flow.request
        reached_at = self.incoming_reader.take_host(flow)
        if flow.response is not None and not is_stored(flow):
            return None
        is_replay = is_resent(flow)
        # A round is marked as a replay until this hook, so that mitmproxy does not ask for a password (see
        # ``internal_flow``).
        if is_replay and flow.live and (asked := round_of(flow)) is not None:
            flow.is_replay = None
            flow.request.stream = False
            # A round has the same target as the client's request, which has already been routed.
            backend = self._known(flow)
            backend.is_builtin = route.leads_to(flow.request.host, flow.request.port, self._builtin_port)
            if backend.is_builtin:
                self.builtin.admit(flow)
            self._open(flow, "", asked.report, backend).round = asked
            return None
        upgrade = upgrade_of(flow) if is_replay and flow.live else None
        if upgrade is not None:
            flow.is_replay, is_replay = None, False
        if flow.live and not is_replay:
            scheme = "https" if flow.client_conn.tls_established else "http"
            flow.metadata[CLIENT_URL] = f"{scheme}://{reached_at}{flow.request.path}"
        replay = ReplayedRequest(flow) if is_replay else None
        proxy_user = upgrade.proxy_user if upgrade is not None else None
        incoming = self.incoming_reader.incoming(flow, reached_at, proxy_user)
        if self.loop_detector.is_loop(flow):
            self.refusals.answer(flow, LOOP)
            return None
        # The owner is determined now, because the client's key might be replaced with the backend's key below.
        client = api_of_path(flow.request.path) or api_of_headers(incoming.headers)
        owner = owner_of(flow.request.headers.fields, client, incoming.any_user)
        match route.decide(incoming, self.settings, self._builtin_port):
            case route.Respond() as answer:
                return self._answer(flow, answer)
            case route.Serve():
                # The body has to be read completely. The exchange limits its size.
                flow.request.stream = False
                self._remember(flow, self._open(flow, owner, Report(), Backend(NO_ROOT)))
            case route.Upgrade():
                limit, proxy_user = self.settings.limits.max_request_bytes, incoming.proxy_user
                if (error := self.sockets.admit(flow, sent, owner, limit, proxy_user)) is not None:
                    self.refusals.answer(flow, error, self.cors(flow))
            case route.ListModels(default):
                # If a backend turns out to be this proxy, the Via header of the request reveals the loop.
                self.loop_detector.add_via(flow)
                return self._list_models(flow, incoming, default)
            case route.Choose(default, action) if not (flow.live or is_replay):
                # The flow was read from a file, so its request is not sent again. The file does not name the chosen
                # backend, so the default backend is assumed.
                decision = default if isinstance(default, route.Pass) else route.Pass(action=action)
                return self._forward(flow, incoming, decision, owner, replay)
            case route.Choose() as choice:
                api = route.api_of(flow.request.method, flow.request.path, choice.action)
                flow.request.stream = False
                opened = self._carry(flow, api, incoming, choice.action, Backend(NO_ROOT), owner, replay)
                if opened is not None:
                    opened.choose = partial(self._choose, flow, incoming, choice)
            case decision:
                return self._forward(flow, incoming, decision, owner, replay)
        return None

    @property
    def _builtin_port(self) -> int | None:
        return self.builtin.port if self.settings.builtin is not None else None

    def cors(self, flow: HTTPFlow) -> dict[str, str]:
        """Return the headers that let a page with an allowed origin read the response."""
        origin = flow.request.headers.get("origin")
        return cors_headers(self.settings.origins, origin) if origin else {}

    def _answer(self, flow: HTTPFlow, answer: route.Respond) -> Awaitable[None] | None:
        if answer.error is not None:
            if isinstance(answer.error, Refusal):
                self.incoming_reader.note_refusal(flow, answer.error)
            self.refusals.answer(flow, answer.error, answer.headers)
        elif answer.page:
            flow.metadata[PAGE] = answer.page
            made = self.pages[answer.page](flow)
            if not isinstance(made, Response):
                return _respond(flow, made)
            flow.response = made
        else:
            flow.response = Response.make(200, headers=dict(answer.headers))
        return None

    async def _list_models(self, flow: HTTPFlow, incoming: Incoming, default: route.Default) -> None:
        flow.response = await ModelList(self.settings, self.builtin, self.backends).answer(flow, incoming, default)
        add_cors(flow.response.headers, self.cors(flow))

    def _forward(
        self,
        flow: HTTPFlow,
        incoming: Incoming,
        decision: route.Pass,
        owner: str,
        replay: ReplayedRequest | None,
    ) -> Awaitable[None] | None:
        """Set a flow's target and headers as ``route`` decided. Open an exchange if the body has to be read."""
        request = flow.request
        self._aim(flow, decision)
        api = route.api_of(request.method, request.path, decision.action)
        is_ours = _is_named(flow, decision) or decision.to_builtin or is_recorded(flow)
        is_for_us = is_ours or api is None or api.backend == api.name
        if not is_for_us or (api is None and not route.endpoint(request.path)):
            request.stream = True
            return None
        # The body has to be read, regardless of mitmproxy's option ``stream_large_bodies``.
        request.stream = False
        backend, waits = self._backend(flow, decision, api)
        self._carry(flow, api, incoming, decision.action, backend, owner, replay)
        return waits

    def _choose(
        self, flow: HTTPFlow, incoming: Incoming, choice: route.Choose, exchange: Exchange, model: str | None
    ) -> Awaitable[None] | None:
        """Direct a flow to the backend of ``model``, which has been read from the request's body."""
        models = self.settings.models
        match route.choose(incoming, self.settings, choice, models.current() if models is not None else (), model):
            case route.Respond(error, headers=headers):
                flow.response = exchange.refuse(error or LOOP)
                flow.response.headers.update(headers)
                return None
            case decision:
                self._aim(flow, decision)
                api = route.api_of(flow.request.method, flow.request.path, decision.action)
                exchange.backend, waits = self._backend(flow, decision, api)
                exchange.backend_model = decision.model
                self._follow_admission(flow, exchange)
                return waits

    def _aim(self, flow: HTTPFlow, decision: route.Pass) -> None:
        """Set a flow's target and headers as ``route`` decided."""
        request = flow.request
        if isinstance(decision, route.Forward):
            target = decision.upstream
            request.scheme, request.host, request.port = target.scheme, target.host, target.port
            request.path = decision.path
        authorize(request.headers, decision.authorization)
        if decision.to_builtin:
            self.builtin.admit(flow)
        # The Via entry is added only to requests to backends that the operator named.
        elif _is_named(flow, decision) and flow.live:
            self.loop_detector.add_via(flow)

    def _backend(self, flow: HTTPFlow, decision: route.Pass, api: Api | None) -> tuple[Backend, Awaitable[None] | None]:
        """Return the backend that a flow targets, and an awaitable for the backend's first probe.

        The awaitable is None if the backend needs no probe. For a turn, it has to be awaited before the request is
        rewritten.
        """
        backend, is_named = self._known(flow), _is_named(flow, decision) and not decision.to_builtin
        backend.is_named, backend.is_builtin = backend.is_named or is_named, decision.to_builtin
        may_ask = api is not None and is_named and flow.live
        if not may_ask or backend.is_known or self.settings.policy.engine != "auto":
            return backend, None
        return backend, self.backends.ask(backend, decision.key)

    def _known(self, flow: HTTPFlow) -> Backend:
        request = flow.request
        return self.backends.at(request.scheme, request.host, request.port, route.prefix(request.path))

    def _carry(
        self,
        flow: HTTPFlow,
        api: Api | None,
        incoming: Incoming,
        action: Action | None,
        backend: Backend,
        owner: str,
        replay: ReplayedRequest | None,
    ) -> Exchange | None:
        """Open the exchange of an API request. If ``api`` is None, the request is for the model list.

        If the request exceeds a limit of its user, answer it with an error and return None.
        """
        # ``dispatch`` has already handled the rounds of current requests, so this round was loaded from a file.
        asked = round_of(flow) if not flow.live else None
        report = asked.report if asked is not None else Report()
        turn = None
        if (user := incoming.any_user) is not None:
            report.user = user.name
            is_turn = api is not None and action != "input_tokens" and flow.live
            started = self.user_limits.begin(user) if is_turn else None
            if isinstance(started, Refusal):
                self.refusals.answer(flow, started, self.cors(flow))
                return None
            turn = started
        report.client = api.name if api is not None else ""
        # The headers determine the client's API, because the path of the model list is the same in all APIs.
        client = api or api_of_headers(incoming.headers) or CHAT
        TURNS.note(owner)
        exchange = self._open(flow, owner, report, backend)
        exchange.action, exchange.round, exchange.replay, exchange.user_turn = action, asked, replay, turn
        # The answer to a round is not converted, because the runner expects OpenAI's format.
        if client.has_own_errors and asked is None:
            exchange.attach(ApiFormat(client))
        if action is not None:
            exchange.attach(AuxiliaryRequest(action))
        if api is None:
            first, *_ = exchange.backend.apis_for(client, self.settings.policy.backend)
            for_backend(flow.request.headers, client, APIS[first])
        if asked is None and api is not None and api.is_storable:
            self._remember(flow, exchange)
        return exchange

    def _follow_admission(self, flow: HTTPFlow, exchange: Exchange) -> None:
        """Allow a flow to use the built-in backend until its exchange has ended."""
        if exchange.backend.is_builtin:
            exchange.attach(Admitted(self.builtin, flow))

    def _remember(self, flow: HTTPFlow, exchange: Exchange) -> None:
        if self.settings.store is not None and flow.live:
            exchange.stored_context = StoredContext(exchange.owner, resource=resource_of(flow.request.path))

    def _open(self, flow: HTTPFlow, owner: str, report: Report, backend: Backend) -> Exchange:
        # If the flow has been handled before, for example before a replay, the old metadata is removed.
        forget(flow)
        exchange = Exchange(
            report,
            client_id=flow.client_conn.id,
            owner=owner,
            cors=self.cors(flow),
            limits=self.settings.limits,
            backend=backend,
        )
        exchange.attach(OutcomeReporter(self.reports))
        self._follow_admission(flow, exchange)
        self.exchanges.open(flow, exchange)
        return exchange


def _is_named(flow: HTTPFlow, decision: route.Pass) -> bool:
    """Return whether the operator named the backend that a flow targets."""
    return isinstance(decision, route.Forward) or isinstance(flow.client_conn.proxy_mode, ReverseMode)


async def _respond(flow: HTTPFlow, made: Awaitable[Response]) -> None:
    flow.response = await made
