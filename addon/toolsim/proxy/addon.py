"""The addon. It contains the hooks in the order in which mitmproxy calls them, and creates the objects that they use.

- ``dispatch`` handles a request whose headers have arrived.
- ``bodies`` handles the body of a request or an answer.
- ``exchanges`` contains all exchanges in progress. Each ``Exchange`` consists of one request and its answer.
- ``guard`` ends an exchange if one of these hooks raises an exception.
- ``mitmproxy12`` ends answers early, which mitmproxy itself cannot do.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Collection, Iterable
from dataclasses import replace
from typing import ClassVar

from mitmproxy import ctx
from mitmproxy.addonmanager import Loader
from mitmproxy.connection import Client
from mitmproxy.exceptions import OptionsError
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy.mode_specs import ProxyMode, ReverseMode

from toolsim.proxy import route, startup
from toolsim.proxy.backend_registry import BackendRegistry
from toolsim.proxy.background import Background, Parts
from toolsim.proxy.bodies import BodyRewriter
from toolsim.proxy.builtin import BuiltinBackend
from toolsim.proxy.context_loader import StoredContextLoader
from toolsim.proxy.cors import add_cors
from toolsim.proxy.dispatch import Dispatcher
from toolsim.proxy.drain import Drain
from toolsim.proxy.exchange import Exchanges
from toolsim.proxy.guard import Clearance, Guard
from toolsim.proxy.incoming import IncomingReader, with_names
from toolsim.proxy.loop_detection import ProxyLoopDetector
from toolsim.proxy.mcp_servers import Servers
from toolsim.proxy.metadata import PAGE, SOCKET
from toolsim.proxy.mitmproxy12 import deferred, patches, rows, web
from toolsim.proxy.mitmproxy12.backpressure import ClientBackpressure
from toolsim.proxy.mitmproxy12.connect import ConnectTimeout
from toolsim.proxy.mitmproxy12.gc_freeze import GcFreeze
from toolsim.proxy.options import table
from toolsim.proxy.options.option import PREFIX
from toolsim.proxy.options.profiles import with_profiles
from toolsim.proxy.options.settings import Settings, check_together, parse
from toolsim.proxy.readiness import Readiness
from toolsim.proxy.refusals import Refusals
from toolsim.proxy.reporting import metrics
from toolsim.proxy.reporting.outcome import Reports
from toolsim.proxy.reporting.overview import Overview
from toolsim.proxy.reporting.startup_banner import StartupBanner
from toolsim.proxy.response_store import ResponseStore
from toolsim.proxy.rounds import Rounds
from toolsim.proxy.streamed import StreamedAnswer
from toolsim.proxy.upgrades import Sockets
from toolsim.proxy.user_limits import UserLimits
from toolsim.proxy.worker import WorkQueue

logger = logging.getLogger(__name__)

# Number of seconds without output after which a stream sends a keep-alive. Some clients give up after 30 s without an
# event.
KEEPALIVE_SECONDS = 10.0


class ToolSim:
    """Adds function calling to text-only backends.

    After ``keepalive`` seconds without output, a stream sends its client a keep-alive. If ``alone`` is true, no other
    requests share the event loop, so the hooks do all their work synchronously. ``by_hand`` contains the full names of
    all options that the operator set explicitly, even to their default values.
    """

    exchanges: ClassVar = Exchanges()
    """All exchanges in progress. All instances share them, so that no exchange is lost when the script is reloaded."""
    guard: ClassVar = Guard()
    """Ends any exchange in which an exception is raised. All instances share it, so it survives a script reload."""

    def __init__(
        self, *, keepalive: float = KEEPALIVE_SECONDS, alone: bool = False, by_hand: Collection[str] = ()
    ) -> None:
        self._keepalive = keepalive
        self._by_hand = frozenset(by_hand)
        """The full names of the options that were set explicitly.

        Names are never removed, because mitmproxy forgets which options were set when it rolls back a change.
        """
        self._is_running = False
        self._modes: list[ProxyMode] = []
        self._work = WorkQueue(has_workers=not alone)
        self._reports = Reports()
        self._builtin = BuiltinBackend()
        self._startup_banner = StartupBanner(self._builtin)
        self._connect_timeout = ConnectTimeout()
        self._refusals = Refusals(self._reports.log)
        self._incoming_reader = IncomingReader(self._refusals)
        self._loop_detector = ProxyLoopDetector()
        self._backends = BackendRegistry()
        self._user_limits = UserLimits()
        self._servers = Servers()
        self._rounds = Rounds(keepalive)
        self._memory = ResponseStore()
        self._background = Background(
            Parts(self._memory, self._rounds, self._servers, self._work.run, self._reports.add)
        )
        self._context_loader = StoredContextLoader(self._memory, self._work.run, self._background)
        self._sockets = Sockets(lambda: self._memory.is_on, self._work.run)
        self._drain = Drain(self.exchanges, self._rounds, self._background, self._sockets)
        self._wire(Settings())
        self.addons = [
            self._loop_detector.connections,
            self._connect_timeout,
            self._incoming_reader,
            self._servers.approve,
            GcFreeze(),
            ClientBackpressure(),
            self._sockets,
            self._drain,
            Clearance(self.guard),
        ]
        """The addons that are loaded together with ``ToolSim``. mitmproxy calls their hooks after ``ToolSim``'s hooks.

        ``Clearance`` has to be the last addon, because its hooks record that all other addons have handled a flow.
        """

    def _wire(self, settings: Settings) -> None:
        """Create the objects that depend on the settings."""
        self._settings = settings
        readiness = Readiness(settings, self._builtin, self._memory, self._drain)
        overview = Overview(settings, self._builtin, self._reports)
        self._dispatcher = Dispatcher(
            settings,
            self.exchanges,
            self._reports,
            self._refusals,
            self._incoming_reader,
            self._loop_detector,
            self._builtin,
            self._backends,
            self._user_limits,
            self._sockets,
            {
                "metrics": self._metrics_page,
                "health": readiness.health,
                "ready": readiness.ready,
                "overview": overview.full,
                "overview_public": overview.public,
            },
        )
        self._body_rewriter = BodyRewriter(
            settings, self.exchanges, self._work, self._servers, self._rounds, self._context_loader
        )

    # -- lifecycle --

    def load(self, loader: Loader) -> None:
        """Register the options.

        Raises OptionsError for an invalid option, since the proxy must not start without toolsim.
        """
        for warning in table.register(loader, os.environ):
            logger.warning(warning)
        if problems := startup.take_problems(loader.master.options):
            for problem in problems:
                logger.error(problem)
            raise OptionsError("\n".join(problems))  # type: ignore[no-untyped-call]
        web.show_comments(loader.master.options)
        patches.check()
        patches.install(self.exchanges, self.guard)
        rows.install()

    def configure(self, updated: Iterable[str]) -> None:
        """Parse and apply the options. Raises OptionsError for an invalid value."""
        updated = set(updated)
        if updated & {"termlog_verbosity", "rfile", PREFIX + "log"}:
            self._reports.log.configure(ctx.options.toolsim_log)
        if not any(name.startswith(PREFIX) or name in ("mode", "listen_host", "websocket") for name in updated):
            return
        modes = [ProxyMode.parse(mode) for mode in ctx.options.mode]
        hosts = [mode.listen_host(ctx.options.listen_host) for mode in modes]
        settings = with_names(parse(ctx.options, keepalive=self._keepalive), hosts)
        self._by_hand |= deferred.set_by_hand(ctx.options)
        by_hand = frozenset(option.name for option in table.OPTIONS if option.full_name in self._by_hand)
        settings = replace(settings, websocket=ctx.options.websocket, by_hand=by_hand)
        settings = with_profiles(settings, os.environ)
        check_together(settings, hosts)
        self._modes = modes
        self._wire(settings)
        self._incoming_reader.settings = settings
        self._drain.seconds = settings.drain_timeout
        self._connect_timeout.seconds = settings.limits.connect_timeout
        self._memory.configure(settings.store)
        self._servers.update(settings.mcp)
        self._reports.label(settings.metrics_labels)
        # With eager connections, mitmproxy connects to the target before the request arrives, and closes the client's
        # connection if the target cannot be reached. But a request that is redirected elsewhere does not need the
        # target.
        is_server = any(isinstance(mode, ReverseMode) for mode in modes) or settings.builtin is not None
        is_server = is_server or settings.models is not None
        if (is_server or settings.upstream is not None) and ctx.options.connection_strategy == "eager":
            ctx.options.update(connection_strategy="lazy")  # type: ignore[no-untyped-call]
        if self._is_running:
            self._builtin.update(settings, modes)

    def running(self) -> Awaitable[None]:
        """Start the built-in backend and the MCP servers.

        This hook is not async, because mitmproxy does not await it when it reloads the script.
        """
        self._is_running = True
        web.widen_comments(getattr(ctx.master, "app", None))
        started = self._builtin.start(self._settings, self._modes)
        self._startup_banner.start(self._settings, started)
        self._servers.start()
        return started

    def done(self) -> Awaitable[None]:
        """Stop all components. mitmproxy awaits the returned task when it exits.

        This hook is not async, because mitmproxy does not await it when it reloads the script.
        """
        self._is_running = False
        patches.uninstall()
        rows.uninstall()
        self._reports.log.restore()
        self._startup_banner.stop()
        self._backends.stop()
        self._work.stop()
        return self._builtin.stop(self._stopped())

    async def _stopped(self) -> None:
        await self._sockets.stop()
        await self._background.stop()
        await self._rounds.stop()
        await self._servers.stop()
        await self._memory.close()

    # -- the request --

    def requestheaders(self, flow: HTTPFlow) -> Awaitable[None] | None:
        """Route a request, and open an exchange if toolsim handles the request."""
        return self._dispatcher.dispatch(flow)

    def request(self, flow: HTTPFlow) -> Awaitable[None] | None:
        """Rewrite a request. If this would take long, return an awaitable that does the work."""
        exchange = self.exchanges.of(flow)
        return self._body_rewriter.request(flow, exchange) if exchange is not None else None

    def toolsim_resend(self, flow: HTTPFlow) -> Awaitable[None] | None:
        """Rewrite a request again, without the feature or API path that its backend rejected."""
        exchange = self.exchanges.of(flow)
        return self._body_rewriter.resend(flow, exchange) if exchange is not None else None

    # -- the answer --

    def responseheaders(self, flow: HTTPFlow) -> None:
        """Decide how to pass an answer to the client, based on the response headers."""
        exchange, response = self.exchanges.of(flow), flow.response
        assert response is not None
        if SOCKET in flow.metadata:
            self._sockets.answered(flow)
        if exchange is not None:
            if exchange.cors:
                add_cors(response.headers, exchange.cors)
            exchange.begin(flow)
            return
        if route.endpoint(flow.request.path) and (allowed := self._dispatcher.cors(flow)):
            add_cors(response.headers, allowed)
        if response.raw_content is None:
            response.stream = True

    async def toolsim_pause(self, answer: StreamedAnswer) -> None:
        """Let other tasks run before the rest of a long answer is processed."""
        await answer.pause()

    def toolsim_ask(self, flow: HTTPFlow) -> None:
        """Start another round for a streamed answer instead of ending the answer."""
        if (exchange := self.exchanges.of(flow)) is not None:
            self._body_rewriter.ask(flow, exchange)

    async def toolsim_store(self, flow: HTTPFlow) -> None:
        """Store a streamed answer before its final event is sent to the client."""
        if (exchange := self.exchanges.of(flow)) is not None:
            await self._context_loader.store_streamed(exchange)

    def response(self, flow: HTTPFlow) -> Awaitable[None] | None:
        """Rewrite a non-streamed answer, and end its exchange.

        If this would take long, return an awaitable that does the work.
        """
        exchange = self.exchanges.of(flow)
        if exchange is not None:
            return self._body_rewriter.answer(flow, exchange)
        if PAGE in flow.metadata:
            web.hide(flow)
        return None

    def error(self, flow: HTTPFlow) -> None:
        """End the exchange of a flow that has failed."""
        if SOCKET in flow.metadata:
            self._sockets.answered(flow)
        self.exchanges.close(flow, None)

    def client_disconnected(self, client: Client) -> None:
        """End the exchanges of a client that has disconnected, in case mitmproxy has not called ``error`` for them."""
        self.exchanges.close_of(client)

    def _metrics_page(self, _flow: HTTPFlow) -> Response:
        parts = (self._refusals, self._memory, self._background, self._drain, self.guard)
        more = [family for part in parts for family in part.families()]
        text = self._reports.metrics.text(self.exchanges.turns(), more)
        return Response.make(200, text, {"content-type": metrics.CONTENT_TYPE})
