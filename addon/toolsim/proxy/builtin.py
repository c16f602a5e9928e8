"""Runs the selected built-in backend in this process, on a loopback port, for authorized clients.

Most proxies use an external backend, so built-in backends and their server are optional packages that are imported on
demand. This module contains only their interface, ``Loopback``.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, override

from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.mode_specs import ProxyMode, ReverseMode

from toolsim.core.errors import ApiError
from toolsim.core.plan import Plan
from toolsim.core.tasks import spawn
from toolsim.plugins import BUILTIN, LOOPBACK_SERVER
from toolsim.proxy.address import LOOPBACK
from toolsim.proxy.exchange import Exchange, Feature
from toolsim.proxy.options.settings import Settings

logger = logging.getLogger(__name__)


class Loopback(Protocol):
    """The server of a built-in backend. It answers only the requests that the proxy has admitted."""

    @property
    def port(self) -> int:
        """The port that the server is bound to."""

    async def start(self) -> None:
        """Bind the port and start the backend. Raises OSError if the port is in use."""

    async def stop(self) -> None:
        """Stop the backend and release the port."""

    async def models(self) -> Sequence[str] | ApiError:
        """Return the IDs of the models that the backend offers, or an error if they cannot be listed."""

    def admit(self, flow: str) -> dict[str, str]:
        """Allow a flow to use the backend, and return the header that its request must contain as proof."""

    def forget(self, flow: str) -> None:
        """Stop allowing a flow to use the backend, because the flow has ended."""


class BuiltinBackend:
    """Starts and stops the built-in backend that the settings select, if any, and admits requests to it."""

    def __init__(self) -> None:
        self._settings = Settings()
        self._loopback: Loopback | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int | None:
        """The backend's port on 127.0.0.1, or None while the backend is not running."""
        return self._loopback.port if self._loopback else None

    async def models(self) -> Sequence[str] | str:
        """Return the IDs of the backend's models, or the backend's error message."""
        models = await self._loopback.models() if self._loopback else []
        return models.message if isinstance(models, ApiError) else models

    # -- start and stop --

    def start(self, settings: Settings, modes: Sequence[ProxyMode] = ()) -> asyncio.Task[None]:
        """Start the backend that these settings select, and stop the previous backend.

        ``modes`` are the proxy's modes, one for each listener. They only affect the log.
        """
        self._settings = settings
        return spawn(self._serve(settings, modes), self._tasks)

    def update(self, settings: Settings, modes: Sequence[ProxyMode] = ()) -> None:
        """Restart the backend if the new settings require a different backend."""
        if _config(settings) != _config(self._settings):
            self.start(settings, modes)

    def stop(self, first: Coroutine[Any, Any, None] | None = None) -> asyncio.Task[None]:
        """Run the coroutine ``first``, which might still need the backend, and then stop the backend."""
        return spawn(self._stop(first), self._tasks)

    async def _serve(self, settings: Settings, modes: Sequence[ProxyMode]) -> None:
        await self._stop()
        if settings.builtin is None:
            return
        backend = importlib.import_module(BUILTIN[settings.builtin].module).backend_of(settings)
        loopback: Loopback = importlib.import_module(LOOPBACK_SERVER).Loopback(backend)
        try:
            await loopback.start()
        except OSError as problem:
            logger.error("toolsim cannot start its %s backend: %s", settings.builtin, problem)
            return
        self._loopback = loopback
        self._log_place(settings, modes)

    def _log_place(self, settings: Settings, modes: Sequence[ProxyMode]) -> None:
        """Log where the backend listens, or warn that no listener of the proxy sends requests to it."""
        elsewhere = [mode.data for mode in modes if isinstance(mode, ReverseMode)]
        if modes and len(elsewhere) == len(modes):
            logger.warning(
                "toolsim: the %s backend receives no requests, because the reverse mode sends them to %s: remove "
                "toolsim_backend or the reverse mode",
                settings.builtin,
                ", ".join(elsewhere),
            )
        elif settings.builtin == "codex":
            # Codex can take a while to start, so this message does not claim that it already answers requests. Codex's
            # own code logs when it does.
            message = "toolsim: requests to this listener at /v1 go to the codex backend on %s:%s"
            logger.info(message, LOOPBACK, self.port)
        else:
            message = "toolsim: the %s backend answers requests to this listener at /v1 (internal address %s:%s)"
            logger.info(message, settings.builtin, LOOPBACK, self.port)

    async def _stop(self, first: Coroutine[Any, Any, None] | None = None) -> None:
        if first is not None:
            await first
        loopback, self._loopback = self._loopback, None
        if loopback is not None:
            await loopback.stop()

    # -- access --

    def admit(self, flow: HTTPFlow) -> None:
        """Admit a request to the backend, which rejects all requests that were not admitted.

        The caller has already authorized the client.
        """
        if self._loopback is not None:
            flow.request.headers.update(self._loopback.admit(flow.id))

    def forget(self, flow_id: str) -> None:
        """Stop allowing a flow to use the backend, because the flow has ended."""
        if self._loopback is not None:
            self._loopback.forget(flow_id)


class Admitted(Feature):
    """A feature that admits an exchange's request to the backend each time the request is sent."""

    def __init__(self, builtin: BuiltinBackend, flow: HTTPFlow) -> None:
        self._builtin = builtin
        self._flow = flow

    @override
    def on_plan(self, plan: Plan) -> Plan:
        self._builtin.admit(self._flow)
        return plan

    @override
    def on_close(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        self._builtin.forget(self._flow.id)


def _config(settings: Settings) -> tuple[object, ...]:
    return settings.builtin, settings.codex_command, settings.model
