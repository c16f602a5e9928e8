"""Replaces an answer that consists only of an undeclared call, so that the client receives plain text instead.

An additional round requests the text from the model; the original answer counts as the first round. The runner
(``rounds/``) decides whether another round is allowed, and merges the output of both rounds. The runner is not
involved before the original answer has arrived, so ordinary answers are not slowed down. The client receives the text
as it arrives, in the stream that has already started. If the model writes no text, the client receives the original
answer.

The additional round ends when the client's exchange does, for example because the client disconnects. While the client
does not read, the proxy does not read from the model either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import override

from mitmproxy.http import HTTPFlow

from toolsim.core.errors import BadRequest
from toolsim.core.events import ClientEvent, Ended, Failed, Opened
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.core.tasks import spawn
from toolsim.proxy.decoding import BodyTooLarge
from toolsim.proxy.exchange import Exchange, Feature
from toolsim.proxy.jobs import AnswerResult
from toolsim.proxy.mitmproxy12 import backup
from toolsim.proxy.rounds import Rounds, own_body, stored_by_us
from toolsim.response.retry import Retry
from toolsim.response.rewrite import tokens_of
from toolsim.rounds.load import Load
from toolsim.rounds.round_planner import Round, RoundLimits
from toolsim.rounds.runner import Ask, Refused, RoundEvent, RunnerJob, answer
from toolsim.wire.apis import APIS
from toolsim.wire.json_codec import read_body
from toolsim.wire.responses.stored import output_names

_LOOK_SECONDS = 0.5
"""Time, in seconds, that a stream waits for events before it checks whether its client is still connected."""
_TASKS: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class ProseFallbacks:
    """Starts the additional rounds that request plain text from models."""

    rounds: Rounds
    bounds: RoundLimits
    policy: Callable[[HTTPFlow, Exchange], Policy]
    """A function that returns the policy of a flow, without the profile of its model."""

    def ask(self, flow: HTTPFlow, exchange: Exchange, retry: Retry, report: Report) -> ProseFallback | None:
        """Start another round for an answer, for the reason in ``retry``. Return None if no other round is possible.

        ``report`` is the answer's report, to which the additional round is added.
        """
        events = self._events(flow, exchange, retry, report)
        if events is None:
            return None
        report.tokens = tokens_of(retry.usage)
        report.usage_estimated = retry.usage is not None and retry.usage.estimated
        asked = ProseFallback(events)
        exchange.ask_again(flow, report, asked)
        return asked

    async def whole(self, flow: HTTPFlow, exchange: Exchange, done: AnswerResult) -> AnswerResult:
        """Run the additional round for a non-streamed answer, and return the resulting answer."""
        plan, retry = exchange.plan, done.retry
        assert plan is not None
        assert retry is not None
        exchange.note_mismatch(retry.fault.reason)
        asked, done = self.ask(flow, exchange, retry, done.report), replace(done, retry=None)
        if asked is None:
            return done
        events = list(done.events[: len(done.events) - done.withheld])
        while not asked.is_over:
            await asked.wait()
            events += asked.take()
        if not events or not isinstance(events[-1], Ended | Failed):
            return done  # There is no final event, so the client has disconnected.
        writer = APIS[plan.client].writer(plan.form)
        for event in events:
            writer.write(event)
        status = writer.error.status if writer.error is not None else 200
        names = output_names(writer.body) if plan.form.id else None
        return replace(done, status=status, body=writer.whole(), names=names, events=tuple(events))

    def _events(
        self, flow: HTTPFlow, exchange: Exchange, retry: Retry, report: Report
    ) -> AsyncGenerator[ClientEvent | Refused] | None:
        plan = exchange.plan
        if plan is None or exchange.is_edited or self.bounds.rounds < 2 or not flow.live:
            return None
        api, memory, request = APIS[plan.client], exchange.stored_context, backup.incoming_request(flow)
        if request is None:
            return None
        try:
            body = own_body(request, memory)
            document = read_body(body)
            if document is None:
                return None
            document = api.expand_opaque_items(document)
            _, document, body = stored_by_us(api.read(document), document, body, memory)
        except (BodyTooLarge, BadRequest, ValueError):
            return None
        report.rounds = 1
        policy = replace(self.policy(flow, exchange).for_model(plan.form.model), second_opinion="undeclared")
        further = self.rounds.asking(flow, exchange.owner, body, document, request)
        bounds = replace(self.bounds, seconds=_left(self.bounds.seconds, exchange.timeouts.seconds()))
        return answer(RunnerJob(api, document, plan.form, policy, _after(retry, further), bounds, report))


def _left(seconds: float, gone: float) -> float:
    return max(seconds - gone, 1e-3) if seconds else 0.0


def _after(retry: Retry, further: Ask) -> Ask:
    """Return a function that runs every round except the first with ``further``.

    The first round has already ended, so its result, ``retry``, is returned instead.
    """

    async def ask(round_: Round) -> AsyncGenerator[RoundEvent]:
        if round_.number == 1:
            yield Opened()
            yield retry
            return
        async with aclosing(further(round_)) as events:
            async for event in events:
                yield event

    return ask


class ProseFallback(Feature):
    """A feature that runs the additional round of an answer. The runner yields the round's ``events``."""

    def __init__(self, events: AsyncGenerator[ClientEvent | Refused]) -> None:
        self._arrived: list[ClientEvent] = []
        self._load = Load()
        self._changed, self._taken = asyncio.Event(), asyncio.Event()
        self._following = spawn(self._follow(events), _TASKS)
        self._following.add_done_callback(lambda _: self._changed.set())

    @property
    def is_over(self) -> bool:
        """Whether all events of the round have been consumed."""
        return self._following.done() and not self._arrived

    @property
    def is_cancelled(self) -> bool:
        """Whether the round was canceled because its exchange has ended."""
        return self._following.cancelled()

    async def wait(self) -> None:
        """Wait until an event has arrived, but for at most ``_LOOK_SECONDS``."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), _LOOK_SECONDS)

    def take(self) -> Sequence[ClientEvent]:
        """Return the events that have arrived since the last call. The round's final event also ends the answer."""
        arrived, self._arrived, self._load = self._arrived, [], Load()
        self._taken.set()
        if not self._following.done():
            self._changed.clear()
        return arrived

    @override
    def on_close(self, exchange: Exchange, flow: HTTPFlow | None, status: int | None) -> None:
        self._following.cancel()

    async def _follow(self, events: AsyncGenerator[ClientEvent | Refused]) -> None:
        async with aclosing(events):
            async for event in events:
                # The first round has already started the client's answer. So the answer must not be started again
                # (Opened), and can no longer be rejected (Refused).
                if not isinstance(event, Opened | Refused):
                    self._arrived.append(event)
                    self._load.add(event)
                    self._changed.set()
                if self._load.is_full:
                    self._taken.clear()
                    await self._taken.wait()
