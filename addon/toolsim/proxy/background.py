"""Background answers, which are created while no client waits for them.

An optional package creates them (``BACKGROUND`` in ``plugins.py``). It is imported when the first request needs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

from mitmproxy.http import HTTPFlow

from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.plugins import BACKGROUND
from toolsim.proxy.exchange import Exchange
from toolsim.proxy.jobs import RunJob
from toolsim.proxy.mcp_servers import Servers
from toolsim.proxy.options.settings import Settings
from toolsim.proxy.reporting.metrics import Family
from toolsim.proxy.response_store import ResponseStore
from toolsim.proxy.rounds import Rounds
from toolsim.wire.api import Api
from toolsim.wire.responses.resources import ResourceCall

Finished = Callable[[Report, int | None, float], None]
"""A function that is called when an answer has finished.

The arguments are the answer's report, its HTTP status (None if it was canceled), and its duration in seconds.
"""


class Answers(Protocol):
    """The interface of the optional package that creates background answers."""

    async def begin(self, flow: HTTPFlow, exchange: Exchange, api: Api, policy: Policy, settings: Settings) -> None:
        """Start a background answer.

        The client receives the Response object with the status "queued", or an error.
        """

    async def serve(self, flow: HTTPFlow, exchange: Exchange, call: ResourceCall) -> bool:
        """Handle a client's request for a background answer, and return whether this answer exists."""

    def count(self) -> int:
        """Return the number of background answers in progress."""

    def families(self) -> list[Family]:
        """Return the metrics about background answers."""

    async def stop(self) -> None:
        """End all background answers in progress."""


class Parts(NamedTuple):
    """The parts of the proxy that the optional package for background answers needs."""

    memory: ResponseStore
    rounds: Rounds
    servers: Servers
    do: RunJob
    """A function that runs a job, in this process or in a worker process."""
    finished: Finished


class Background:
    """Imports the optional package for background answers on demand."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._answers: Answers | None = None

    @property
    def answers(self) -> Answers:
        """The optional package's implementation of ``Answers``, which is imported on first use."""
        if self._answers is None:
            self._answers = importlib.import_module(BACKGROUND).BackgroundAnswers(self._parts)
        return self._answers

    def families(self) -> list[Family]:
        """Return the metrics about background answers, or an empty list if the proxy has no store."""
        return self.answers.families() if self._parts.memory.is_on else []

    def count(self) -> int:
        """Return the number of background answers in progress."""
        return self._answers.count() if self._answers is not None else 0

    async def stop(self) -> None:
        """End all background answers in progress."""
        if self._answers is not None:
            await self._answers.stop()
